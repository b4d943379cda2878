//! `bonfire bench` with real processes: who prints what, and what is in the file.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;
use std::process::Command;

use bonfire_testkit::{Job, JobEnd};

fn bench(arguments: &[&str]) -> JobEnd {
    Job::start(Command::new(env!("CARGO_BIN_EXE_bonfire")).arg("bench").args(arguments)).end()
}

const SMALL: [&str; 8] =
    ["--min-bytes", "64", "--max-bytes", "4K", "--iters", "3", "--rotate-bytes", "16K"];

#[test]
fn the_table_has_no_rank_before_it_and_the_file_has_its_rows() {
    let path = std::env::temp_dir().join(format!("bonfire-bench-{}.json", std::process::id()));
    let file = path.to_str().unwrap();
    let operations = ["reduce", "gather", "barrier"];
    let arguments = [&operations[..], &SMALL, &["--ranks", "3", "--json", file]].concat();
    let end = bench(&arguments).with_code(0);
    assert_eq!(end.stderr, Vec::<String>::new());
    assert_eq!(end.stdout[0], "# reduce of 3 ranks over shm, region buffers, 3 iterations");
    let rows = |line: &&String| line.trim_start().starts_with(|c: char| c.is_ascii_digit());
    let table: Vec<Vec<&str>> =
        end.stdout.iter().filter(rows).map(|line| line.split_whitespace().collect()).collect();

    let text = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let records: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    // 64 B to 4 KiB by fours; a gather's message is rounded up to three blocks.
    let sizes = [64, 256, 1024, 4096, 72, 264, 1032, 4104, 0];
    assert_eq!(table.len(), sizes.len(), "{:?}", end.stdout);
    assert_eq!(records.len(), sizes.len());
    for ((cells, record), bytes) in table.iter().zip(&records).zip(sizes) {
        assert_eq!(cells.len(), 11, "{cells:?}");
        assert_eq!(cells[0], bytes.to_string());
        assert_eq!(cells[9], "0", "{cells:?}");
        assert_eq!(record["size_bytes"], bytes);
        assert_eq!(record["count"].to_string(), cells[1]);
        assert_eq!(record["algorithm"], cells[10]);
        assert_ne!(cells[10], "none");
        assert_eq!(record["algorithm_asked"], serde_json::Value::Null);
        assert!(record["samples"].as_u64().unwrap() >= 3, "{record}");
        assert_eq!(record["wrong"], 0);
        assert_eq!(record["ranks"], 3);
        assert_eq!(record["transport"], "shm");
        let time = |name: &str| record[name].as_f64().unwrap();
        assert!(time("min_us") <= time("time_us"), "{record}");
        let ratio = time("busbw") / time("algbw");
        match record["operation"].as_str().unwrap() {
            "reduce" => assert!((ratio - 1.0).abs() < 1e-9, "{record}"),
            "gather" => assert!((ratio - 2.0 / 3.0).abs() < 1e-9, "{record}"),
            other => assert_eq!((other, time("busbw")), ("barrier", 0.0)),
        }
    }
}

#[test]
fn every_operation_is_right_in_buffers_of_either_kind() {
    let operations =
        "all-reduce reduce-scatter all-gather broadcast reduce gather scatter all-to-all send-recv";
    let operations: Vec<&str> = operations.split(' ').collect();
    for buffers in ["region", "private"] {
        let end =
            bench(&[&operations[..], &SMALL, &["--buffers", buffers, "--ranks", "3"]].concat());
        assert!(end.status.success(), "{:?}", end.stderr);
        let titles: Vec<&String> =
            end.stdout.iter().filter(|line| line.contains(" of 3 ")).collect();
        assert_eq!(titles.len(), operations.len(), "{:?}", end.stdout);
        for (title, operation) in titles.iter().zip(&operations) {
            let expected =
                format!("# {} of 3 ranks over shm, {buffers}", operation.replace('-', "_"));
            assert!(title.starts_with(&expected), "{title}");
        }
        // Both forms side by side, where both exist.
        let all_reduce: Vec<&str> = end.stdout[4].split_whitespace().collect();
        assert_eq!(all_reduce.len(), 17, "{all_reduce:?}");
        assert_eq!((all_reduce[9], all_reduce[15]), ("0", "0"), "{all_reduce:?}");
    }
}

#[test]
fn threads_print_the_same_table() {
    let end = bench(&[&["broadcast", "--transport", "local", "--root", "1"], &SMALL[..]].concat())
        .with_code(0);
    assert!(end.stdout[0].starts_with("# broadcast of 2 ranks over local"), "{:?}", end.stdout);
    assert!(end.stdout.contains(&"# Out of bounds values : 0 OK".to_owned()), "{:?}", end.stdout);
}

/// The algorithms of the rows, in order.
fn algorithms(end: &JobEnd) -> Vec<&str> {
    assert!(end.status.success(), "{:?}", end.stderr);
    let rows = |line: &&String| line.trim_start().starts_with(|c: char| c.is_ascii_digit());
    let lines = end.stdout.iter().filter(rows);
    lines.map(|line| line.split_whitespace().nth(10).unwrap()).collect()
}

#[test]
fn rows_name_what_ran() {
    let base = ["all-reduce", "--form", "in-place", "--transport", "local"];
    let sizes = ["--min-bytes", "64", "--max-bytes", "256K"];
    let steps = ["--step-factor", "4096", "--iters", "2", "--min-time", "0s"];
    let run = |more: &[&str]| bench(&[&base[..], &sizes, &steps, more].concat());
    // Of threads, large messages are reduced where they lie.
    let chosen = run(&[]);
    let chosen = algorithms(&chosen);
    assert_eq!((chosen.len(), chosen[1]), (2, "zero_copy"), "{chosen:?}");
    assert_ne!(chosen[0], "zero_copy");
    assert_eq!(algorithms(&run(&["--algorithm", "ring"])), ["ring", "ring"]);
    // The rank without a partner does nothing.
    let alone = ["send-recv", "--ranks", "1", "--transport", "local"];
    assert_eq!(algorithms(&bench(&[&alone[..], &sizes, &steps].concat())), ["none", "none"]);
}

#[test]
fn threads_and_processes_do_as_the_environment_says() {
    for transport in ["local", "shm"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bonfire"));
        command.arg("bench").arg("all-reduce").args(SMALL);
        command.args(["--form", "in-place", "--transport", transport]);
        command.args(["--algorithm", "one_shot"]);
        command.env("BONFIRE_ALGORITHM", "all_reduce=ring");
        let end = Job::start(&mut command).end();
        assert_eq!(algorithms(&end), ["ring"; 4], "{transport}");
        command.env("BONFIRE_ALGORITHM", "fast");
        let end = Job::start(&mut command).end();
        assert!(!end.status.success(), "{transport}");
        let said = end.stderr.join("\n");
        assert!(said.contains("BONFIRE_ALGORITHM is wrong"), "{said}");
    }
}

#[test]
fn repeats_are_one_row_with_all_their_samples() {
    let path = std::env::temp_dir().join(format!("bonfire-repeats-{}.json", std::process::id()));
    let file = path.to_str().unwrap();
    let repeats = ["--repeats", "3", "--min-time", "0s", "--json", file];
    bench(&[&["all-reduce", "--transport", "local"], &SMALL[..], &repeats].concat()).with_code(0);
    let text = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let records: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    // Four sizes in two forms.
    assert_eq!(records.len(), 8);
    for record in records {
        assert_eq!((&record["samples"], &record["repeats"]), (&9.into(), &3.into()));
    }
}

#[test]
fn under_a_launcher_it_joins_the_job() {
    let program = env!("CARGO_BIN_EXE_bonfire");
    let end = Job::start(
        Command::new(program)
            .args(["run", "--nproc", "2", "--", program, "bench", "all-reduce"])
            .args(SMALL),
    )
    .succeed();
    assert!(end.stdout[0].starts_with("[rank 0] # all_reduce of 2 ranks"), "{:?}", end.stdout);
}

#[test]
fn a_root_outside_the_group_is_one_clear_line() {
    let end = bench(&[&["broadcast", "--transport", "local", "--root", "2"], &SMALL[..]].concat())
        .with_code(1);
    assert_eq!(end.stderr, ["error: --root is 2, but there are 2 ranks: ranks count from 0"]);
}

#[test]
fn one_form_can_be_asked_for_where_it_exists() {
    let in_place = ["--transport", "local", "--form", "in-place"];
    let end = bench(&[&["all-reduce"], &SMALL[..], &in_place].concat()).with_code(0);
    assert_eq!(end.stdout[4].split_whitespace().count(), 11, "{:?}", end.stdout);
    let end = bench(&[&["gather"], &SMALL[..], &in_place].concat()).with_code(1);
    assert_eq!(
        end.stderr,
        ["error: gather has no form in_place: leave --form out, or measure other operations"]
    );
}

#[test]
fn gpus_that_are_not_there_are_one_line() {
    let asked = ["all-reduce", "--device", "cuda", "--ranks", "1"];
    let end = bench(&[&asked[..], &SMALL].concat());
    if end.status.success() {
        eprintln!("skipped: this machine has a GPU");
        return;
    }
    assert_eq!(end.stdout, Vec::<String>::new());
    assert_eq!(end.stderr.len(), 1, "{:?}", end.stderr);
    // With the feature `cuda` the driver is missing, without it the feature is.
    let said = &end.stderr[0];
    let driver = said.contains("no CUDA driver") && said.contains("install");
    let feature = said.contains("built without GPUs") && said.contains("--features cuda");
    assert!(driver || feature, "{said}");
}
