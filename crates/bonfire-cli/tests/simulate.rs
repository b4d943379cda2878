//! `bonfire simulate`, as a user runs it: its tables, its files, and what it refuses.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use bonfire_plan::{Algorithm, Collective};
use bonfire_testkit::{Job, JobEnd, command_lines};
use serde_json::{Value, json};

/// 1 us and 1 GB/s, and nothing else.
const LINK: &str = "alpha=1us,bandwidth=1GB/s";

fn simulate(arguments: &[&str]) -> JobEnd {
    Job::start(Command::new(env!("CARGO_BIN_EXE_bonfire")).arg("simulate").args(arguments)).end()
}

#[track_caller]
fn succeeds(arguments: &[&str]) -> Vec<String> {
    let end = simulate(arguments).with_code(0);
    assert_eq!(end.stderr, Vec::<String>::new());
    end.stdout
}

/// The command ends with this code and one line, which contains `expected`.
#[track_caller]
fn refused(arguments: &[&str], code: i32, expected: &str) {
    let end = simulate(arguments).with_code(code);
    assert_eq!(end.stderr.len(), 1, "{:?}", end.stderr);
    let line = &end.stderr[0];
    assert!(line.starts_with("error: "), "{line}");
    assert!(line.contains(expected), "{line:?} lacks {expected:?}");
    assert!(end.stdout.is_empty(), "{:?}", end.stdout);
}

/// A file of this test, gone at its end.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str) -> Self {
        let name = format!("bonfire-simulate-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn read(&self) -> String {
        fs::read_to_string(&self.0).unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.read()).unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // A test that failed may not have written it.
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn the_page_shows_what_its_command_prints() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../book/src/simulator.md");
    let page = fs::read_to_string(page).unwrap();
    let shown = page.split("```text\n").nth(1).unwrap();
    let shown = shown.split("```").next().unwrap();
    let mut lines = command_lines().into_iter();
    let command = lines.find(|line| line.page.ends_with("simulator.md"));
    let words = command.unwrap().words;
    let arguments: Vec<&str> = words.iter().skip(2).map(String::as_str).collect();
    let shown: Vec<&str> = shown.lines().collect();
    let newest = shown.iter().filter_map(|line| algorithm_of(line)).max();
    assert!(newest >= Some(Algorithm::Chain), "{shown:?}");
    // The page has all algorithms up to a newest one.
    let mut printed = succeeds(&arguments);
    printed.retain(|line| algorithm_of(line) <= newest);
    assert_eq!(printed, shown);
}

/// The algorithm whose row the line is, or that it says is left out.
fn algorithm_of(line: &str) -> Option<Algorithm> {
    let row = line.strip_prefix("# ").unwrap_or(line);
    row.split(' ').next()?.parse().ok()
}

#[test]
fn a_ring_takes_its_closed_form_and_the_file_says_the_same() {
    let file = TempFile::new("ring.json");
    let job = ["--ranks=4", "--link", LINK, "--algorithm=ring", "--bytes=4000000"];
    let lines = succeeds(&[&job[..], &["--chunk-bytes=64M", "--json", file.path()]].concat());
    let row = lines.iter().find(|line| line.starts_with("ring ")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    // 6 rounds of a latency and a megabyte.
    assert_eq!(cells[1..6], ["6006.00", "0.666", "0.999", "6", "24"]);
    let records = file.json();
    let record = &records[0];
    assert_eq!(records.as_array().unwrap().len(), 1);
    assert!((record["time_us"].as_f64().unwrap() - 6006.0).abs() < 1e-6);
    assert_eq!(record["rank_bytes_sent_max"], 6_000_000);
    assert_eq!(record["nic_bytes_sent_max"], 0);
    let path = record["critical_path"].as_array().unwrap();
    let total: f64 = path.iter().map(|part| part["total_s"].as_f64().unwrap()).sum();
    assert!((total - 6006e-6).abs() < 1e-12);
    for part in ["transfer within a host           6 x", "latency within a host            6 x"] {
        assert!(lines.iter().any(|line| line.starts_with(part)), "{lines:?}");
    }
}

#[test]
fn all_algorithms_are_ranked_and_those_that_cannot_run_say_why() {
    let links = ["--link=nvlink-h100", "--inter-link=net-400g"];
    let lines = succeeds(&[&["--ranks=8", "--hosts=2", "--bytes=1M"][..], &links].concat());
    let time = |name: &str| {
        let row = lines.iter().find(|line| line.starts_with(&format!("{name} ")));
        let row = row.unwrap_or_else(|| panic!("no {name} in {lines:?}"));
        let cell = row.split_whitespace().nth(1).unwrap();
        cell.parse::<f64>().unwrap()
    };
    let candidates = Algorithm::candidates(Collective::AllReduce).iter();
    let sent = candidates.filter(|&&algorithm| algorithm != Algorithm::ZeroCopy);
    let names: Vec<&str> = sent.map(|algorithm| algorithm.name()).collect();
    let fastest = names.iter().map(|name| time(name)).fold(f64::INFINITY, f64::min);
    // The table is sorted.
    let first = lines.iter().find(|line| names.iter().any(|name| line.starts_with(name))).unwrap();
    assert_eq!(first.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap(), fastest);
    let skipped = "# zero_copy is left out: rank 0 reads or writes the memory of rank 4";
    assert!(lines.iter().any(|line| line.starts_with(skipped)), "{lines:?}");
    let link = "# between hosts: net-400g (latency 14 us, bandwidth 50 GB/s)";
    assert!(lines.iter().any(|line| line == link), "{lines:?}");
}

#[test]
fn every_operation_can_be_simulated() {
    let operations =
        "all-reduce reduce-scatter all-gather broadcast reduce gather scatter all-to-all barrier";
    for operation in operations.split(' ') {
        let lines =
            succeeds(&["--ranks", "5", "--link", "shm", "--op", operation, "--bytes", "64K"]);
        let name = operation.replace('-', "_");
        assert!(lines[0].starts_with(&format!("# {name}")), "{lines:?}");
    }
}

#[test]
fn a_timeline_is_complete_events_that_do_not_overlap() {
    let file = TempFile::new("timeline.json");
    let job = ["--ranks=6", "--hosts=3", "--link=shm", "--inter-link", LINK, "--bytes=1M"];
    succeeds(&[&job[..], &["--timeline", file.path()]].concat());
    let trace = file.json();
    let mut lanes: HashMap<(u64, u64), Vec<(f64, f64)>> = HashMap::new();
    let mut names = Vec::new();
    for event in trace["traceEvents"].as_array().unwrap() {
        match event["ph"].as_str().unwrap() {
            "M" => names.push(event["args"]["name"].as_str().unwrap().to_owned()),
            "X" => {
                let lane = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
                let time = |name: &str| event[name].as_f64().unwrap();
                lanes.entry(lane).or_default().push((time("ts"), time("dur")));
            }
            other => panic!("an event of type {other}"),
        }
    }
    for expected in ["host 2", "rank 5", "network card, out", "network card, in"] {
        assert!(names.iter().any(|name| name == expected), "{names:?}");
    }
    // Two ranks and two directions on each of three hosts.
    assert_eq!(lanes.len(), 12);
    for events in lanes.values_mut() {
        events.sort_by(|a, b| a.0.total_cmp(&b.0));
        for pair in events.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0 + 1e-6, "{pair:?}");
        }
    }
}

#[test]
fn a_plot_has_a_curve_for_each_algorithm() {
    let file = TempFile::new("plot.svg");
    let job = ["--ranks=8", "--link=pcie5", "--min-bytes=1K", "--max-bytes=4M"];
    succeeds(&[&job[..], &["--plot", file.path()]].concat());
    let svg = file.read();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    let algorithms = Algorithm::candidates(Collective::AllReduce);
    for name in algorithms {
        assert!(svg.contains(&format!("\n{name}\n")), "{name} is missing");
    }
    // One more for the sample of each in the legend.
    assert_eq!(svg.matches("stroke-width=\"2\"").count(), 2 * algorithms.len());
}

/// What `bonfire bench --json` would have written had it run over this link.
fn bench_rows(ranks: &str, transport: &str, link: &str, file: &TempFile) {
    let rows: Vec<Value> = (3..=24)
        .map(|log2| {
            let simulated = TempFile::new(&format!("row-{transport}-{ranks}-{log2}.json"));
            let bytes = (1_u64 << log2).to_string();
            let job = ["--ranks", ranks, "--link", link, "--bytes", &bytes];
            let more = ["--algorithm=two_shot", "--json", simulated.path()];
            succeeds(&[&job[..], &more].concat());
            let record = &simulated.json()[0];
            json!({
                "operation": "all_reduce", "form": "in_place", "transport": transport,
                "ranks": record["ranks"], "size_bytes": record["size_bytes"], "dtype": "f32",
                "redop": "sum", "time_us": record["time_us"], "algorithm": "two_shot",
                "chunk_bytes": record["chunk_bytes"], "wrong": 0,
            })
        })
        .collect();
    fs::write(&file.0, Value::Array(rows).to_string()).unwrap();
}

#[test]
fn a_link_fitted_to_half_of_the_sizes_predicts_the_others_and_can_be_used() {
    let (two, four) = (TempFile::new("two.json"), TempFile::new("four.json"));
    bench_rows("2", "tcp", "alpha=5us,bandwidth=2GB/s", &two);
    bench_rows("4", "tcp", "alpha=7us,bandwidth=1GB/s", &four);
    let (table, links) = (TempFile::new("table.json"), TempFile::new("links.json"));
    let files = ["--json", table.path(), "--write-link", links.path()];
    let fit = ["--fit", two.path(), four.path(), "--hold-out=half"];
    let lines = succeeds(&[&fit[..], &files].concat());
    let verdicts: Vec<&String> = lines.iter().filter(|line| line.contains("held out:")).collect();
    assert_eq!(verdicts.len(), 2, "{lines:?}");
    for verdict in verdicts {
        assert!(verdict.starts_with("# 10 of 22 rows held out: median error 0.0 %"), "{verdict}");
    }
    let predictions = table.json();
    let predictions = predictions.as_array().unwrap();
    assert_eq!(predictions.len(), 44);
    for row in predictions {
        let error = row["error"].as_f64().unwrap();
        assert!(error.abs() < 0.01, "{row}");
        assert!(row["held_out"] == true || error.abs() < 1e-6, "{row}");
    }
    // The nearest number of ranks is taken, and another algorithm works as well.
    let link = format!("{}:tcp", links.path());
    for (ranks, known) in [("2", "alpha=5us,bandwidth=2GB/s"), ("8", "alpha=7us,bandwidth=1GB/s")] {
        let time = |link: &str| {
            let file = TempFile::new(&format!("ring-{ranks}.json"));
            let job = ["--ranks", ranks, "--link", link, "--algorithm=ring", "--bytes=1M"];
            succeeds(&[&job[..], &["--json", file.path()]].concat());
            file.json()[0]["time_us"].as_f64().unwrap()
        };
        let (fitted, expected) = (time(&link), time(known));
        assert!((fitted / expected - 1.0).abs() < 0.02, "{fitted} is not {expected}");
    }
}

#[test]
fn what_cannot_be_simulated_is_refused_in_one_line() {
    let base = ["--ranks", "4", "--link", "shm"];
    let with = |more: &[&'static str]| [&base[..], more].concat();
    refused(&[], 2, "--ranks <N>");
    refused(&["--ranks", "4", "--link", "infiniband"], 2, "use one of nvlink-h100");
    refused(&["--ranks", "4", "--link", "alpha=1us"], 2, "needs bandwidth=RATE");
    refused(&["--ranks", "0", "--link", "shm"], 1, "at least one rank");
    refused(&["--ranks", "4294967295", "--link", "shm"], 1, "give 16384 at most");
    refused(&["--ranks", "20000", "--link", "shm"], 1, "give 16384 at most");
    for operation in ["all-reduce", "all-to-all", "gather"] {
        let endless = ["--bytes", "17179869183G", "--op", operation];
        refused(&with(&endless), 1, "more than 67108864 steps");
    }
    refused(&with(&["--slots", "0"]), 2, "must be at least 1");
    refused(&with(&["--hosts", "5"]), 1, "4 ranks are on 1 to 4 hosts");
    refused(&with(&["--algorithm", "binomial"]), 1, "does not implement all_reduce");
    refused(&with(&["--algorithm", "fastest"]), 2, "or all");
    refused(&with(&["--op", "broadcast", "--root", "4"]), 1, "root 4 is not a rank");
    refused(&with(&["--chunk-bytes", "2"]), 1, "less than one element of f32");
    let apart = ["--ranks=2", "--hosts=2", "--link=shm", "--algorithm=zero_copy"];
    refused(&apart, 1, "is on another host");
    refused(&with(&["--plot", "/nowhere/plot.svg"]), 1, "cannot write /nowhere/plot.svg");
    refused(&with(&["--fit", "rows.json"]), 2, "cannot be used with");
}

#[test]
fn files_of_another_kind_are_refused_with_a_hint() {
    let rows = TempFile::new("rows.json");
    fs::write(&rows.0, "[]").unwrap();
    refused(&["--fit", rows.path()], 1, "no row of these files moves data");
    let rows_as_link = ["--ranks", "2", "--link", rows.path()];
    refused(&rows_as_link, 1, "rows of `bonfire bench` are read by --fit");
    refused(&["--fit", "missing.json"], 1, "cannot read missing.json");
    fs::write(&rows.0, "{\"links\": []}").unwrap();
    refused(&["--fit", rows.path()], 1, "has no rows of `bonfire bench --json`");
    refused(&["--ranks", "2", "--link", rows.path()], 1, "there are none");
}
