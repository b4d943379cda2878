//! Ranks that train alone between two exchanges, beside ranks that average every gradient.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::time::Duration;

use bonfire::World;
use bonfire_testkit::Watchdog;
use clap::Parser;
use gpt::corpus::Corpus;
use gpt::options::{Settings, TrainArgs};
use gpt::train::train;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    train: TrainArgs,
}

/// The validation losses of two ranks or four.
fn losses(ranks: u32, more: &str) -> Vec<f64> {
    let _watchdog = Watchdog::start(more, Duration::from_secs(300));
    let folder = tempfile::tempdir().unwrap();
    let sizes = "gpt --layers 2 --heads 2 --width 16 --context 8 --warmup 4 --learning-rate 0.01 --steps 60 \
                 --log-interval 30 --eval-interval 60 --eval-windows 9 --batch 4";
    let words = sizes.split_whitespace().chain(more.split_whitespace());
    let mut settings = Settings::try_from(Line::try_parse_from(words).unwrap().train).unwrap();
    settings.config.report.folder = Some(folder.path().to_owned());
    settings.config.report.run_name = None;
    let corpus = Corpus::new("a text", &"abcdefgh ".repeat(60), 8).unwrap();
    let run = |world: World| train(&world, &settings, &corpus).map(|trained| trained.report);
    let reports = bonfire::spawn(ranks, run).unwrap();
    let digests = reports.iter().map(|report| {
        let mut facts = report.facts.iter();
        facts.find(|(name, _)| name == "parameters").unwrap().1.clone()
    });
    let digests: Vec<_> = digests.collect();
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{more}: the workers differ");
    let points = reports[0].curve("validation_loss").iter();
    points.map(|point| point.value).collect()
}

#[test]
fn ranks_that_train_alone_learn_as_much() {
    let together = losses(2, "");
    let (start, end) = (together[0], together[1]);
    for (ranks, more) in [
        (2, "--local-steps 10"),
        (4, "--local-steps 10 --mesh dp_replicate=2,dp_shard=2 --placement zero1"),
        (2, "--local-steps 10 --fragments 5 --outer-gradients int8"),
    ] {
        let alone = losses(ranks, more);
        let (learnt, would) = (alone[0] - alone[1], start - end);
        assert!(
            would > 1.0 && learnt > 0.8 * would,
            "{more}: {alone:?}, and together {together:?}"
        );
    }
}

#[test]
fn what_is_learnt_in_less_than_a_round_is_kept() {
    for more in ["--local-steps 100", "--local-steps 100 --fragments 3"] {
        let alone = losses(2, more);
        assert!(alone[0] - alone[1] > 0.3, "{more}: {alone:?}");
    }
}
