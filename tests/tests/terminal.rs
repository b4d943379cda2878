//! Burn's display on the launcher's terminal: drawn by rank 0, and put away however the job ends.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use bonfire_testkit::{
    Console, ConsoleEnd, Signal, Watchdog, assert_gone, script_is_missing, signal_process,
};

/// What Burn's display begins with, and what its end, or the launcher, writes.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// In its first frame, which is drawn in raw mode: by that the launcher knows.
const DRAWN: &str = "Controls";

const CTRL_C: &[u8] = b"\x03";

/// The program on two ranks and a terminal; nothing where there cannot be one.
fn start(program: &str, arguments: &[&str]) -> Option<Console> {
    if let Some(why) = script_is_missing() {
        eprintln!("skipped: {why}");
        return None;
    }
    let mut command = Command::new(program);
    command.args(arguments);
    command.args(["--nproc", "2", "--device", "cpu"]);
    command.env("BONFIRE_LOG", "warn");
    Some(Console::start(&command))
}

/// The learner, doing what `what` says.
fn learn(folder: &Path, what: &str) -> Option<Console> {
    let program = env!("CARGO_BIN_EXE_learning");
    start(program, &[folder.to_str().unwrap(), what])
}

/// The process ids of both ranks, once they are there: rank 0 may draw before rank 1 trains.
fn ids(folder: &Path) -> [u32; 2] {
    let _watchdog = Watchdog::start("the process ids", Duration::from_secs(120));
    [0, 1].map(|rank| {
        let file = folder.join(format!("{rank}.pid"));
        loop {
            let text = fs::read_to_string(&file).unwrap_or_default();
            // Written in one piece, after it was made.
            if let Ok(id) = text.parse() {
                return id;
            }
            thread::sleep(Duration::from_millis(5));
        }
    })
}

/// That the display is gone, for good, before `said`, and the terminal works as before.
#[track_caller]
fn put_away_before(end: &ConsoleEnd, said: &str) {
    let seen = &end.seen;
    let entered = seen.find(ENTER).unwrap_or_else(|| panic!("{seen:?}"));
    let left = seen.rfind(LEAVE).unwrap_or_else(|| panic!("{seen:?}"));
    let said_at = seen.rfind(said).unwrap_or_else(|| panic!("no {said:?} in {seen:?}"));
    assert!(entered < left && left < said_at, "{seen:?}");
    assert!(!seen[left..].contains(ENTER), "{seen:?}");
    assert!(end.is_as_before, "{seen:?}");
}

#[test]
fn rank_0_draws_and_the_others_are_heard_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut console) = learn(folder.path(), "held") else {
        return;
    };
    // All of the training would fit between two frames.
    console.wait_for(DRAWN);
    fs::write(folder.path().join("go"), "").unwrap();
    let end = console.end();
    assert!(end.status.success(), "{:?}", end.seen);
    // What rank 0 prints is as it is, once it has the terminal.
    put_away_before(&end, "\nparameters ");
    put_away_before(&end, "[rank 1] parameters ");
}

#[test]
fn a_rank_that_is_killed_leaves_no_display_behind() {
    for victim in [0, 1] {
        let folder = tempfile::tempdir().unwrap();
        let Some(mut console) = learn(folder.path(), "endless") else {
            return;
        };
        console.wait_for(DRAWN);
        let ids = ids(folder.path());
        signal_process(ids[victim], Signal::KILL);
        let end = console.end();
        assert!(!end.status.success());
        put_away_before(&end, &format!("root cause: rank {victim}"));
        assert_gone(&ids);
    }
}

#[test]
fn ctrl_c_stops_all_ranks_together_while_one_draws() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut console) = learn(folder.path(), "endless") else {
        return;
    };
    console.wait_for(DRAWN);
    let ids = ids(folder.path());
    // The launcher makes the key a signal when it sees that somebody draws, for which it looks often; before that the
    // key is lost. A second signal would end the ranks at once.
    std::thread::sleep(Duration::from_secs(1));
    loop {
        console.press(CTRL_C);
        if console.comes(LEAVE, Duration::from_secs(30)) {
            break;
        }
    }
    let end = console.end();
    put_away_before(&end, "interrupted by SIGINT");
    let parameters: Vec<&str> = end.seen.split("parameters ").skip(1).collect();
    assert_eq!(parameters.len(), 2, "{:?}", end.seen);
    assert_eq!(parameters[0][..16], parameters[1][..16]);
    assert_gone(&ids);
}

#[test]
fn a_program_that_does_not_draw_keeps_its_labelled_lines() {
    let Some(console) = start(env!("CARGO_BIN_EXE_self_launching"), &["finish"]) else {
        return;
    };
    let end = console.end();
    assert!(end.status.success() && end.is_as_before, "{:?}", end.seen);
    for rank in [0, 1] {
        let line = format!("[rank {rank}] pid ");
        assert!(end.seen.contains(&line), "{:?}", end.seen);
    }
    assert!(!end.seen.contains(ENTER), "{:?}", end.seen);
}

#[test]
fn a_dumb_terminal_gets_no_escape_sequences() {
    if let Some(why) = script_is_missing() {
        eprintln!("skipped: {why}");
        return;
    }
    let seen = |term: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_self_launching"));
        command.args(["finish", "--device", "cpu"]);
        command.env("BONFIRE_LOG", "debug").env("TERM", term);
        Console::start(&command).end().seen
    };
    let coloured = seen("xterm");
    assert!(coloured.contains("\x1b["), "{coloured:?}");
    let plain = seen("dumb");
    assert!(plain.contains("device chosen") && !plain.contains('\x1b'), "{plain:?}");
}
