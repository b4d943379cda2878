//! Training over meshes: ranks have some layers each of a small model, or parts of all of them. They are threads of this
//! process, or processes of which one is killed.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bonfire::World;
use bonfire::report::Report;
use bonfire_testkit::{Job, Signal, Watchdog, signal_process, some};
use clap::Parser;
use gpt::corpus::Corpus;
use gpt::options::{Settings, TrainArgs};
use gpt::train::train;

/// Far beyond what the smallest training takes on a busy machine.
const WATCHDOG: Duration = Duration::from_secs(300);

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    train: TrainArgs,
}

/// The last of two values of an option counts. Halves of the matrices are large enough to be cut into rows.
fn settings(more: &str, folder: &Path) -> Settings {
    let defaults = "--layers 4 --heads 2 --width 64 --context 8 --warmup 2 --learning-rate 0.01 --steps 6 \
                    --log-interval 2 --eval-interval 3 --eval-windows 9 --batch 8 --micro-batches 4";
    let defaults: Vec<_> = defaults.split_whitespace().collect();
    let defaults = defaults.chunks(2).filter(|option| !more.contains(&format!("{} ", option[0])));
    let words = ["gpt"].into_iter().chain(defaults.flatten().copied());
    let words = words.chain(more.split_whitespace());
    let mut settings = Settings::try_from(Line::try_parse_from(words).unwrap().train).unwrap();
    settings.config.report.folder = Some(folder.to_owned());
    settings.config.report.run_name = None;
    settings
}

fn corpus() -> Corpus {
    Corpus::new("a text", &"abcdefgh ".repeat(60), 8).unwrap()
}

/// What all ranks come to: the hash of the parameters, and the losses.
fn trained(ranks: u32, more: &str) -> Result<(String, Vec<f64>), String> {
    Ok(run(ranks, more)?.1)
}

/// The hash of the parameters at the start, and what all ranks come to.
fn run(ranks: u32, more: &str) -> Result<(String, (String, Vec<f64>)), String> {
    let _watchdog = Watchdog::start(more, WATCHDOG);
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(more, folder.path());
    let corpus = corpus();
    let training = |world: World| train(&world, &settings, &corpus).map(|trained| trained.report);
    let reports = bonfire::spawn(ranks, training).map_err(|error| format!("{error:?}"))?;
    let of = |report: &Report| {
        let fact = |wanted: &str| {
            let mut facts = report.facts.iter();
            facts.find(|(name, _)| name == wanted).unwrap().1.clone()
        };
        let points = report.curve("loss").iter();
        let points = points.chain(report.curve("validation_loss"));
        let losses = points.map(|point| point.value).collect();
        (fact("initial parameters"), (fact("parameters"), losses))
    };
    let first = of(&reports[0]);
    assert!(reports.iter().all(|report| of(report) == first), "{more}");
    Ok(first)
}

fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let difference = (found - expected).abs();
        assert!(difference < 1e-4 * expected, "{what}: {found}, not {expected}");
    }
}

#[test]
fn every_schedule_ends_with_the_same_parameters() {
    // The norm of the whole is a sum over ranks, and they have other stages in other schedules.
    let (_, alone) = trained(1, "--clip 0").unwrap();
    let first = trained(2, "--clip 0 --mesh pp=2 --schedule 1f1b").unwrap();
    assert_close(&first.1, &alone, "1f1b");
    for (ranks, schedule) in
        [(3, "gpipe"), (2, "interleaved"), (4, "zb-h1"), (2, "zbv"), (2, "auto")]
    {
        let more = format!("--clip 0 --mesh pp={ranks} --schedule {schedule}");
        let found = trained(ranks, &more).unwrap();
        assert_eq!(found.0, first.0, "{schedule}");
        // Validation is a mean over the ranks.
        assert_close(&found.1, &first.1, schedule);
    }
    let recomputed = trained(2, "--clip 0 --mesh pp=2 --checkpoint-blocks").unwrap();
    assert_eq!(recomputed, first);
}

/// The files are the optimizer's; every stage has its own.
#[test]
fn a_pipeline_with_state_in_files_ends_with_the_same_parameters() {
    let folder = tempfile::tempdir().unwrap();
    // Matrices of 64 KiB and more.
    let settings = "--mesh pp=2 --width 192 --layers 2 --steps 3";
    let files =
        format!("{settings} --offload optimizer --offload-folder {}", folder.path().display());
    assert_eq!(trained(2, &files), trained(2, settings));
    let refused = trained(2, &format!("{settings} --offload parameters")).unwrap_err();
    assert!(refused.contains("use offload.optimizer"), "{refused}");
}

#[test]
fn a_mesh_learns_what_ranks_with_the_whole_model_do() {
    let (_, replicas) = trained(2, "").unwrap();
    for placement in ["replicated", "zero2"] {
        let more = format!("--mesh pp=2,dp=2 --placement {placement}");
        let (_, losses) = trained(4, &more).unwrap();
        assert_close(&losses, &replicas, placement);
    }
}

#[test]
fn layers_that_ranks_divide_learn_what_whole_ones_do() {
    for (whole, ranks, mesh) in [(1, 2, "tp=2"), (2, 4, "dp=2,tp=2")] {
        let (_, expected) = trained(whole, "").unwrap();
        for more in ["", " --checkpoint-blocks", " --placement zero2"] {
            let more = format!("--mesh {mesh}{more}");
            let (_, losses) = trained(ranks, &more).unwrap();
            assert_close(&losses, &expected, &more);
        }
    }
}

/// How 8 ranks are laid out, those of pp, dp and tp.
const MESHES: [[u32; 3]; 10] = [
    [2, 2, 2],
    [4, 1, 2],
    [2, 1, 4],
    [8, 1, 1],
    [1, 8, 1],
    [1, 1, 8],
    [4, 2, 1],
    [2, 4, 1],
    [1, 4, 2],
    [1, 2, 4],
];

#[test]
fn every_mesh_starts_and_learns_as_one_rank_does() {
    let sizes = "--layers 6 --heads 8 --width 16 --steps 50 --log-interval 10 --eval-interval 25";
    let (start, (_, expected)) = run(1, sizes).unwrap();
    for [pp, dp, tp] in some(&MESHES, 3) {
        let batch = 8 / dp;
        let mesh = format!("--mesh pp={pp},dp={dp},tp={tp}");
        let more = format!("{sizes} {mesh} --batch {batch} --micro-batches {batch}");
        let (found, (_, losses)) = run(8, &more).unwrap();
        assert_eq!(found, start, "{mesh}");
        assert_close(&losses, &expected, &mesh);
    }
}

/// What the settings of a training can be: placement, blocks, offload, optimizer, and ranks with their mesh.
const CHOICES: [&[&str]; 5] = [
    &["replicated", "zero1", "zero2", "zero3", "zero3@2", "zero1-whole", "zero2-whole"],
    &["kept", "computed-again"],
    &["none", "optimizer", "parameters"],
    &["adamw", "sgd", "lion", "muon"],
    &["dp=2", "tp=2", "cp=2", "pp=2", "dp=4", "dp=2,tp=2", "dp=2,cp=2", "pp=2,dp=2"],
];

/// Whether `gpt` has no reason to refuse it.
fn is_allowed([placement, _, offload, optimizer, mesh]: [&str; 5]) -> bool {
    let is_whole = placement == "replicated" || placement.ends_with("whole");
    let has_rows_only = mesh.contains("tp") || !is_whole;
    let is_cut = placement.starts_with("zero3");
    let mesh_fits = if mesh.contains("pp") {
        !is_cut && offload != "parameters"
    } else {
        // Two copies need four ranks of the same part.
        !placement.ends_with("@2") || mesh == "dp=4"
    };
    let offload_fits = match offload {
        "none" => true,
        "parameters" if !is_cut && placement != "replicated" => false,
        // What is kept elsewhere is stepped there, in one pass.
        _ => optimizer != "muon",
    };
    mesh_fits && offload_fits && !(optimizer == "muon" && has_rows_only)
}

/// Settings in which every pair of choices that may meet does: greedily, those first with most new pairs.
fn pairwise() -> Vec<[&'static str; 5]> {
    let mut all = vec![[""; 5]];
    for (place, choices) in CHOICES.iter().enumerate() {
        let chosen = |row: &[&'static str; 5], choice: &'static str| {
            let mut row = *row;
            row[place] = choice;
            row
        };
        let with = all.iter().flat_map(|row| choices.iter().map(move |choice| chosen(row, choice)));
        all = with.collect();
    }
    all.retain(|row| is_allowed(*row));
    let pairs = |row: &[&'static str; 5]| {
        let row = *row;
        let later =
            move |one: usize| (one + 1..5).map(move |other| (one, row[one], other, row[other]));
        (0..5).flat_map(later).collect::<BTreeSet<_>>()
    };
    let mut missing: BTreeSet<_> = all.iter().flat_map(&pairs).collect();
    let mut rows = Vec::new();
    while !missing.is_empty() {
        let gain = |row: &&[&'static str; 5]| pairs(row).intersection(&missing).count();
        let best = *all.iter().rev().max_by_key(gain).unwrap();
        missing = &missing - &pairs(&best);
        rows.push(best);
    }
    rows
}

/// With the default width: from 1024 elements on a matrix is cut, that of the 9 letters outside of blocks, too; from
/// 64 KiB on it is in a file.
#[test]
fn every_pair_of_settings_ends_with_the_parameters_of_a_plain_training() {
    let folder = tempfile::tempdir().unwrap();
    let mut hashes = BTreeMap::new();
    for row in pairwise() {
        let [placement, blocks, offload, optimizer, mesh] = row;
        let ranks = mesh.split(',').map(|axis| axis[3..].parse::<u32>());
        let ranks: u32 = ranks.map(Result::unwrap).product();
        let settings = |placement, blocks, offload| {
            let again = match blocks {
                "kept" => "",
                _ => "--checkpoint-blocks",
            };
            let place = match offload {
                "none" => String::new(),
                _ => format!("--offload-folder {}", folder.path().display()),
            };
            format!(
                "--layers 2 --width 128 --steps 4 --batch 2 --micro-batches 2 --eval-interval 4 --placement {placement} \
                 {again} --offload {offload} {place} --optimizer {optimizer} --mesh {mesh}"
            )
        };
        // The mean of two means is rounded otherwise.
        let plain = if placement.ends_with("@2") { placement } else { "replicated" };
        let kind = (optimizer, mesh, plain);
        let expected = hashes
            .entry(kind)
            .or_insert_with(|| trained(ranks, &settings(plain, "kept", "none")).unwrap().0);
        let more = settings(placement, blocks, offload);
        assert_eq!(trained(ranks, &more).unwrap().0, *expected, "{more}");
    }
}

/// Ranks along cp have some characters each.
#[test]
fn windows_that_ranks_divide_teach_what_whole_ones_do() {
    for (whole, ranks, mesh) in [(1, 4, "cp=4"), (2, 4, "dp=2,cp=2"), (1, 4, "cp=2,tp=2")] {
        let (_, expected) = trained(whole, "").unwrap();
        for more in ["", " --checkpoint-blocks", " --placement zero3"] {
            let more = format!("--mesh {mesh}{more}");
            let (_, losses) = trained(ranks, &more).unwrap();
            assert_close(&losses, &expected, &more);
        }
    }
}

#[test]
fn what_cannot_be_cut_is_refused() {
    for (ranks, more, says) in [
        (2, "--mesh pp=2 --placement zero3", "placement: zero3 is refused"),
        (4, "--mesh pp=4 --schedule zbv", "6 layers"),
        (3, "--mesh cp=3", "dimension 0 has 8 tokens on 3 ranks"),
        (4, "--mesh pp=2,cp=2", "leave pp or cp out"),
        (2, "--placement zero3 --optimizer muon", "for lamb and muon take zero1-whole"),
        (2, "--mesh tp=2 --optimizer muon", "lamb and muon step whole parameters; leave tp out"),
        (4, "--mesh tp=4", "dimension 0 of the list of heads has 2"),
    ] {
        let error = trained(ranks, more).unwrap_err();
        assert!(error.contains(says), "{more}: {error}");
    }
}

/// Parameters, moments and the place in the text, through every way of cutting a model: a step on each mesh.
#[test]
fn a_training_goes_on_from_any_mesh_on_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let meshes = [
        (2, "pp=2"),
        (2, "tp=2"),
        (4, "pp=2,tp=2"),
        (4, "dp=4 --placement zero3 --batch 2 --micro-batches 1"),
        (4, "dp=2,tp=2 --placement zero1 --batch 4 --micro-batches 2"),
        (4, "pp=2,dp=2 --placement zero2 --schedule zbv --batch 4 --micro-batches 2"),
        (4, "cp=2,tp=2 --placement zero3"),
        (3, "pp=3"),
    ];
    let steps = meshes.len();
    let constant = "schedule.decay=constant --log-interval 1 --eval-interval 1";
    let (_, alone) = trained(1, &format!("--steps {steps} {constant}")).unwrap();
    let on = |ranks, steps, mesh: &str| {
        let folder = folder.path().display();
        let more = format!("--steps {steps} --checkpoints {folder} --mesh {mesh} {constant}");
        trained(ranks, &more).unwrap()
    };
    let mut last = String::new();
    for (step, (ranks, mesh)) in (1..).zip(meshes) {
        let (digest, losses) = on(ranks, step, mesh);
        // Behind the losses of all steps, those of validation, of which the first is before training.
        assert_close(&losses[losses.len() - 1..], &alone[steps + step..=steps + step], mesh);
        last = digest;
    }
    assert_eq!(on(1, steps, "dp=1").0, last, "as a model that was never cut");
}

#[test]
fn a_killed_stage_ends_the_job_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpt"));
    command.args(["--nproc", "3", "--device", "cpu", "--report-dir"]);
    command.arg(folder.path());
    let sizes = "--mesh pp=3 --layers 1 --heads 2 --width 16 --context 8 --batch 8 --steps 1000000 \
                 --log-interval 1 --eval-interval 1000000 --eval-windows 2 --sample 0";
    command.args(sizes.split_whitespace());
    command.env("BONFIRE_LOG", "warn");
    // By which its ranks are found.
    let mark = format!("GPT_PIPED_TEST={}", folder.path().display());
    let (name, value) = mark.split_once('=').unwrap();
    command.env(name, value);
    let job = Job::start(&mut command);
    while !job.next_line().contains("/1000000") {}
    signal_process(process_of(1, &mark), Signal::KILL);
    let end = job.end();
    assert!(!end.status.success());
    let errors = end.stderr.join("\n");
    for rank in [0, 2] {
        // The launcher shows an error of several ranks once.
        let own = format!("[rank {rank}] error: rank 1 failed: its process ended");
        let same = format!("rank {rank} had the same error as rank ");
        assert!(errors.contains(&own) || errors.contains(&same), "{errors}");
    }
}

/// The process of a rank whose environment has a mark.
fn process_of(rank: u32, mark: &str) -> u32 {
    let rank = format!("RANK={rank}");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let found = pids.find(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let has = |wanted: &str| {
            environment.split(|byte| *byte == 0).any(|line| line == wanted.as_bytes())
        };
        has(&rank) && has(mark)
    });
    found.expect("the rank runs")
}
