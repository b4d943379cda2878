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

#[test]
fn nothing_given_means_the_quick_preset() {
    let settings = parse("").unwrap();
    assert_eq!((settings.batch, settings.steps), (6, 600));
    assert_eq!(settings.gradient_route, GradientRoute::Auto);
    assert!(!settings.checkpoint_blocks);
    assert_eq!(settings.reporting.report_dir, None);
    assert_eq!(
        settings.optimizer.to_string(),
        "adamw, betas 0.9 and 0.99, weight decay 0.1, gradient norm at most 1"
    );
}

#[test]
fn the_nanogpt_preset_is_its_cpu_setting() {
    let settings = parse("--preset nanogpt-cpu").unwrap();
    let model = ModelSizes { layers: 4, heads: 4, width: 128, context: 64 };
    assert_eq!(settings.model, model);
    assert_eq!(settings.batch, 12);
    let schedule = Schedule::constant(1e-3)
        .with_warmup(100)
        .with_decay(Decay::Cosine { steps: 1900, final_factor: 0.1 });
    assert_eq!(settings.schedule, schedule);
    let optimizer = OptimizerSettings {
        kind: OptimizerKind::Adamw,
        beta1: 0.9,
        beta2: 0.99,
        weight_decay: 0.1,
        clip: Some(1.0),
    };
    assert_eq!(settings.optimizer, optimizer);
}

#[test]
fn given_values_win_over_the_preset() {
    let settings = parse("--preset nanogpt-cpu --batch 6 --steps 10 --clip 0").unwrap();
    assert_eq!((settings.batch, settings.steps), (6, 10));
    assert_eq!(settings.optimizer.clip, None);
    assert_eq!(settings.schedule.warmup_steps, 100);
}

#[test]
fn bad_values_are_refused_with_the_option_named() {
    let lines = [
        "--layers 0",
        "--heads 0",
        "--width -1",
        "--context 0",
        "--batch none",
        "--steps 0",
        "--learning-rate 0",
        "--learning-rate nan",
        "--final-factor 2",
        "--optimizer adam",
        "--beta1 1",
        "--weight-decay -1",
        "--clip inf",
        "--threads 0",
        "--eval-interval 0",
        "--log-interval 0",
        "--gradient-route wire",
        "--temperature 0",
        "--preset huge",
    ];
    for line in lines {
        let option = line.split_whitespace().next().unwrap();
        let message = parse(line).unwrap_err();
        assert!(message.contains(option), "{line}: {message}");
    }
}

#[test]
fn heads_must_divide_the_width() {
    let message = parse("--width 100 --heads 3").unwrap_err();
    assert!(message.contains("--width 100") && message.contains("--heads 3"), "{message}");
    assert!(parse("--width 100 --heads 5").is_ok());
}

#[test]
fn files_are_for_state_that_can_be_in_files() {
    let folder = |line| parse(line).unwrap().offload_folder;
    assert_eq!(folder("--offload optimizer"), None);
    let given = "--offload optimizer --offload-folder disk";
    assert_eq!(folder(given), Some(PathBuf::from("disk")));
    for (line, named) in [
        ("--offload gradients", "--offload"),
        ("--offload-folder disk", "--offload-folder"),
        ("--offload parameters --optimizer muon", "--optimizer"),
        ("--offload optimizer --optimizer muon", "--optimizer"),
        ("--offload optimizer --optimizer burn-adamw", "--optimizer"),
    ] {
        let message = parse(line).unwrap_err();
        assert!(message.contains(named), "{line}: {message}");
    }
}

#[test]
fn unknown_options_are_refused() {
    assert!(parse("--learning-rat 1").unwrap_err().contains("--learning-rate"));
}
