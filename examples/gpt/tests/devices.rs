//! The program on a machine with the devices that it is asked for, and on one without.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;

use bonfire_testkit::Job;

/// One line, before any rank is started, of what is missing.
#[test]
fn a_missing_device_is_named_in_one_line() {
    for flags in ["--nproc 1", "--nproc 1000", "--nproc 2 --oversubscribe"] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpt"));
        command.args(flags.split(' '));
        command.args(["--device", "cuda", "--steps", "1", "--report-dir"]);
        command.arg(folder.path());
        let end = Job::start(&mut command).end();
        if end.status.success() {
            println!("skipped {flags}: this machine has CUDA devices");
            continue;
        }
        let [line] = &end.stderr[..] else {
            panic!("{flags}: {:?}", end.stderr);
        };
        assert!(line.starts_with("error: "), "{line}");
        assert!(line.to_lowercase().contains("cuda"), "{line}");
        assert_eq!(end.stdout, [""; 0], "{flags}");
    }
}

/// Not silently on another.
#[test]
fn a_way_of_gradients_that_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpt"));
    command.args(["--nproc", "2", "--device", "cpu", "--steps", "1"]);
    command.args(["--gradient-route", "device", "--report-dir"]);
    command.arg(folder.path());
    let end = Job::start(&mut command).end();
    assert!(!end.status.success(), "{:?}", end.stderr);
    let says = "gradients cannot be sent from device to device, as GradientRoute::Device asks: ";
    let said = end.stderr.iter().any(|line| line.contains(says));
    assert!(said, "{:?}", end.stderr);
}

/// On CUDA devices, compared with the CPU. A stand-in for the driver will do.
#[cfg(feature = "cuda")]
mod cuda {
    use std::fs;
    use std::path::Path;
    use std::process::Command;
    use std::time::Duration;

    use bonfire_testkit::Job;

    /// Of one training: minutes, where all kernels have yet to be compiled and the machine is busy.
    const LIMIT: Duration = Duration::from_secs(500);

    /// Of every step on all ranks together, and of every evaluation.
    const WINDOWS: usize = 4;
    const CONTEXT: usize = 8;
    const STEPS: usize = 12;
    const LEARNING_RATE: f64 = 0.01;

    /// What a training came to.
    struct Training {
        /// The loss of each step, over all ranks.
        losses: Vec<f64>,
        /// Before the first step, and after the last.
        validation: [f64; 2],
        parameters: f64,
        log: String,
    }

    /// The same training, whatever the number of ranks; `None` where there is no such device.
    fn trained(
        folder: &Path,
        (device, options): (&str, &str),
        (ranks, devices): (usize, usize),
    ) -> Option<Training> {
        let text = folder.join("text");
        fs::write(&text, "abcdefgh ".repeat(60)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpt"));
        command.args(["--nproc", &ranks.to_string(), "--device", device]);
        if device == "cuda" {
            command.arg("--oversubscribe");
        }
        command.args(options.split_whitespace());
        // Ranks of a mesh without `dp` have the same windows.
        let batch = if options.contains("--mesh") { WINDOWS } else { WINDOWS / ranks };
        let sizes = format!(
            "--layers 1 --heads 2 --width 16 --context {CONTEXT} --batch {batch} --steps {STEPS} \
             --learning-rate {LEARNING_RATE} --warmup 2 --log-interval 1 --eval-interval {STEPS} \
             --eval-windows {WINDOWS} --sample 0"
        );
        command.args(sizes.split_whitespace());
        command.arg("--data").arg(text);
        command.arg("--report-dir").arg(folder);
        command.env("BONFIRE_LOG", "info");
        // Of a stand-in; of others there are as many as there are.
        command.env("CUDA_STAND_IN_DEVICES", devices.to_string());
        let end = Job::start_for(&mut command, LIMIT).end();
        let missing = |line: &&String| line.contains("cannot train on cuda: ");
        if let Some(line) = end.stderr.iter().find(missing) {
            println!("skipped: {line}");
            return None;
        }
        assert!(end.status.success(), "{:?}", end.stderr);
        let report = fs::read_to_string(folder.join("report.json")).unwrap();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let named = |list: &str, is_it: &dyn Fn(&serde_json::Value) -> bool| {
            let found = report[list].as_array().unwrap().iter().find(|one| is_it(one));
            found.unwrap().clone()
        };
        let curve = |tag: &str| -> Vec<f64> {
            let curve = named("curves", &|curve| curve["tag"] == tag);
            let points = curve["points"].as_array().unwrap().iter();
            points.map(|point| point["value"].as_f64().unwrap()).collect()
        };
        let parameters = named("facts", &|fact| fact[0] == "model");
        Some(Training {
            losses: curve("loss"),
            validation: curve("validation_loss").try_into().unwrap(),
            parameters: {
                let words = parameters[1].as_str().unwrap();
                words.split(' ').next().unwrap().parse().unwrap()
            },
            log: end.stderr.join("\n"),
        })
    }

    /// Embedding, layer norm, attention with its softmax, and the cross entropy: one rank, two on one device, and
    /// two on devices of their own where there are two; with gradients on their devices and through the host, with
    /// the optimizer, and parameters, on the host, and with rows and parts of layers on their devices.
    #[test]
    fn cuda_losses_are_those_of_the_cpu() {
        let folder = tempfile::tempdir().unwrap();
        let trained = |kind, layout| trained(folder.path(), kind, layout);
        let cpu = trained(("cpu", ""), (1, 1)).unwrap();
        assert!(cpu.validation[1] < cpu.validation[0] - 0.5, "it learns");
        // The mean over all characters, each loss a few roundings away from exact.
        let rounding = 3.0 * (WINDOWS * CONTEXT) as f64 * f64::from(f32::EPSILON);
        // By Adam's normalisation such an error in a tiny gradient may change the parameter's move, at most the
        // learning rate, entirely. That changes the loss by the gradient times the move, in each step so far.
        let trained_apart = STEPS as f64 * LEARNING_RATE * cpu.parameters * rounding;
        let by_host = "--gradient-route host";
        for (options, layout) in [
            ("", (1, 1)),
            ("", (2, 1)),
            ("", (2, 2)),
            (by_host, (2, 1)),
            ("--offload optimizer", (2, 1)),
            ("--offload parameters --placement zero3", (1, 1)),
            ("--offload parameters --placement zero3", (2, 1)),
            ("--placement zero1", (2, 2)),
            ("--placement zero3 --checkpoint-blocks", (2, 2)),
            ("--mesh tp=2", (2, 2)),
            ("--mesh cp=2", (2, 2)),
        ] {
            let Some(cuda) = trained(("cuda", options), layout) else {
                return;
            };
            let case = format!("{options}, {layout:?}");
            let says = "gradients are sent from device to device";
            let said = cuda.log.contains(says);
            let is_elsewhere = options == by_host || options.contains("--offload parameters");
            assert_eq!(said, !is_elsewhere, "{case}: {}", cuda.log);
            // Parts of layers, and of sequences; the norm of replicas takes the same way.
            let tensors = cuda.log.contains("tensors are sent from device to device");
            assert!(tensors || !options.contains("--mesh"), "{case}: {}", cuda.log);
            let apart = |one: f64, other: f64| (one - other).abs();
            let untrained = apart(cpu.validation[0], cuda.validation[0]);
            assert!(untrained <= rounding, "{case}: {untrained}");
            assert_eq!(cuda.losses.len(), STEPS);
            let steps = cpu.losses.iter().zip(&cuda.losses);
            let most = steps
                .fold(apart(cpu.validation[1], cuda.validation[1]), |most, (one, other)| {
                    most.max(apart(*one, *other))
                });
            println!("{case}: untrained {untrained:e}, trained {most:e} apart");
            assert!(most <= trained_apart, "{case}: {most} > {trained_apart}");
        }
    }
}
