//! What the command line takes, what it refuses, and what it says then.

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    train: TrainArgs,
}

fn parse(line: &str) -> Result<Settings, String> {
    let words = std::iter::once("gpt").chain(line.split_whitespace());
    let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    Settings::try_from(line.train).map_err(|error| error.to_string())
}

/// The configuration of a line, where it differs from that of another.
fn changed(line: &str, from: &str) -> Vec<String> {
    let resolved = |line| parse(line).unwrap().config.resolved();
    let pairs = resolved(line).into_iter().zip(resolved(from));
    let others = pairs.filter(|(one, other)| one.value != other.value);
    others.map(|(one, _)| format!("{}={}", one.path, one.value)).collect()
}

#[test]
fn nothing_given_means_the_quick_preset() {
    let Settings { args, config } = parse("").unwrap();
    assert_eq!((config.batch.micro, config.steps), (Some(6), Some(600)));
    assert_eq!((config.optimizer.betas, config.clip.norm), (Some((0.9, 0.99)), Some(1.0)));
    assert_eq!(config.optimizer.no_decay, ["gamma"]);
    assert!(!args.checkpoint_blocks);
    assert_eq!(config.report.folder, Some("runs".into()));
    assert_eq!(config.report.run_name.as_deref(), Some("gpt"));
}

#[test]
fn the_nanogpt_preset_is_its_cpu_setting() {
    let Settings { args, config } = parse("--preset nanogpt-cpu").unwrap();
    let model = GptConfig {
        vocabulary: 65,
        layers: 4,
        heads: 4,
        width: 128,
        context: 64,
        checkpoint_blocks: false,
    };
    assert_eq!(args.model(65), model);
    assert_eq!(config.batch.micro, Some(12));
    let rates = config.rates(2000);
    let close = |step, rate: f64| assert!((rates(step) - rate).abs() < 1e-9, "{}", rates(step));
    close(0, 1e-3 / 101.0);
    close(100, 1e-3);
    close(2000, 1e-4);
}

#[test]
fn each_option_is_a_key() {
    for (line, keys) in [
        ("--batch 4 --steps 10", &["batch.micro=4", "steps=10"][..]),
        ("--clip 0", &["clip.norm=null"]),
        ("--optimizer sgd", &["optimizer.kind=\"sgd\"", "optimizer.momentum=0.9"]),
        ("--schedule zb-h1", &["pipeline.schedule=\"zb_h1\""]),
        ("--local-steps 5", &["diloco.local_steps=5", "mesh=\"dp_replicate=-1\""]),
        ("--offload optimizer", &["offload.optimizer=\"memory\""]),
        ("--offload parameters --offload-folder disk", &["offload.parameters=\"disk\""]),
        ("--report-dir out", &["report.folder=\"out\"", "report.run_name=null"]),
        ("--steps 10 steps=20", &["steps=20"]),
    ] {
        let mut expected = keys.to_vec();
        expected.sort_unstable();
        let mut found = changed(line, "");
        found.sort_unstable();
        assert_eq!(found, expected, "{line}");
    }
    let piped = "--batch 16 --mesh pp=2";
    let batch = parse(piped).unwrap().config.batch;
    assert_eq!((batch.micro, batch.accumulation), (Some(2), Some(8)));
}

#[test]
fn a_size_that_nobody_can_allocate_does_not_panic() {
    for option in ["--layers", "--heads", "--width", "--context", "--batch"] {
        for size in ["65537", "100000000000", "4611686018427387904", "18446744073709551615"] {
            let words = ["gpt", option, size];
            let error = Line::try_parse_from(words).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{words:?}");
            let message = error.to_string();
            assert!(message.contains(option) && message.contains("65536"), "{message}");
        }
        Line::try_parse_from(["gpt", option, "65536"]).unwrap();
    }
}

#[test]
fn bad_values_are_refused_with_their_name() {
    for (line, name) in [
        ("--layers 0", "--layers"),
        ("--width -1", "--width"),
        ("--batch none", "--batch"),
        ("--steps 0", "steps"),
        ("--learning-rate nan", "optimizer.lr"),
        ("--optimizer adamax", "optimizer.kind"),
        ("--clip inf", "clip.norm"),
        ("--threads 0", "--threads"),
        ("--threads 1025", "--threads"),
        ("--gradient-route wire", "gradients.route"),
        ("--temperature 0", "--temperature"),
        ("--preset huge", "--preset"),
        ("--width 100 --heads 3", "--heads 3"),
        ("--batch 8 --micro-batches 3", "--batch 8 cannot be cut into 3"),
        ("--offload gradients", "--offload"),
        ("--learning-rat 1", "--learning-rate"),
    ] {
        let message = parse(line).unwrap_err();
        assert!(message.contains(name), "{line}: {message}");
    }
}
