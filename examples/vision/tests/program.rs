//! The program as its users start it: real processes, real files.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::fs;
use std::path::Path;

use bonfire::World;
use bonfire_testkit::{Signal, read_by_tensorboard};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use common::{Pictures, figure, files, program, run, start, succeeds};
use vision::config::Config;
use vision::weights;

/// The parameters in the newest checkpoint of a run, bit for bit, and the running statistics.
fn newest(out_dir: &Path) -> Vec<u32> {
    let all = files(&out_dir.join("checkpoints")).into_keys();
    let mut models = all.filter(|path| path.ends_with("model.bpk"));
    bits(out_dir, &models.next_back().unwrap())
}

/// Those in a file of a run.
fn bits(out_dir: &Path, file: &Path) -> Vec<u32> {
    struct Bits(Vec<u32>);
    impl ModuleVisitor for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.val().into_data();
            self.0.extend(data.iter::<f32>().map(f32::to_bits));
        }
    }
    let config = Config::load(Some(&out_dir.join("config.yaml")), &[]).unwrap();
    let load = |world: World| {
        let model = config.network().init(1, &world.device());
        let mut bits = Bits(Vec::new());
        weights::load(model, file, &world).map(|model| {
            model.visit(&mut bits);
            bits.0
        })
    };
    bonfire::spawn(1, load).unwrap().remove(0)
}

/// What the journal has written of four epochs of ten steps.
#[track_caller]
fn check_account(out_dir: &Path) {
    let log = log(out_dir);
    let steps = |tag: &str| -> Vec<u64> {
        let lines = log.iter().filter(|line| line.get(tag).is_some());
        lines.map(|line| line["step"].as_u64().unwrap()).collect()
    };
    let every: Vec<u64> = (1..=40).collect();
    for tag in ["loss", "learning_rate", "throughput"] {
        assert_eq!(steps(tag), every, "{tag}");
    }
    for tag in ["test_loss", "test_accuracy", "test_accuracy_top5"] {
        assert_eq!(steps(tag), [10, 20, 30, 40], "{tag}");
    }
    if let Some(scalars) = read_by_tensorboard(out_dir) {
        let losses = scalars.iter().filter(|(tag, ..)| tag == "loss");
        assert_eq!(losses.map(|(_, step, _)| *step).collect::<Vec<_>>(), every);
    }
    let report = fs::read_to_string(out_dir.join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["world_size"], &report["steps"]), (&2.into(), &40.into()));
    let page = fs::read_to_string(out_dir.join("report.html")).unwrap();
    assert!(page.contains("resnet8 on "), "{page}");
}

/// The lines of a run's log.
fn log(out_dir: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(out_dir.join("log.jsonl")).unwrap();
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().unwrap()
}

#[test]
fn two_ranks_learn_and_the_best_is_tested_again() {
    let pictures = Pictures::new(160);
    let out_dir = pictures.out_dir("run");
    let pairs = pictures.pairs(&out_dir, "OPTIM.MAX_EPOCH 4");
    let lines = succeeds("train", 2, &pairs);
    let all = lines.join("\n");
    assert!(all.contains("2 ranks × batch 8 × accumulation 1 = global batch 16"), "{all}");
    assert!(all.contains("resnet8 with"), "{all}");
    assert!(all.contains("TRAIN [1][10/10]") && all.contains("ETA"), "{all}");
    // These lines alone.
    assert!(!all.contains("pictures/s") && !all.contains("test loss"), "{all}");
    let done = lines.iter().find(|line| line.contains("done: ")).unwrap();
    let best = figure(done, "best");
    assert!(best > 60.0, "ten classes were learnt to {best} per cent only: {all}");

    // The saved configuration is the whole configuration.
    let saved = out_dir.join("config.yaml");
    let config = Config::load(Some(&saved), &[]).unwrap();
    assert_eq!(config, Config::load(None, &pairs).unwrap());
    check_account(&out_dir);
    let tested = succeeds("test", 3, &["--cfg".to_owned(), saved.display().to_string()]);
    let line = tested.iter().find(|line| line.contains("Acc@1")).unwrap();
    let last = tested.iter().rfind(|line| line.contains("80 pictures")).unwrap();
    // Printed with three digits.
    assert!((figure(last, "Acc@1") - best).abs() < 2e-3, "{line}\n{last}\n{done}");

    // The file of an epoch, which PyTorch reads, is that network.
    for epoch in 1..=4 {
        let name = format!("weights/model-{epoch}.safetensors");
        let bytes = fs::read(out_dir.join(&name)).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("\"layer1.0.bn1.weight\""), "{name}");
    }
    let file = out_dir.join("weights/model-4.safetensors");
    let pairs = format!("--cfg {} MODEL.WEIGHTS {}", saved.display(), file.display());
    let pairs: Vec<String> = pairs.split(' ').map(str::to_owned).collect();
    let tested = succeeds("test", 1, &pairs).join("\n");
    let of_epoch = lines.iter().find(|line| line.contains("epoch 4 | ")).unwrap();
    let expected = figure(of_epoch, "Acc@1");
    let tested = tested.lines().rfind(|line| line.contains("80 pictures"));
    let found = figure(tested.unwrap(), "Acc@1");
    assert!((found - expected).abs() < 2e-3, "{found} {of_epoch}");
}

/// A kill between the two would leave the file out for ever, and the weights of an earlier epoch as the best.
#[test]
fn an_epoch_is_in_a_checkpoint_only_after_its_weights_are_written() {
    let pictures = Pictures::new(32);
    let out_dir = pictures.out_dir("run");
    let pairs = pictures.pairs(&out_dir, "OPTIM.MAX_EPOCH 2 OPTIM.WARMUP_EPOCHS 1");
    // A folder of that name cannot become the file.
    let file = out_dir.join("weights/model-2.safetensors");
    fs::create_dir_all(file.join("in the way")).unwrap();
    let end = run("train", 1, &pairs);
    assert!(!end.status.success(), "{end:#?}");
    assert!(out_dir.join("weights/model-1.safetensors").is_file());
    fs::remove_dir_all(&file).unwrap();
    let lines = succeeds("train", 1, &pairs).join("\n");
    assert!(lines.contains("resumed after epoch 1") && lines.contains("epoch 2 | "), "{lines}");
    assert!(file.is_file());
}

#[test]
fn a_killed_training_ends_with_the_same_bits() {
    let pictures = Pictures::new(64);
    let more = "OPTIM.MAX_EPOCH 12 OPTIM.WARMUP_EPOCHS 1";
    let [whole, killed] = ["whole", "killed"].map(|name| pictures.out_dir(name));
    succeeds("train", 2, &pictures.pairs(&whole, more));

    let pairs = pictures.pairs(&killed, more);
    let job = start("train", 2, &pairs);
    while !job.next_line().contains("TRAIN [2][1/4]") {}
    job.signal(Signal::KILL);
    let end = job.end();
    assert!(!end.status.success());
    let lines = succeeds("train", 2, &pairs).join("\n");
    assert!(lines.contains("resumed after epoch"), "{lines}");
    assert!(!lines.contains("TRAIN [1]"), "{lines}");
    assert_eq!(newest(&whole), newest(&killed));

    // And once more, when nothing is left to do.
    let again = succeeds("train", 2, &pairs).join("\n");
    assert!(again.contains("all 12 epochs are trained already"), "{again}");
}

/// Ctrl-C once a line with `moment` is there: the ranks stop together, in order, and go on bit for bit.
#[track_caller]
fn check_stop(moment: &str, (training, tests): (usize, usize), is_epoch_end: bool) {
    let pictures = Pictures::of(training, tests);
    let epoch = training / (2 * 8);
    let more = "OPTIM.MAX_EPOCH 3 TEST.BATCH_SIZE 1 TEST.PRINT_FREQ 1";
    let [whole, stopped] = ["whole", "stopped"].map(|name| pictures.out_dir(name));
    succeeds("train", 2, &pictures.pairs(&whole, more));

    let pairs = pictures.pairs(&stopped, more);
    let job = start("train", 2, &pairs);
    while !job.next_line().contains(moment) {}
    job.signal(Signal::INT);
    let end = job.end();
    assert_eq!(end.status.code(), Some(130), "{end:#?}");
    assert_eq!(end.stderr, ["error: interrupted by SIGINT; all ranks have ended"]);
    let line = end.stdout.iter().find(|line| line.contains("stopped after step"));
    let line = line.unwrap_or_else(|| panic!("{end:#?}"));
    assert!(line.ends_with("the same command continues from there"), "{line}");
    let steps = figure(line, "stopped after step") as usize;
    assert_eq!(steps.is_multiple_of(epoch), is_epoch_end, "{line}");
    let checkpoint = format!("checkpoints/step-{steps:09}/manifest.json");
    assert!(stopped.join(checkpoint).exists(), "{:?}", files(&stopped).keys());
    assert!(stopped.join("report.html").exists());

    let lines = succeeds("train", 2, &pairs).join("\n");
    assert!(lines.contains(&format!("at step {steps}")), "{lines}");
    assert_eq!(newest(&whole), newest(&stopped));
    let best = |out_dir: &Path| bits(out_dir, &out_dir.join("best.bpk"));
    assert!(best(&whole) == best(&stopped), "other parameters are the best");
    // Nothing is there twice, and nothing is missing.
    let points = |out_dir: &Path| -> Vec<(u64, bool)> {
        let lines = log(out_dir).into_iter();
        let point = |line: serde_json::Value| {
            (line["step"].as_u64().unwrap(), line.get("test_loss").is_some())
        };
        lines.map(point).collect()
    };
    let (whole, stopped) = (points(&whole), points(&stopped));
    let evaluations = stopped.iter().filter(|(_, is_test)| *is_test);
    assert_eq!((stopped.len(), evaluations.count()), (3 * epoch + 3 * 3, 3));
    assert_eq!(stopped, whole);
}

#[test]
fn ctrl_c_in_an_epoch_keeps_where_it_was() {
    check_stop("TRAIN [2][ 2/40]", (640, 160), false);
}

#[test]
fn ctrl_c_in_an_evaluation_keeps_the_epoch_before_it() {
    check_stop("TEST [  2/320]", (320, 640), true);
}

#[test]
fn a_rank_alone_stops_as_the_signal_says() {
    let pictures = Pictures::new(320);
    let cases = [
        (Signal::INT, 130, "", "stopped after step"),
        (Signal::TERM, 143, "TRAIN.AUTO_RESUME false", "with TRAIN.AUTO_RESUME true"),
    ];
    for (signal, code, more, says) in cases {
        let out_dir = pictures.out_dir(&format!("run-{code}"));
        let job = start("train", 1, &pictures.pairs(&out_dir, more));
        while !job.next_line().contains("TRAIN [1][ 2/40]") {}
        job.signal(signal);
        let end = job.end();
        assert_eq!(end.status.code(), Some(code), "{end:#?}");
        let last = end.stdout.last().unwrap();
        assert!(last.starts_with(says), "{end:#?}");
        assert_eq!(end.stderr, [""; 0]);
    }
}

#[test]
fn a_full_disk_under_the_output_does_not_end_a_training_or_a_test() {
    let pictures = Pictures::new(32);
    let out_dir = pictures.out_dir("run");
    let pairs = pictures.pairs(&out_dir, "OPTIM.MAX_EPOCH 2");
    for command in ["train", "test"] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let end = program(command, &pairs).stdout(full).output().unwrap();
        assert!(end.status.success(), "{command}: {}", String::from_utf8_lossy(&end.stderr));
    }
    assert!(out_dir.join("weights/model-2.safetensors").is_file());
}

#[test]
fn a_drawn_seed_is_also_that_of_the_run_that_continues() {
    let pictures = Pictures::new(32);
    let out_dir = pictures.out_dir("run");
    let run = |epochs: u32| {
        let more = format!("RNG_SEED null OPTIM.MAX_EPOCH {epochs}");
        let lines = succeeds("train", 2, &pictures.pairs(&out_dir, &more)).join("\n");
        figure(&lines, "; seed") as u64
    };
    let seed = run(1);
    assert_eq!(run(2), seed);
    let saved = Config::load(Some(&out_dir.join("config.yaml")), &[]).unwrap();
    assert_eq!(saved.rng_seed, Some(seed));
}

/// Steps are counted on, whoever does them: otherwise an older checkpoint would seem the newest.
#[test]
fn fewer_steps_in_an_epoch_do_not_bring_back_an_older_checkpoint() {
    let pictures = Pictures::new(64);
    let out_dir = pictures.out_dir("run");
    let epochs = |count: u32| pictures.pairs(&out_dir, &format!("OPTIM.MAX_EPOCH {count}"));
    succeeds("train", 1, &epochs(2));
    succeeds("train", 2, &epochs(3));
    let again = succeeds("train", 2, &epochs(3)).join("\n");
    // Twice eight steps, then four.
    assert!(again.contains("resumed after epoch 3, at step 20"), "{again}");
    assert!(again.contains("all 3 epochs are trained already"), "{again}");
}

/// Unoptimised, a rank moves its network through many frames of the stack; each rank has some megabytes of it.
#[test]
fn a_network_of_many_layers_does_not_overflow_the_stack() {
    let pictures = Pictures::of(32, 16);
    let out_dir = pictures.out_dir("dense");
    let more = "MODEL.ARCH densenet121 TRAIN.IM_SIZE 32 TEST.IM_SIZE 32 OPTIM.MAX_EPOCH 1";
    let lines = succeeds("train", 2, &pictures.pairs(&out_dir, more));
    let begin = lines.iter().any(|line| line.contains("densenet121 with"));
    assert!(begin && lines.iter().any(|line| line.contains("done: ")), "{lines:#?}");
}
