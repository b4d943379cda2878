//! Errors that are said once. Also for the tests of other programs.

#![allow(dead_code)] // helpers of tests, not each used by every test

use bonfire_testkit::JobEnd;

/// A job that ended before any rank started: one line, which has these parts.
#[track_caller]
pub(crate) fn said_before_the_start(end: &JobEnd, parts: &[&str]) {
    assert_eq!(end.status.code(), Some(1), "{end:#?}");
    let [line] = &end.stderr[..] else { panic!("not one line: {end:#?}") };
    assert!(line.starts_with("error: "), "{line}");
    assert_parts(line, parts);
}

/// A job that ended because of a rank: that rank's line, which has these parts, and which rank it was.
#[track_caller]
pub(crate) fn said_by(rank: usize, end: &JobEnd, parts: &[&str]) {
    assert_eq!(end.status.code(), Some(1), "{end:#?}");
    // Around them the launcher says what each rank did.
    let said = beginning(&end.stderr, "[rank ");
    let verdicts = beginning(&end.stderr, "error: ");
    let ([line], [verdict]) = (&said[..], &verdicts[..]) else {
        panic!("not a line and a verdict: {end:#?}")
    };
    assert!(line.starts_with(&format!("[rank {rank}] error: ")), "{line}");
    assert_parts(line, parts);
    let who = verdict.strip_prefix(&format!("error: rank {rank} (process "));
    assert!(who.is_some_and(|who| who.ends_with(") exited with code 1")), "{verdict}");
}

/// As [`said_by`], of an error that every rank has: one of them says it, and one of them, perhaps another, is
/// the first to end with it.
#[track_caller]
pub(crate) fn said_by_any(end: &JobEnd, parts: &[&str]) {
    assert_eq!(end.status.code(), Some(1), "{end:#?}");
    let said = beginning(&end.stderr, "[rank ");
    let verdicts = beginning(&end.stderr, "error: rank ");
    let ([line], [verdict]) = (&said[..], &verdicts[..]) else {
        panic!("not a line and a verdict: {end:#?}")
    };
    assert!(line.contains("] error: "), "{line}");
    assert_parts(line, parts);
    assert!(verdict.ends_with(") exited with code 1"), "{verdict}");
}

/// As [`said_by`], of ranks that another launcher has started: all end with an error, and one says it.
#[track_caller]
pub(crate) fn said_by_one_of(ends: &[JobEnd], speaker: usize, parts: &[&str]) {
    for (rank, end) in ends.iter().enumerate() {
        if rank == speaker {
            assert_eq!(end.status.code(), Some(1), "{ends:#?}");
            let [line] = &end.stderr[..] else { panic!("not one line: {end:#?}") };
            assert!(line.starts_with(&format!("[rank {rank}] error: ")), "{line}");
            assert_parts(line, parts);
        } else {
            // The exit code for the failure of another rank.
            assert_eq!(end.status.code(), Some(75), "{ends:#?}");
            assert_eq!(end.stderr, [""; 0], "{ends:#?}");
        }
    }
}

fn beginning<'a>(lines: &'a [String], start: &str) -> Vec<&'a str> {
    let lines = lines.iter().map(String::as_str);
    lines.filter(|line| line.starts_with(start)).collect()
}

#[track_caller]
fn assert_parts(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part:?} is missing in {line}");
    }
}
