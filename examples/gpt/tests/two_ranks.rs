//! The whole example on two ranks: threads of this process, each with a small model.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::collections::BTreeSet;
use std::path::Path;
use std::process::abort;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use bonfire::World;
use bonfire::report::Report;
use clap::Parser;
use gpt::corpus::Corpus;
use gpt::options::{Settings, TrainArgs};
use gpt::train::train;

/// Far beyond what the smallest training takes on a busy machine.
const WATCHDOG: Duration = Duration::from_secs(300);

/// The width of a model whose matrices are cut into rows: from 1024 elements on, and there are 9 letters outside of the
/// blocks.
const CUT_WIDTH: usize = 128;
const _: () = assert!(9 * CUT_WIDTH >= 1024);

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    train: TrainArgs,
}

/// A short training that keeps its files in `folder`.
fn settings(more: &str, folder: &Path) -> Settings {
    let sizes = "gpt --layers 1 --heads 2 --width 16 --context 8 --warmup 2 --learning-rate 0.01 \
                 --steps 40 --log-interval 10 --eval-interval 20 --eval-windows 9";
    let words = sizes.split_whitespace().chain(more.split_whitespace());
    let mut settings = Settings::try_from(Line::try_parse_from(words).unwrap().train).unwrap();
    settings.config.report.folder = Some(folder.to_owned());
    settings.config.report.run_name = None;
    settings
}

fn corpus() -> Corpus {
    Corpus::new("a text", &"abcdefgh ".repeat(60), 8).unwrap()
}

/// Trains on `ranks` ranks and returns every rank's report; ends the process when that hangs.
fn reports(ranks: u32, settings: &Settings) -> Vec<Report> {
    let (done, watched) = channel::<()>();
    let watchdog = thread::spawn(move || {
        if watched.recv_timeout(WATCHDOG) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{ranks} ranks are still training after {WATCHDOG:?}");
            abort();
        }
    });
    let corpus = corpus();
    let run = |world: World| train(&world, settings, &corpus).map(|trained| trained.report);
    let reports = bonfire::spawn(ranks, run).unwrap();
    drop(done);
    watchdog.join().unwrap();
    reports
}

fn losses(report: &Report) -> Vec<f64> {
    let points = report.curve("loss").iter();
    let points = points.chain(report.curve("validation_loss"));
    points.map(|point| point.value).collect()
}

/// The hash of the parameters that a rank has in the end.
fn parameters(report: &Report) -> &str {
    let facts = report.facts.iter();
    let (_, digest) = facts.rev().find(|(name, _)| name == "parameters").unwrap();
    digest
}

#[test]
fn blocks_that_are_computed_again_end_with_the_same_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let run = |more: &str| {
        let mut settings = settings(more, folder.path());
        settings.config.steps = Some(6);
        settings.args.layers = 3;
        let reports = reports(2, &settings);
        (parameters(&reports[0]).to_owned(), losses(&reports[0]))
    };
    assert_eq!(run("--batch 2 --checkpoint-blocks"), run("--batch 2"));
}

#[test]
fn equal_settings_end_with_equal_parameters_on_every_rank() {
    let folder = tempfile::tempdir().unwrap();
    let run = |more: &str| {
        let mut settings = settings(more, folder.path());
        settings.config.steps = Some(6);
        let reports = reports(2, &settings);
        assert_eq!(parameters(&reports[0]), parameters(&reports[1]));
        parameters(&reports[0]).to_owned()
    };
    let first = run("--batch 2");
    assert_eq!(first.len(), 64, "{first}");
    assert_eq!(first, run("--batch 2"));
    assert_ne!(first, run("--batch 2 --seed 4"));
}

#[test]
fn every_placement_ends_with_the_same_parameters() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in [1, 2, 3] {
        let run = |placement: &str| {
            let more = format!("--batch 2 --placement {placement}");
            let mut settings = settings(&more, folder.path());
            settings.config.steps = Some(6);
            settings.args.width = CUT_WIDTH;
            let reports = reports(ranks, &settings);
            let all = reports.iter().map(|report| (parameters(report).to_owned(), losses(report)));
            all.collect::<Vec<_>>()
        };
        let replicated = run("replicated");
        for placement in ["zero1", "zero2", "zero3", "zero3 --checkpoint-blocks"] {
            assert_eq!(run(placement), replicated, "{placement} on {ranks} ranks");
        }
        let replicated = run("replicated --optimizer muon");
        for placement in ["zero1-whole", "zero2-whole"] {
            let muon = run(&format!("{placement} --optimizer muon"));
            assert_eq!(muon, replicated, "{placement} on {ranks} ranks");
        }
    }
}

#[test]
fn optimizers_end_with_different_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let run = |optimizer: &str| {
        let more = format!("--batch 2 --optimizer {optimizer}");
        let mut settings = settings(&more, folder.path());
        settings.config.steps = Some(6);
        let reports = reports(2, &settings);
        assert_eq!(parameters(&reports[0]), parameters(&reports[1]));
        parameters(&reports[0]).to_owned()
    };
    let all = ["adamw", "sgd", "lion", "muon"].map(run);
    let distinct: BTreeSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len(), "{all:?}");
}

#[test]
fn files_instead_of_memory_end_with_the_same_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let what = [
        ("optimizer", ["replicated", "zero1", "zero3"]),
        ("parameters", ["replicated", "zero3", "hybrid"]),
    ];
    for (optimizer, (what, placements)) in ["adamw", "sgd", "lion"]
        .into_iter()
        .flat_map(|optimizer| what.map(|what| (optimizer, what)))
    {
        let files = format!("--offload {what} --offload-folder {}", folder.path().display());
        for placement in placements {
            let run = |offload: &str| {
                let more = format!("--batch 2 --optimizer {optimizer} --placement {placement}");
                let mut settings = settings(&format!("{more} {offload}"), folder.path());
                settings.config.steps = Some(2);
                // Matrices of 64 KiB and more, of which each rank has half.
                settings.args.width = 192;
                parameters(&reports(2, &settings)[0]).to_owned()
            };
            assert_eq!(run(&files), run(""), "{what}, {optimizer}, {placement}");
        }
    }
}

#[test]
fn two_ranks_learn_a_repeating_text() {
    let folder = tempfile::tempdir().unwrap();
    let reports = reports(2, &settings("--batch 4 --peak-flops 1e12", folder.path()));
    let [main, other] = &reports[..] else { panic!("two ranks report") };
    let validation = main.curve("validation_loss");
    let (first, last) = (validation[0].value, validation[2].value);
    assert!(last < 0.5 * first, "validation loss fell from {first} to {last} only");
    assert_eq!(losses(main), losses(other), "the losses are means over ranks");
    assert_eq!((main.samples_per_step, main.steps), (8 * 8, 40));
    let steps = |tag| -> Vec<u64> { main.curve(tag).iter().map(|point| point.step).collect() };
    assert_eq!(steps("loss"), [10, 20, 30, 40]);
    assert_eq!(steps("validation_loss"), [0, 20, 40]);
    let text = main.to_string();
    let of_peak = |line: &str| line.ends_with(" % of 1.0 TFLOP/s");
    assert!(
        text.lines().any(|line| line.starts_with("model FLOPs utilisation") && of_peak(line)),
        "{text}"
    );
    assert!(main.samples_per_second > 0.0 && main.ranks[0].training() < main.total);
    let log = std::fs::read_to_string(folder.path().join("log.jsonl")).unwrap();
    assert_eq!(log.lines().count(), 4 + 3);
}

#[test]
fn passes_in_16_bits_learn_what_those_in_32_do() {
    let folder = tempfile::tempdir().unwrap();
    let run = |precision: &str| {
        let more = format!("--batch 4 --precision {precision}");
        losses(&reports(2, &settings(&more, folder.path()))[0])
    };
    let full = run("f32");
    let (first, last) = (full[4], full[6]);
    assert!(last < 0.5 * first, "validation loss fell from {first} to {last} only");
    for precision in ["bf16", "f16"] {
        let found = run(precision);
        assert_ne!(found, full, "{precision} is not f32");
        assert!((found[6] - last).abs() < 0.1, "{precision}: {found:?}, {full:?}");
    }
}

#[test]
fn worlds_of_any_size_train_alike_on_the_same_global_batch() {
    // Before the first update only the order of summation differs: a mean over 9 windows of 8
    // characters, each loss a few roundings away from exact.
    let untrained_tolerance = 72.0 * f64::from(f32::EPSILON) * 3.0;
    // An update moves a parameter by at most the learning rate, and by Adam's normalisation a
    // rounding error in a tiny gradient may change that move entirely; 40 updates stay within a
    // tenth of a nat all the same, far below the two nats that are learnt.
    let trained_tolerance = 0.1;
    let folder = tempfile::tempdir().unwrap();
    let train = |ranks, batch: u32| {
        let settings = settings(&format!("--batch {batch}"), folder.path());
        losses(&reports(ranks, &settings)[0])
    };
    let alone = train(1, 12);
    for (ranks, batch) in [(2, 6), (3, 4), (4, 3)] {
        let together = train(ranks, batch);
        assert_eq!(alone.len(), together.len());
        let untrained = 4;
        assert!(
            (alone[untrained] - together[untrained]).abs() < untrained_tolerance,
            "{ranks} ranks: untrained validation loss {} against {}",
            together[untrained],
            alone[untrained]
        );
        for (alone, together) in alone.iter().zip(&together) {
            assert!(
                (alone - together).abs() < trained_tolerance,
                "{ranks} ranks: {together} against {alone}"
            );
        }
    }
}
