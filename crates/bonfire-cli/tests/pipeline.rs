//! `bonfire simulate pipeline`, as a user runs it.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;
use std::process::Command;

use bonfire_testkit::{Job, JobEnd};
use serde_json::Value;

fn pipeline(arguments: &[&str]) -> JobEnd {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bonfire"));
    Job::start(command.args(["simulate", "pipeline"]).args(arguments)).end()
}

#[track_caller]
fn succeeds(arguments: &[&str]) -> Vec<String> {
    let end = pipeline(arguments).with_code(0);
    end.stdout
}

/// Of 4 ranks and 8 micro-batches, whose backward pass takes twice as long as the forward pass.
#[track_caller]
fn check(schedule: &str, bubble: &str, live: [&str; 4]) {
    let lines = succeeds(&["--stages", "4", "--micro-batches", "8", "--schedule", schedule]);
    assert_eq!(lines[1], format!("bubble {bubble} %"));
    let found: Vec<_> =
        lines[4..].iter().filter_map(|line| line.split_whitespace().last()).collect();
    assert_eq!(found, live, "{lines:?}");
}

#[test]
fn bubbles_and_activations_are_printed() {
    check("gpipe", "27.3", ["8", "8", "8", "8"]);
    check("1f1b", "27.3", ["4", "3", "2", "1"]);
    check("interleaved", "15.8", ["11", "9", "7", "5"]);
    check("zb-h1", "11.1", ["4", "4", "4", "4"]);
    check("zbv", "5.9", ["8", "8", "8", "8"]);
}

/// A backward pass whose weight gradients take no time leaves nothing to fill the bubble of ZB-H1 with.
#[test]
fn the_fastest_schedule_is_chosen_from_the_costs() {
    let auto = ["--stages=4", "--micro-batches=8", "--schedule=auto"];
    let chosen = |more: &[&str]| succeeds(&[&auto[..], more].concat());
    let lines = chosen(&[]);
    assert!(lines[0].starts_with("# zbv: 4 ranks"), "{lines:?}");
    assert_eq!(lines[1], "bubble 5.9 %");
    let compared = &lines[9..];
    assert_eq!(compared.len(), 5, "{lines:?}");
    assert!(compared[4].starts_with("gpipe"), "{lines:?}");
    let lines = chosen(&["--chunks=1"]);
    assert!(lines[0].starts_with("# zb_h1: 4 ranks"), "{lines:?}");
    let lines = chosen(&["--costs=1,2,0"]);
    assert!(lines[0].starts_with("# interleaved: 4 ranks"), "{lines:?}");
}

#[test]
fn what_is_written_can_be_read_and_seen() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [csv, svg, trace] = ["order.csv", "order.svg", "order.json"].map(path);
    let written = succeeds(&[
        "--stages",
        "3",
        "--micro-batches",
        "4",
        "--schedule",
        "1f1b",
        "--costs",
        "1,1.4,0.6",
        "--write",
        &csv,
        "--plot",
        &svg,
        "--timeline",
        &trace,
    ]);
    let read = succeeds(&["--read", &csv, "--costs", "1,1.4,0.6"]);
    assert_eq!(read[1..], written[1..]);
    let svg = fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("rank 2"), "{svg}");
    let trace: Value = serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    // The names of three ranks; F and B over three stages for four micro-batches.
    assert_eq!(events.len(), 3 + 24);
    assert_eq!(events[3]["name"], "0F0");
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let refused = |arguments: &[&str], code: i32, expected: &str| {
        let end = pipeline(arguments).with_code(code);
        assert_eq!(end.stderr.len(), 1, "{:?}", end.stderr);
        assert!(end.stderr[0].contains(expected), "{:?} lacks {expected:?}", end.stderr);
    };
    let of = |schedule, more: &[&'static str]| {
        let base = ["--stages", "4", "--micro-batches", "9", "--schedule", schedule];
        [&base[..], more].concat()
    };
    refused(&[], 2, "--schedule <NAME>");
    refused(&of("fastest", &[]), 2, "choose gpipe, 1f1b, interleaved, zb_h1 or zbv");
    refused(&of("1f1b", &["--costs", "1,2"]), 2, "is not three times such as 1,1.4,0.6");
    refused(&of("interleaved", &[]), 1, "9 micro-batches are not 2 equal rounds");
    refused(&of("1f1b", &["--chunks", "2"]), 1, "1f1b has 1 stage on each rank, not 2");
    refused(&of("1f1b", &["--costs=1,-1,1"]), 1, "give a number of seconds that is 0 or more");
    refused(&["--read", "/nowhere/order.csv"], 1, "cannot read /nowhere/order.csv");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("order.csv");
    fs::write(&file, "0F0,0B0\n1B0,1F0\n").unwrap();
    refused(&["--read", file.to_str().unwrap()], 1, "it must come after the forward pass 1F0");
}
