//! The listings run and do what the book says.

use std::fs;
use std::path::Path;
use std::process::Command;

use bonfire_testkit::{Job, Signal};

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect("the listing exists");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {errors}");
    String::from_utf8(output.stdout).expect("the listing prints text")
}

/// The loss that the training listing printed last.
fn last_loss(printed: &str) -> f64 {
    let last = printed.lines().rev().find_map(|line| line.split("loss ").nth(1));
    last.expect("it prints a loss").parse().expect("a number")
}

#[test]
fn the_first_programs_learn_on_one_and_on_several_ranks() {
    let first = env!("CARGO_BIN_EXE_first");
    let train = env!("CARGO_BIN_EXE_train");
    let data_loader = env!("CARGO_BIN_EXE_data_loader");
    for (program, several) in [(first, "2"), (train, "2"), (data_loader, "4")] {
        for ranks in ["1", several] {
            let loss = last_loss(&run(program, &["--nproc", ranks, "--device", "cpu"]));
            // The targets lie exactly on the line, so the loss falls towards zero.
            assert!(loss < 1e-3, "{program}: {ranks} ranks end with a loss of {loss}");
        }
    }
}

#[test]
fn ctrl_c_and_sigterm_end_a_program_whose_main_returns_launch_with_their_codes() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gan"));
        command.args(["--nproc", "2", "--device", "cpu"]).env("BONFIRE_LOG", "info");
        let job = Job::start(&mut command);
        job.until_printed("transport shm to rank");
        job.signal(signal);
        let errors = job.end_with(code).stderr.join("\n");
        assert!(errors.contains("error: interrupted by SIG"), "{errors}");
    }
}

#[test]
fn the_listing_beside_pytorchs_learns_and_leaves_a_file_for_it() {
    let program = env!("CARGO_BIN_EXE_from_pytorch");
    for ranks in ["1", "2"] {
        let folder = tempfile::tempdir().expect("a folder");
        let output = Command::new(program)
            .args(["--nproc", ranks, "--device", "cpu"])
            .current_dir(folder.path())
            .output()
            .expect("the listing exists");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let loss = last_loss(&String::from_utf8_lossy(&output.stdout));
        assert!(loss < 1e-3, "{ranks} ranks end with a loss of {loss}");
        let file = fs::read(folder.path().join("line.safetensors")).expect("rank 0 has written");
        let names = String::from_utf8_lossy(&file);
        for name in ["\"layer.weight\"", "\"layer.bias\""] {
            assert!(names.contains(name), "{name} is missing in {names}");
        }
    }
}

#[test]
fn workers_of_the_listing_on_slow_links_learn() {
    let arguments = ["--nproc", "2", "--device", "cpu"];
    let loss = last_loss(&run(env!("CARGO_BIN_EXE_diloco"), &arguments));
    assert!(loss < 1e-2, "the workers end with a loss of {loss}");
}

#[test]
fn the_listing_on_optimizers_learns_a_constant() {
    let printed = run(env!("CARGO_BIN_EXE_fused_optimizer"), &["--nproc", "2", "--device", "cpu"]);
    assert_eq!(printed.matches("loss ").count(), 2, "{printed}");
    assert!(last_loss(&printed) < 1e-2, "{printed}");
}

#[test]
fn the_listing_on_placements_learns_and_goes_on_in_another() {
    let (base, id) = (env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let folder = format!("{base}/sharded-{id}");
    let args = [folder.as_str(), "--nproc", "2", "--device", "cpu"];
    let printed = run(env!("CARGO_BIN_EXE_sharding"), &args);
    assert_eq!(printed.matches("then loss ").count(), 2, "{printed}");
    let first = printed.split("loss ").nth(1).and_then(|text| text.split(',').next());
    let first: f64 = first.expect("a loss").parse().expect("a number");
    let last = last_loss(&printed.replace(", then", "\n"));
    assert!(last < first / 4.0, "{printed}");
    fs::remove_dir_all(&folder).expect("it has left checkpoints");
}

#[test]
fn the_listing_on_divided_layers_learns_the_same_on_all_ranks() {
    for ranks in ["2", "4"] {
        let arguments = ["--nproc", ranks, "--device", "cpu"];
        let printed = run(env!("CARGO_BIN_EXE_tensor_parallel"), &arguments);
        assert_eq!(printed.matches("loss ").count().to_string(), ranks);
        assert!(last_loss(&printed) < 0.05, "{printed}");
    }
}

#[test]
fn the_listing_on_divided_sequences_learns_the_same_on_all_ranks() {
    for ranks in ["2", "4"] {
        let arguments = ["--nproc", ranks, "--device", "cpu"];
        let printed = run(env!("CARGO_BIN_EXE_context_parallel"), &arguments);
        assert_eq!(printed.matches("loss ").count().to_string(), ranks);
        assert!(last_loss(&printed) < 0.05, "{printed}");
    }
}

#[test]
fn the_listing_on_pipelines_learns_a_constant() {
    let arguments = ["--nproc", "2", "--device", "cpu"];
    let printed = run(env!("CARGO_BIN_EXE_pipeline_parallel"), &arguments);
    // All ranks know the loss.
    assert_eq!(printed.matches("then loss ").count(), 2, "{printed}");
    let first = printed.split("loss ").nth(1);
    let first = first.and_then(|text| text.split(',').next());
    let first: f64 = first.expect("a loss").parse().expect("a number");
    let last = last_loss(&printed.replace(", then", "\n"));
    assert!(last < first / 4.0, "{printed}");
    let validation = printed.matches("validation loss ").count();
    assert_eq!(validation, 2, "{printed}");
}

#[test]
fn the_listing_on_state_in_files_learns_a_constant() {
    let arguments = ["--nproc", "2", "--device", "cpu"];
    let printed = run(env!("CARGO_BIN_EXE_offload"), &arguments);
    assert_eq!(printed.matches("loss ").count(), 2, "{printed}");
    assert!(last_loss(&printed) < 0.5, "{printed}");
}

#[test]
fn the_prepared_listing_learns_from_a_file_of_either_kind_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let own = "epochs = 30\nbatch.micro = 8\noptimizer.lr = 0.05\n[schedule]\ndecay = \"cosine\"\n";
    let deepspeeds = r#"{ "train_batch_size": 32, "zero_optimization": { "stage": 1 },
        "optimizer": { "type": "AdamW", "params": { "lr": 0.05 } } }"#;
    for (name, flag, text) in
        [("train.toml", "--config", own), ("ds.json", "--deepspeed_config", deepspeeds)]
    {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        let kept = format!("checkpoints.folder={}", folder.path().join(flag).display());
        let train = |epochs: &str| {
            let arguments = ["--nproc", "2", "--device", "cpu", flag, file.to_str().unwrap()];
            let printed =
                run(env!("CARGO_BIN_EXE_prepare"), &[&arguments[..], &[&kept, epochs]].concat());
            let error = printed.split("error ").nth(1).unwrap();
            let words: Vec<&str> = error.split_whitespace().collect();
            (words[0].parse::<f64>().unwrap(), words[2].parse::<u64>().unwrap())
        };
        let (first, steps) = train("epochs=1");
        let (last, all) = train("epochs=30");
        assert!(last < 0.1 * first, "{name}: {first} to {last}");
        assert_eq!(all, 30 * steps, "{name}");
    }
}

#[test]
fn the_two_models_of_the_listing_on_adversaries_meet() {
    let printed = run(env!("CARGO_BIN_EXE_gan"), &["--nproc", "2", "--device", "cpu"]);
    let means = printed.lines().filter_map(|line| line.split("mean ").nth(1));
    let means: Vec<f64> = means.map(|mean| mean.parse().expect("a number")).collect();
    // The generator starts at 0, and circles around the mean of the data at about a tenth of the clip.
    assert_eq!(means.len(), 2, "{printed}");
    assert!(means[0] == means[1] && (means[0] - 3.0).abs() < 0.5, "{printed}");
}

#[test]
fn the_listing_on_routes_says_why_it_is_not_nccl_and_trains() {
    let arguments = ["--nproc", "2", "--device", "cpu"];
    let printed = run(env!("CARGO_BIN_EXE_over_nccl"), &arguments);
    let said = "as GradientRoute::Nccl asks";
    assert_eq!(printed.matches(said).count(), 1, "{printed}");
    assert_eq!(printed.matches("loss ").count(), 2, "{printed}");
    assert!(last_loss(&printed) < 1e-3, "{printed}");
}

#[test]
fn the_listing_on_errors_tells_once_what_is_wrong() {
    let program = env!("CARGO_BIN_EXE_all_or_none");
    let path = std::env::temp_dir().join(format!("error-{}", std::process::id()));
    fs::write(&path, "1\n2\n3\n").expect("the file can be written");
    let file = path.to_str().expect("a plain path");
    let printed = run(program, &[file, "--nproc", "3", "--device", "cpu"]);
    assert_eq!(printed.matches("3 lines").count(), 3, "{printed}");
    fs::remove_file(&path).expect("it was written");
    let end = Command::new(program)
        .args([file, "--nproc", "3", "--device", "cpu"])
        .output()
        .expect("the listing exists");
    assert!(!end.status.success());
    let errors = String::from_utf8_lossy(&end.stderr);
    let of_ranks = errors.lines().filter(|line| line.starts_with("[rank "));
    let lines: Vec<&str> = of_ranks.filter(|line| line.contains("error: ")).collect();
    let [line] = lines[..] else { panic!("not one line: {errors}") };
    assert!(line.starts_with("[rank 0] error: No such file"), "{line}");
}

#[test]
fn the_pictures_listing_deals_all_pictures_of_both_epochs() {
    let program = env!("CARGO_BIN_EXE_images");
    for ranks in [1, 2] {
        let printed = run(program, &["--nproc", &ranks.to_string(), "--device", "cpu"]);
        let line = format!("saw {} pictures, holds out 10", 2 * 30 / ranks);
        assert_eq!(printed.matches(&line).count(), ranks, "{printed}");
    }
}

#[test]
fn the_agreement_listing_ends_on_all_ranks_with_the_shortest_share() {
    let printed = run(env!("CARGO_BIN_EXE_uneven_shares"), &["--nproc", "3"]);
    assert_eq!(printed.matches("3 steps, saved 2 times").count(), 3, "{printed}");
}

#[test]
fn the_pretrained_listing_loads_what_fits_and_freezes_the_body() {
    let path = std::env::temp_dir().join(format!("pretrained-{}.safetensors", std::process::id()));
    let description =
        r#"{"module.body.weight":{"dtype":"F32","shape":[3,4],"data_offsets":[0,48]}}"#;
    let length = (description.len() as u64).to_le_bytes();
    let file = [&length[..], description.as_bytes(), &[0; 48]].concat();
    fs::write(&path, file).expect("the file can be written");
    let arguments = [path.to_str().expect("a plain path"), "--nproc", "2", "--device", "cpu"];
    let printed = run(env!("CARGO_BIN_EXE_pretrained"), &arguments);
    fs::remove_file(&path).expect("the file can be removed");
    for line in [
        "1 loaded, 0 skipped by shape, 3 missing, 0 unexpected",
        "missing: body.bias, head.bias, head.weight",
        "frozen: body.weight, body.bias",
    ] {
        assert!(printed.contains(line), "{printed}");
    }
}

#[test]
fn the_listing_on_device_maps_answers_from_three_places() {
    // Six blocks whose weights are zero, and which add one to each number.
    let (mut entries, mut values) = (Vec::new(), Vec::<u8>::new());
    for block in 0..6 {
        for (name, shape, value) in [
            ("inner.weight", "64,256", 0.0_f32),
            ("inner.bias", "256", 0.0),
            ("outer.weight", "256,64", 0.0),
            ("outer.bias", "64", 1.0),
        ] {
            let sizes = shape.split(',').map(|size| size.parse::<usize>());
            let count: usize = sizes.map(|size| size.expect("a number")).product();
            let start = values.len();
            values.extend(value.to_le_bytes().repeat(count));
            let end = values.len();
            entries.push(format!(
                r#""blocks.{block}.{name}":{{"dtype":"F32","shape":[{shape}],"data_offsets":[{start},{end}]}}"#
            ));
        }
    }
    let entries = entries.join(",");
    let description = format!(r#"{{"__metadata__":{{"producer":"burn"}},{entries}}}"#);
    let length = (description.len() as u64).to_le_bytes();
    let file = [&length[..], description.as_bytes(), &values].concat();
    let path = std::env::temp_dir().join(format!("device-map-{}.safetensors", std::process::id()));
    fs::write(&path, file).expect("the file can be written");
    let printed = run(env!("CARGO_BIN_EXE_device_map"), &[path.to_str().expect("a plain path")]);
    fs::remove_file(&path).expect("the file can be removed");
    for line in [
        "blocks.1: 0\nblocks.2: cpu\nblocks.3: cpu\nblocks.4: disk\n",
        "24 loaded, 0 skipped by shape, 0 missing, 0 unexpected",
        "answer 448.0000",
    ] {
        assert!(printed.contains(line), "{printed}");
    }
}

#[test]
fn the_journal_listing_writes_what_it_says() {
    let printed = run(env!("CARGO_BIN_EXE_journal"), &["--nproc", "2", "--device", "cpu"]);
    let page = printed.split("the curves are in ").nth(1);
    let page = Path::new(page.expect("it names the page").trim());
    let text = fs::read_to_string(page).expect("the page is there");
    assert!(text.contains("A line through points") && text.contains("<tr><td>1</td>"));
    let folder = page.parent().expect("the page is in a folder");
    let log = fs::read_to_string(folder.join("log.jsonl")).expect("the log is there");
    assert_eq!(log.lines().count(), 4);
    fs::remove_dir_all(folder).expect("the folder can be removed");
}

#[test]
fn the_lean_listing_learns_and_resumes() {
    let folder = format!("{}/lean-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let lean = || {
        let args = [folder.as_str(), "--nproc", "2", "--device", "cpu"];
        run(env!("CARGO_BIN_EXE_gradient_compression"), &args)
    };
    let loss = last_loss(&lean());
    assert!(loss < 0.01, "it ends with a loss of {loss}");
    // All steps are done, and saved.
    assert_eq!(lean(), "");
    std::fs::remove_dir_all(&folder).expect("it has left checkpoints");
}

/// An interrupted program saves wherever it is, and ends as one that nobody interrupted, on one rank and on two.
#[test]
fn the_listing_of_a_whole_training_validates_stops_and_resumes() {
    let program = |folder: &Path, ranks: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_resume"));
        command.args(["--nproc", ranks, "--device", "cpu"]).current_dir(folder);
        command
    };
    for ranks in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        let train = |name: &str| {
            let folder = folder.path().join(name);
            fs::create_dir_all(&folder).unwrap();
            program(&folder, ranks)
        };
        let end = |name: &str| {
            let output = train(name).output().expect("the listing exists");
            let printed = String::from_utf8(output.stdout).expect("it prints text");
            let digest = printed.split("parameters ").nth(1).expect("it ends").lines().next();
            assert!(last_loss(&printed) < 1e-3, "{printed}");
            (digest.unwrap().to_owned(), printed.matches("epoch ").count())
        };
        let (uninterrupted, epochs) = end("one");
        assert_eq!(epochs, 50);
        let job = Job::start(&mut train("parts"));
        while !job.next_line().contains("epoch 1 ") {}
        job.signal(Signal::INT);
        job.end_with(130);
        let (resumed, epochs) = end("parts");
        assert_eq!(resumed, uninterrupted, "{ranks} ranks");
        assert!((1..49).contains(&epochs), "{epochs} epochs after the stop");
    }
}

/// Two parts of twenty steps are forty, in the middle of an epoch and with dropout.
#[test]
fn the_listing_on_checkpoints_resumes_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let train = |name: &str, steps: &str| {
        let folder = folder.path().join(name);
        let args = [folder.to_str().unwrap(), steps, "--nproc", "2", "--device", "cpu"];
        let printed = run(env!("CARGO_BIN_EXE_checkpoints"), &args);
        let ends = printed.lines().filter_map(|line| line.split("step ").nth(1));
        let ends: Vec<String> = ends.map(str::to_owned).collect();
        assert!(ends.len() == 2 && ends[0] == ends[1], "{printed}");
        ends[0].clone()
    };
    let whole = train("whole", "40");
    assert!(whole.starts_with("40 of ") && last_loss(&whole) < 0.5, "{whole}");
    assert!(train("parts", "20").starts_with("20 of "));
    assert_eq!(train("parts", "20"), whole);
}

#[test]
fn the_learner_listing_finds_the_line_on_two_ranks() {
    let printed = run(env!("CARGO_BIN_EXE_learner"), &["--nproc", "2", "--device", "cpu"]);
    let weights = printed.lines().filter_map(|line| line.split("weight ").nth(1));
    let weights: Vec<f32> = weights.map(|weight| weight.parse().expect("a number")).collect();
    assert_eq!(weights.len(), 2, "{printed}");
    assert!((weights[0] - 3.0).abs() < 0.1, "{printed}");
    assert_eq!(weights[0], weights[1]);
}

/// Two parts of five epochs are ten.
#[test]
fn the_lean_learner_listing_goes_on_where_it_was() {
    let folder = |name: &str| {
        let (base, id) = (env!("CARGO_TARGET_TMPDIR"), std::process::id());
        format!("{base}/learner-lean-{id}-{name}")
    };
    let train = |folder: &str, from: &str, last: &str| {
        let args = [folder, from, last, "--nproc", "2", "--device", "cpu"];
        let printed = run(env!("CARGO_BIN_EXE_learner_compression"), &args);
        let ends = printed.lines().filter_map(|line| line.split(" of ").nth(1));
        let ends: Vec<String> = ends.map(str::to_owned).collect();
        assert_eq!(ends.len(), 2, "{printed}");
        assert_eq!(ends[0], ends[1], "the ranks differ");
        ends[0].clone()
    };
    let [whole, parts] = [folder("whole"), folder("parts")];
    // 13 batches of 8 samples for each rank in an epoch, the last of 4.
    let at_once = train(&whole, "0", "10");
    let weights = at_once.strip_prefix("130 steps: ").expect(&at_once);
    assert!(train(&parts, "0", "5").starts_with("65 steps: "));
    assert_eq!(train(&parts, "5", "10"), format!("65 steps: {weights}"));
    for folder in [whole, parts] {
        fs::remove_dir_all(&folder).expect("it has left checkpoints");
    }
}

#[test]
fn the_collectives_listing_holds_its_assertions() {
    run(env!("CARGO_BIN_EXE_collectives"), &[]);
}

#[test]
fn the_operations_listing_holds_its_assertions() {
    run(env!("CARGO_BIN_EXE_operations"), &[]);
}

#[test]
fn the_groups_listing_holds_its_assertions() {
    run(env!("CARGO_BIN_EXE_groups"), &[]);
}

#[test]
fn the_plan_listing_prints_the_ring() {
    let printed = run(env!("CARGO_BIN_EXE_schedule"), &[]);
    assert!(printed.starts_with("rounds: 6\n"), "2(n-1) rounds for 4 ranks: {printed}");
    assert!(printed.contains("put"), "{printed}");
}

#[test]
fn the_batch_norm_listing_has_the_same_statistics_on_every_rank() {
    let program = env!("CARGO_BIN_EXE_batch_norm");
    let means = |ranks: usize| -> Vec<f64> {
        let printed = run(program, &["--nproc", &ranks.to_string(), "--device", "cpu"]);
        let ends = printed.lines().filter_map(|line| line.split("running mean ").nth(1));
        let means: Vec<f64> = ends.map(|end| end.parse().expect("a number")).collect();
        assert_eq!(means.len(), ranks, "{printed}");
        means
    };
    let alone = means(1)[0];
    assert!((alone - 49.5).abs() < 0.05, "{alone}");
    for ranks in [2, 3] {
        let means = means(ranks);
        assert!(means.iter().all(|mean| *mean == means[0]), "{means:?}");
        // Every fourth step is without the lowest quarter of the points, whose mean is 12: the others
        // have 62. The mean over the steps, each of which replaces a tenth, lies between.
        assert!(means[0] > 49.5 && means[0] < 62.0, "{means:?}");
    }
}

#[test]
fn the_listing_that_computes_activations_again_trains_the_same_parameters() {
    let program = env!("CARGO_BIN_EXE_activation_checkpointing");
    let launch = ["--nproc", "2", "--device", "cpu"];
    let [nproc, two, device, cpu] = launch;
    let again = run(program, &launch);
    let plain = run(program, &["plain", nproc, two, device, cpu]);
    let end = |printed: &str| printed.split("parameters ").nth(1).map(str::to_owned);
    assert!(end(&again).is_some(), "{again}");
    assert_eq!(end(&again), end(&plain));
    assert!(last_loss(&again) < 0.3, "{again}");
}

#[test]
fn the_listing_that_plans_shows_a_line_for_each_placement() {
    let printed = run(env!("CARGO_BIN_EXE_memory_plan"), &[]);
    // Weight and bias.
    assert!(printed.contains("4.2 million parameters; what each of 8 ranks"), "{printed}");
    for placement in ["replicated", "zero1", "zero2", "zero3"] {
        let line = printed.lines().find(|line| line.starts_with(placement));
        assert!(line.is_some_and(|line| line.ends_with(" yes")), "{printed}");
    }
}
