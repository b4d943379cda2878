//! The program itself, as real processes, on pictures that the test draws.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bonfire_testkit::{Job, JobEnd};
use image::{Rgb, RgbImage};

const CLASSES: [(&str, [u8; 3]); 3] = [
    ("daisies", [220, 220, 210]),
    ("roses", [200, 20, 40]),
    ("violets", [60, 30, 200]),
];

const OF_EACH: u32 = 20;

/// Far beyond what the smallest training takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(400);

/// JPEG files of three colours, uneven in size and brightness.
fn flowers(folder: &Path) -> PathBuf {
    let root = folder.join("flowers");
    for (class, colour) in CLASSES {
        fs::create_dir_all(root.join(class)).unwrap();
        for index in 0..OF_EACH {
            let picture = RgbImage::from_fn(36 + index, 48 - index, |x, y| {
                let shade = (x * 7 + y * 13 + index * 5) % 40;
                Rgb(colour.map(|channel: u8| channel.saturating_sub(shade as u8)))
            });
            let path = root.join(class).join(format!("{index:03}.jpg"));
            picture.save(path).unwrap();
        }
    }
    root
}

/// The program on the CPU with a small network, and whatever else.
fn finetune(data: &Path, out: &Path, more: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_finetune"));
    if !more.contains("--batch-size") {
        command.args(["--batch-size", "4"]);
    }
    command
        .args(["--device", "cpu", "--arch", "resnet8", "--size", "32"])
        .args(["--lr", "0.05", "--data"])
        .arg(data)
        .arg("--out")
        .arg(out)
        .args(more.split_whitespace())
        .env("BONFIRE_LOG", "warn");
    command
}

fn run(data: &Path, out: &Path, more: &str) -> JobEnd {
    Job::start_for(&mut finetune(data, out, more), LIMIT).end()
}

/// Mean loss and accuracy of every epoch that was reported.
fn epochs(end: &JobEnd) -> Vec<(f64, f64)> {
    assert!(end.status.success(), "{:?}", end.stderr);
    let number = |line: &str, name: &str| -> f64 {
        let (_, rest) = line.split_once(name).unwrap();
        rest.split(',').next().unwrap().trim().parse().unwrap()
    };
    let lines = end.stdout.iter().filter(|line| line.contains("[epoch "));
    lines
        .map(|line| (number(line, "mean loss"), number(line, "accuracy")))
        .collect()
}

#[test]
fn two_ranks_learn_the_flowers_and_a_second_start_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (flowers(folder.path()), folder.path().join("runs"));
    let common = "--nproc 2 --num-classes 3 --epochs";
    let first = run(&data, &out, &format!("{common} 6"));
    let learnt = epochs(&first);
    assert_eq!(learnt.len(), 6, "{:?}", first.stdout);
    assert!(learnt[5].0 < 0.5 * learnt[0].0, "{learnt:?}");
    // Three colours, of which guessing finds a third.
    assert!(learnt[5].1 > 0.8, "{learnt:?}");
    let headline = first
        .stdout
        .iter()
        .any(|line| line.contains("48 pictures to learn from, 12 held out; 2 ranks × batch 4"));
    assert!(headline, "{:?}", first.stdout);
    let events = fs::read_dir(&out).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().contains("tfevents")
    });
    let events: Vec<PathBuf> = events.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(events.len(), 1, "one rank writes");
    let bytes = fs::read(&events[0]).unwrap();
    for tag in ["loss", "accuracy", "learning_rate"] {
        let found = bytes
            .windows(tag.len())
            .filter(|part| part == &tag.as_bytes());
        assert_eq!(found.count(), 6, "{tag} once per epoch");
    }

    let second = run(&data, &out, &format!("{common} 8"));
    let lines: Vec<&String> = second
        .stdout
        .iter()
        .filter(|line| line.contains("[epoch "))
        .collect();
    assert_eq!(lines.len(), 2, "{:?}", second.stdout);
    assert!(lines[0].contains("[epoch 6]"), "{}", lines[0]);
}

/// A safetensors file with the first layer of the network, and a head for a thousand classes.
fn pretrained(folder: &Path) -> PathBuf {
    let tensors = [
        ("conv1.weight", vec![16_usize, 3, 3, 3]),
        ("fc.weight", vec![1000, 64]),
    ];
    let mut description = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    for (name, shape) in tensors {
        let start = data.len();
        let count: usize = shape.iter().product();
        data.extend((0..count).flat_map(|value| (value as f32 * 1e-3).to_le_bytes()));
        let entry = serde_json::json!({
            "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()],
        });
        description.insert(name.to_owned(), entry);
    }
    let description = serde_json::to_vec(&description).unwrap();
    let length = (description.len() as u64).to_le_bytes();
    let path = folder.join("pretrained.safetensors");
    fs::write(&path, [&length[..], &description, &data].concat()).unwrap();
    path
}

#[test]
fn pretrained_parameters_are_taken_as_far_as_they_fit_and_frozen() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (flowers(folder.path()), folder.path().join("runs"));
    let weights = pretrained(folder.path());
    let more = format!(
        "--nproc 2 --num-classes 3 --epochs 1 --freeze-layers --weights {}",
        weights.display()
    );
    let end = run(&data, &out, &more);
    assert_eq!(epochs(&end).len(), 1);
    let said = |part: &str| end.stdout.iter().any(|line| line.contains(part));
    assert!(said("1 loaded, 1 skipped by shape"), "{:?}", end.stdout);
    assert!(
        said("fc.weight (model [64, 3], file [64, 1000])"),
        "{:?}",
        end.stdout
    );
    assert!(said("parameters are frozen"), "{:?}", end.stdout);
}

/// A start that fails before any rank does anything: one line, and nothing is left.
#[track_caller]
fn refused(data: &Path, more: &str, expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("runs");
    let end = run(data, &out, more);
    assert!(!end.status.success());
    let [line] = &end.stderr[..] else {
        panic!("not one line: {:?}", end.stderr)
    };
    assert!(line.contains(expected), "{line}");
    assert!(!out.exists(), "{more} left something behind");
}

#[test]
fn what_is_wrong_before_the_start_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let data = flowers(folder.path());
    let missing = folder.path().join("nothing");
    refused(&missing, "--nproc 2", "cannot read");
    refused(
        &data,
        "--nproc 2",
        "3 classes (daisies, roses, violets), but 5 are expected",
    );
    let three = "--nproc 2 --num-classes 3";
    refused(
        &data,
        &format!("{three} --weights no.pth"),
        "cannot read weights from no.pth",
    );
    let text = folder.path().join("text.safetensors");
    fs::write(&text, "no tensors").unwrap();
    let weights = format!("{three} --weights {}", text.display());
    refused(&data, &weights, "cannot read weights from");
    fs::create_dir(data.join("tulips")).unwrap();
    refused(&data, three, "tulips has no jpg, jpeg or png picture");
}

#[test]
fn what_is_wrong_later_ends_all_ranks_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = flowers(folder.path());
    let out = folder.path().join("runs");
    let three = "--nproc 2 --num-classes 3 --epochs 2";

    let end = run(&data, &out, &format!("{three} --batch-size 100"));
    assert!(!end.status.success());
    let named = |end: &JobEnd, part: &str| end.stderr.iter().any(|line| line.contains(part));
    assert!(
        named(&end, "choose a smaller --batch-size"),
        "{:?}",
        end.stderr
    );
    assert!(!out.exists());

    let cut = data.join("roses/007.jpg");
    let bytes = fs::read(&cut).unwrap();
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let end = run(&data, &out, three);
    assert!(!end.status.success());
    assert!(named(&end, "roses/007.jpg ends after"), "{:?}", end.stderr);
    // No epoch was whole, so there is no checkpoint, not even a part of one.
    let checkpoints = fs::read_dir(out.join("checkpoints")).unwrap();
    assert_eq!(checkpoints.count(), 0);
}
