//! Each tutorial runs, does what it says, and is short.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;
use std::path::Path;
use std::process::Command;

use bonfire_testkit::OwnPort;

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn tutorial(program: &str, arguments: &[&str]) -> String {
    run(Command::new(program).args(arguments))
}

/// The numbers after a word.
fn after(printed: &str, word: &str) -> Vec<f64> {
    let ends = printed.split(word).skip(1);
    let number = |rest: &str| {
        let text: String =
            rest.trim_start().chars().take_while(|c| "0123456789.".contains(*c)).collect();
        text.parse().unwrap()
    };
    ends.map(number).collect()
}

#[test]
fn none_is_longer_than_eighty_lines() {
    for file in fs::read_dir("src/bin").unwrap() {
        let path = file.unwrap().path();
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 80, "{}: {lines} lines", path.display());
    }
}

#[test]
fn spawned_ranks_add_their_numbers() {
    assert_eq!(tutorial(env!("CARGO_BIN_EXE_spawn"), &[]).matches(": 3").count(), 2);
}

#[test]
fn a_program_is_its_own_launcher() {
    let printed = tutorial(env!("CARGO_BIN_EXE_launch"), &["--nproc", "2", "--device", "cpu"]);
    let losses = after(&printed, "mean loss");
    assert_eq!(losses.len(), 10, "{printed}");
    assert!(losses[9] < losses[0] && printed.contains("on 2 ranks"), "{printed}");
}

#[test]
fn variables_of_another_launcher_make_it_a_rank() {
    let own_port = OwnPort::new();
    let port = own_port.to_string();
    let rank = |variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_launch"));
        command.args(["--device", "cpu"]).envs(variables.iter().copied());
        command
    };
    // env://
    let env = |rank_: &'static str| {
        let of_all =
            [("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str())];
        let of_one = [("RANK", rank_), ("LOCAL_RANK", rank_), ("LOCAL_WORLD_SIZE", "2")];
        rank(&[&of_all[..], &of_one].concat())
    };
    let mut other = env("1").spawn().unwrap();
    let printed = run(&mut env("0"));
    assert!(other.wait().unwrap().success());
    assert!(printed.contains("on 2 ranks"), "{printed}");
    // Slurm's, for a job of one task.
    let slurm = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "1"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NODELIST", "localhost"),
        ("SLURM_STEP_NODELIST", "localhost"),
        ("SLURM_STEP_TASKS_PER_NODE", "1"),
        ("SLURM_NTASKS_PER_NODE", "1"),
    ];
    let printed = run(&mut rank(&slurm));
    assert!(printed.contains("on 1 ranks"), "{printed}");
}

#[test]
fn eleven_samples_are_distributed_to_two_ranks() {
    let printed = tutorial(env!("CARGO_BIN_EXE_sampler"), &[]);
    for row in [
        "rank 0: pad [0, 2, 4, 6, 8, 10] drop [0, 2, 4, 6, 8] exact [0, 2, 4, 6, 8, 10]",
        "rank 1: pad [1, 3, 5, 7, 9, 0] drop [1, 3, 5, 7, 9] exact [1, 3, 5, 7, 9]",
    ] {
        assert!(printed.contains(row), "{printed}");
    }
}

#[test]
fn devices_and_ranks_learn_alike() {
    let printed = tutorial(env!("CARGO_BIN_EXE_data_parallel"), &[]);
    let one = after(&printed, "loss")[0];
    for way in ["outputs,", "devices,"] {
        let other = after(&printed, way)[0];
        assert!((one - other).abs() <= 1e-4 * one, "{printed}");
    }
}

/// As PyTorch's tutorial prints them: three batches of 30 and one of 10, each on two devices.
#[test]
fn devices_see_halves_and_the_program_whole_batches() {
    let printed = tutorial(env!("CARGO_BIN_EXE_data_parallel"), &[]);
    let lines: Vec<&str> = printed.lines().map(str::trim).collect();
    let steps = lines.chunks(3).take(4);
    for (step, samples) in steps.zip([30, 30, 30, 10]) {
        let half = samples / 2;
        let inside = format!("In Model: input size [{half}, 5] output size [{half}, 2]");
        let outside = format!("Outside: input size [{samples}, 5] output_size [{samples}, 2]");
        assert_eq!(step, [&inside, &inside, &outside], "{printed}");
    }
    assert_eq!(lines.len(), 4 * 3 + 1, "{printed}");
}

#[test]
fn batch_norm_is_synchronised_and_layers_are_frozen() {
    for flags in [&[][..], &["--sync-bn"], &["--sync-bn", "--freeze"]] {
        let arguments = [&["--nproc", "2", "--device", "cpu"], flags].concat();
        let printed = tutorial(env!("CARGO_BIN_EXE_sync_batch_norm"), &arguments);
        assert!(after(&printed, "loss")[0] < after(&printed, "first")[0], "{flags:?}: {printed}");
    }
}

#[test]
fn accelerates_form_learns() {
    let loss = |epochs: &str| {
        let arguments =
            ["--nproc", "2", "--device", "cpu", "batch.micro=4", "optimizer.lr=0.01", epochs];
        after(&tutorial(env!("CARGO_BIN_EXE_accelerate"), &arguments), "validation loss")[0]
    };
    assert!(loss("epochs=20") < 0.5 * loss("epochs=1"));
}

#[test]
fn the_json_of_the_deepspeed_tutorial_runs_unchanged() {
    let file = ["--deepspeed", "--deepspeed_config", "ds_config.json"];
    let arguments = [&["--nproc", "2", "--device", "cpu"], &file[..], &["epochs=30"]].concat();
    let printed = tutorial(env!("CARGO_BIN_EXE_deepspeed"), &arguments);
    let losses = after(&printed, ": loss");
    // A loss is of two samples: only many of them tell.
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(losses.len() >= 25, "{losses:?}");
    assert!(mean(&losses[20..]) < 0.7 * mean(&losses[..5]), "{losses:?}");
    // fp16: the loss is scaled by a power of 2.
    let scale = after(&printed, "loss scale")[0];
    assert!(scale > 1.0 && scale.log2().fract() == 0.0, "{printed}");
    // Stage 3: each rank has half of the two large matrices, and all of what is small.
    let held = after(&printed, "rank 0 holds")[0];
    let (large, small) = (10 * 200 + 200 * 200, 2 * 200 + 200 * 5 + 5);
    assert_eq!(held, f64::from(large / 2 + small), "{printed}");
    // Both offloads, and activations that wait on the host: on the CPU, host memory is where all that is anyway. Offloaded
    // into files, as 64 KiB and more of a rank's rows are, the training is the same.
    let file = fs::read_to_string("ds_config.json").unwrap();
    for key in ["offload_param", "offload_optimizer", "cpu_checkpointing"] {
        assert!(file.contains(key), "{key}");
    }
    let folder = std::env::temp_dir().join(format!("tutorials-{}", std::process::id()));
    let files = ["offload.optimizer", "offload.parameters"];
    let files = files.map(|key| format!("{key}={}", folder.display()));
    let words = [&files[0][..], &files[1], "epochs=2"];
    let in_files = tutorial(env!("CARGO_BIN_EXE_deepspeed"), &[&arguments[..], &words].concat());
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(losses[..2], after(&in_files, ": loss"));
}

/// Each process has both layers, and half of the batch.
#[test]
fn layers_on_two_devices_learn_in_one_process_and_in_two() {
    let trained = |ranks: usize| {
        let arguments = ["--nproc", &ranks.to_string(), "--device", "cpu"];
        let printed = tutorial(env!("CARGO_BIN_EXE_model_parallel"), &arguments);
        let digests = printed.lines().filter_map(|line| line.split("parameters ").nth(1));
        let digests: Vec<&str> = digests.collect();
        assert_eq!(digests.len(), ranks, "{printed}");
        assert!(digests.iter().all(|digest| *digest == digests[0]), "{printed}");
        let (last, first) = (after(&printed, ": loss")[0], after(&printed, "first")[0]);
        assert!(last < 0.5 * first, "{printed}");
        (first, last)
    };
    let (one, two) = (trained(1), trained(2));
    for (one, two) in [(one.0, two.0), (one.1, two.1)] {
        assert!((one - two).abs() <= 1e-4 * one, "{one} and {two}");
    }
}

#[test]
fn all_stages_of_zero_give_the_same_parameters() {
    let printed = tutorial(env!("CARGO_BIN_EXE_zero"), &[]);
    let digests: Vec<&str> =
        printed.lines().filter_map(|line| line.split("parameters ").nth(1)).collect();
    assert_eq!(digests.len(), 4, "{printed}");
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{printed}");
}

/// Each as the pages say it, from the root of the repository.
#[test]
fn commands_of_the_pages_run() {
    let launch = Path::new(env!("CARGO_BIN_EXE_launch"));
    let mut count = 0;
    for line in bonfire_testkit::command_lines() {
        if line.words[0] == "cargo" && line.value("-p") == Some("tutorials") {
            let program = launch.with_file_name(line.value("--bin").unwrap());
            run(Command::new(program).args(line.behind_dashes()).current_dir("../.."));
            count += 1;
        }
    }
    assert!(count > 8, "the pages have {count} commands");
}
