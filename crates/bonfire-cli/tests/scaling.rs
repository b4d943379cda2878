//! `bonfire scaling` with a program that trains, with one that writes no report, and with one that fails.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bonfire_collective::{GroupOptions, ProcessGroup, ReduceOp};
use bonfire_launch::rank_from_env;
use bonfire_report::{Report, TimeSplit};
use bonfire_testkit::{Job, JobEnd, Signal, Watchdog, assert_each_says, wait_until_gone};
use serde_json::Value;
use tempfile::TempDir;

/// Makes this test program a rank of the trainings below; names the folder for its report.
const REPORT_FOLDER: &str = "BONFIRE_TEST_REPORT_FOLDER";

const LIMIT: Duration = Duration::from_secs(100);
/// Points in a step, of all ranks together.
const POINTS: usize = 1200;

const STEPS: u64 = 30;

/// Fits a line on the ranks of its world, each with its part of the points.
fn fit(group: &ProcessGroup) -> Report {
    let (rank, ranks) = (group.rank().index(), group.world_size().len());
    let start = Instant::now();
    let (mut slope, mut first, mut last) = (0.0, 0.0, 0.0);
    for step in 0..STEPS {
        let mut sums = [0.0_f64; 2];
        for point in (rank..POINTS).step_by(ranks) {
            let x = point as f64 / POINTS as f64;
            let miss = (slope - 3.0) * x;
            sums[0] += miss * miss;
            sums[1] += 2.0 * miss * x;
        }
        group.all_reduce(&mut sums, ReduceOp::Sum).unwrap();
        let [loss, gradient] = sums.map(|sum| sum / POINTS as f64);
        slope -= gradient;
        last = loss;
        if step == 0 {
            first = loss;
        }
    }
    assert!(last < 1e-3 * first, "{first} {last}");
    let own = [start.elapsed().as_secs_f64()];
    let seconds = group.all_gather(&own).unwrap();
    let longest = seconds.iter().copied().fold(0.0, f64::max);
    let split = |seconds: &f64| TimeSplit {
        forward_backward: Duration::from_secs_f64(*seconds),
        evaluation: Duration::from_secs(1000),
        ..TimeSplit::default()
    };
    Report {
        world_size: ranks,
        steps: STEPS,
        samples_per_step: POINTS,
        unit: "points".to_owned(),
        samples_per_second: POINTS as f64 * STEPS as f64 / longest,
        ranks: seconds.iter().map(split).collect(),
        ..Report::default()
    }
}

/// What the ranks run, which start this test program for this test alone.
#[test]
fn a_rank_of_the_trainings_below() {
    let Some(folder) = env::var_os(REPORT_FOLDER).map(PathBuf::from) else {
        return;
    };
    let _watchdog = Watchdog::start("a rank", LIMIT);
    let env = rank_from_env().unwrap();
    let group = ProcessGroup::connect(&env, GroupOptions::default()).unwrap();
    let report = fit(&group);
    if group.rank().get() == 0 {
        report.write(&folder).unwrap();
    }
    group.barrier().unwrap();
}

fn scaling(folder: &TempDir, arguments: &[&str]) -> JobEnd {
    start(folder, arguments).end()
}

fn start(folder: &TempDir, arguments: &[&str]) -> Job {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bonfire"));
    command.current_dir(folder.path()).arg("scaling").args(arguments);
    Job::start_for(&mut command, LIMIT)
}

/// A training on these numbers of ranks.
fn training(folder: &TempDir, ranks: &str) -> JobEnd {
    let this = env::current_exe().unwrap();
    let variable = format!("{REPORT_FOLDER}={{folder}}");
    let rank = ["a_rank_of_the_trainings_below", "--exact"];
    let program = ["/usr/bin/env", &variable, this.to_str().unwrap()];
    let flags = ["--ranks", ranks, "--"];
    scaling(folder, &[&flags[..], &program, &rank].concat())
}

/// The figures of a folder.
fn figures(out: &Path) -> Value {
    let text = fs::read_to_string(out.join("scaling.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The ranks and one figure of each run.
fn column(figures: &Value, name: &str) -> Vec<(u64, f64)> {
    let runs = figures["runs"].as_array().unwrap().iter();
    runs.map(|run| (run["ranks"].as_u64().unwrap(), run[name].as_f64().unwrap_or(f64::NAN)))
        .collect()
}

/// The table's lines from its heading on.
fn table(end: &JobEnd) -> &[String] {
    let place = end.stdout.iter().position(|line| line.starts_with("# time of"));
    &end.stdout[place.unwrap_or_else(|| panic!("{end:#?}"))..]
}

#[test]
fn a_training_is_compared_by_its_reports() {
    let folder = tempfile::tempdir().unwrap();
    let end = training(&folder, "3,1,2,1").with_code(0);
    let out = folder.path().join("scaling");
    let figures = figures(&out);
    assert_eq!((&figures["time"], &figures["unit"]), (&"training".into(), &"points".into()));
    let speeds = column(&figures, "samples_per_second");
    let expected: Vec<(u64, f64)> = [1, 2, 3]
        .map(|ranks| {
            let report = Report::read(out.join(format!("ranks-{ranks}"))).unwrap();
            assert_eq!(report.world_size as u64, ranks);
            (ranks, report.samples_per_second)
        })
        .into();
    assert_eq!(speeds, expected);
    for (at, (ranks, time_s)) in column(&figures, "time_s").into_iter().enumerate() {
        // The time of evaluation does not count.
        assert!(time_s < 1000.0, "{time_s}");
        assert!(time_s < column(&figures, "program_s")[at].1);
        let speed_up = speeds[at].1 / speeds[0].1;
        for (name, expected) in [("speed_up", speed_up), ("efficiency", speed_up / ranks as f64)] {
            let found = column(&figures, name)[at];
            assert_eq!(found.0, ranks);
            // Two roundings apart.
            assert!((found.1 / expected - 1.0).abs() < 4.0 * f64::EPSILON, "{name}: {found:?}");
        }
    }
    let table = table(&end);
    assert_eq!(table.len(), 2 + 3 + 1, "{table:?}");
    assert!(table[1].contains("points/s"), "{table:?}");
    for (ranks, row) in (1..).zip(&table[2..5]) {
        assert_eq!(row.split_whitespace().next(), Some(&*format!("{ranks}")));
    }
    assert_eq!(table[5], "scaling/scaling.svg");
    let svg = fs::read_to_string(out.join("scaling.svg")).unwrap();
    assert_eq!(svg.matches("<circle").count(), 2 * 3, "{svg}");

    // The same runs are one page, too.
    let mut report = Command::new(env!("CARGO_BIN_EXE_bonfire"));
    report.current_dir(folder.path()).args(["report", "scaling"]);
    Job::start_for(&mut report, LIMIT).succeed();
    let page = fs::read_to_string(folder.path().join("runs.html")).unwrap();
    assert!(page.contains("scaling/ranks-3"), "{page}");
}

#[test]
fn a_program_without_a_report_is_timed_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $RANK of $WORLD_SIZE: {ranks} {12/ranks} {folder}";
    let flags = ["--ranks=1,2", "--out=here", "--"];
    let end = scaling(&folder, &[&flags[..], &["/bin/sh", "-c", script]].concat()).with_code(0);
    let figures = figures(&folder.path().join("here"));
    assert_eq!(figures["time"], "program");
    assert_eq!(column(&figures, "time_s"), column(&figures, "program_s"));
    let times = column(&figures, "time_s");
    let speed_ups = column(&figures, "speed_up");
    assert!((speed_ups[1].1 - times[0].1 / times[1].1).abs() < 1e-9);
    let mut said = end.stdout[..end.stdout.len() - table(&end).len()].to_vec();
    said.sort();
    // A path that stays right in another directory.
    let here = folder.path().canonicalize().unwrap().join("here");
    let here = here.display();
    let expected = [
        format!("0 of 1: 1 12 {here}/ranks-1"),
        format!("[rank 0] 0 of 2: 2 6 {here}/ranks-2"),
        format!("[rank 1] 1 of 2: 2 6 {here}/ranks-2"),
    ];
    assert_eq!(said, expected);
}

#[test]
fn a_run_that_fails_ends_the_command_and_earlier_runs_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let script = "[ $WORLD_SIZE = 1 ] || exit $(( 7 * RANK )); exit 0";
    let end = scaling(&folder, &["--ranks=1,2,3", "--", "/bin/sh", "-c", script]).with_code(7);
    let verdict = end.stderr.iter().find(|line| line.starts_with("error: "));
    let verdict = verdict.unwrap_or_else(|| panic!("{end:#?}"));
    assert!(verdict.starts_with("error: on 2 ranks: root cause: rank 1 "), "{verdict}");
    assert!(verdict.ends_with("exited with code 7"), "{verdict}");
    assert_eq!(table(&end).len(), 2 + 1 + 1, "{end:#?}");
    let out = folder.path().join("scaling");
    assert_eq!(column(&figures(&out), "ranks"), [(1, 1.0)]);
    assert!(!out.join("ranks-3").exists(), "it went on");

    // What is there is not mixed with another program's.
    let again = scaling(&folder, &["--ranks=1", "--", "/bin/true"]).with_code(1);
    let error = "error: scaling is not empty; give --out another folder, or remove it";
    assert_eq!(again.stderr, [error]);
    assert_eq!(column(&figures(&out), "ranks"), [(1, 1.0)]);
}

#[test]
fn a_report_of_another_number_of_ranks_is_an_error_and_the_time_of_the_program_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let alone = Report { world_size: 1, ..Report::default() };
    alone.write(&report).unwrap();
    // Two programs that copy to one name may each find no file there, and the second then fails.
    let script = format!("[ $RANK != 0 ] || cp {}/report.json {{folder}}", report.display());
    let end = scaling(&folder, &["--ranks=1,2,3", "--", "/bin/sh", "-c", &script]).with_code(1);
    let error = end.stderr.iter().find(|line| line.starts_with("error: "));
    let error = error.unwrap_or_else(|| panic!("{end:#?}"));
    assert!(error.starts_with("error: on 2 ranks: "), "{error}");
    assert!(error.contains("is of a training on 1 rank: "), "{error}");
    let out = folder.path().join("scaling");
    assert_eq!(column(&figures(&out), "ranks"), [(1, 1.0), (2, 2.0)]);
}

#[test]
fn an_interrupt_after_the_end_of_all_ranks_ends_the_command_though_their_output_is_still_open() {
    let script = "sleep 20 & echo id $$";
    // On a busy machine the signal may come when the launcher has stopped to wait for output, or after all runs.
    // Without the mend it starts the next run each time.
    let ends_before_the_next_run = (0..5).any(|_| {
        let folder = tempfile::tempdir().unwrap();
        let job = start(&folder, &["--ranks=2,3", "--", "/bin/sh", "-c", script]);
        wait_until_gone(&job.next_numbers(2));
        job.signal(Signal::INT);
        let end = job.end();
        let code = end.status.code();
        assert!(matches!(code, Some(0 | 130)), "{end:#?}");
        code == Some(130) && !folder.path().join("scaling/ranks-3").exists()
    });
    assert!(ends_before_the_next_run, "it went on");
}

#[test]
fn wrong_command_lines_are_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&[&str], i32, &str); 5] = [
        (&["--ranks=1,2"], 2, "<PROGRAM>"),
        (&["--ranks=0,1", "true"], 2, "a job needs at least 1 rank"),
        (&["--ranks=one", "true"], 2, "expected numbers of ranks"),
        (&["--ranks=", "true"], 2, "expected numbers of ranks"),
        (
            &["--ranks=1,2,3", "--", "/bin/echo", "{256/ranks}"],
            1,
            "{256/ranks} is not a whole number on 3 ranks",
        ),
    ];
    for (arguments, code, expected) in cases {
        let end = scaling(&folder, arguments).with_code(code);
        assert_each_says([end.stderr.join("\n")], &[expected]);
        assert!(end.stdout.is_empty(), "{:?}", end.stdout);
    }
    assert!(!folder.path().join("scaling").exists());
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let end = scaling(&folder, &["--ranks=1", "--", "/no/such/program"]).with_code(1);
    let error = end.stderr.last().unwrap();
    assert!(error.starts_with("error: on 1 rank: "), "{error}");
    assert!(error.contains("/no/such/program"), "{error}");
    // The next try may have the folder.
    assert!(!folder.path().join("scaling").exists());
}
