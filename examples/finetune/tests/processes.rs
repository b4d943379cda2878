//! The program itself, as real processes, on pictures that the test draws.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../../vision/tests/common/flowers.rs"]
mod flowers;
#[path = "../../vision/tests/common/messages.rs"]
mod messages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bonfire_testkit::{Job, JobEnd, Signal, of_another_launcher, read_by_tensorboard};
use messages::{said_before_the_start, said_by, said_by_any, said_by_one_of};

/// Far beyond what the smallest training takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(400);

/// Twenty pictures of each of three classes.
fn flowers(folder: &Path) -> PathBuf {
    let root = folder.join("flowers");
    flowers::draw(&root, 20);
    root
}

/// The program on the CPU with a small network, and whatever else.
fn finetune(data: &Path, out: &Path, more: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_finetune"));
    for (flag, value) in [("--batch-size", "4"), ("--arch", "resnet8"), ("--lr", "0.05")] {
        if !more.contains(flag) {
            command.args([flag, value]);
        }
    }
    command
        .args(["--device", "cpu", "--size", "32", "--data"])
        .arg(data)
        .arg("--out")
        .arg(out)
        .args(more.split_whitespace())
        .env("BONFIRE_LOG", "error");
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
    lines.map(|line| (number(line, "mean loss"), number(line, "accuracy"))).collect()
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
    let second = run(&data, &out, &format!("{common} 8"));
    let lines: Vec<&String> =
        second.stdout.iter().filter(|line| line.contains("[epoch ")).collect();
    assert_eq!(lines.len(), 2, "{:?}", second.stdout);
    assert!(lines[0].contains("[epoch 6]"), "{}", lines[0]);
    for epoch in 0..8 {
        let file = out.join(format!("weights/model-{epoch}.safetensors"));
        let bytes = fs::read(&file).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        // The names of PyTorch.
        assert!(text.contains("\"layer1.0.bn1.weight\""), "{}", file.display());
    }
    check_curves(&out, &[epochs(&first), epochs(&second)].concat());
}

/// What TensorBoard shows is what was printed.
#[track_caller]
fn check_curves(out: &Path, printed: &[(f64, f64)]) {
    let Some(scalars) = read_by_tensorboard(out) else {
        return;
    };
    let curve = |wanted: &str| -> Vec<f64> {
        let points = scalars.iter().filter(|(tag, ..)| tag == wanted);
        let (steps, values): (Vec<u64>, Vec<f64>) = points.map(|point| (point.1, point.2)).unzip();
        assert_eq!(steps, (0..printed.len() as u64).collect::<Vec<_>>(), "{wanted}");
        values
    };
    let (losses, accuracies) = (curve("loss"), curve("accuracy"));
    for (epoch, (loss, accuracy)) in printed.iter().enumerate() {
        // Printed with three digits.
        assert!((losses[epoch] - loss).abs() < 1e-3, "{losses:?} {printed:?}");
        assert!((accuracies[epoch] - accuracy).abs() < 1e-3, "{accuracies:?} {printed:?}");
    }
    let rates = curve("learning_rate");
    assert!((rates[0] - 0.05).abs() < 1e-6, "{rates:?}");
}

/// Without it each rank normalises with its own batch, so the loss is another from the first step on.
#[test]
fn batches_of_all_ranks_are_normalised_together_if_asked() {
    let folder = tempfile::tempdir().unwrap();
    let data = flowers(folder.path());
    let first_loss = |name: &str, more: &str| {
        let common = "--num-classes 3 --epochs 1 --freeze-layers --lr 1e-9";
        let end = run(&data, &folder.path().join(name), &format!("{common} {more}"));
        epochs(&end)[0].0
    };
    // Nothing is learnt, and four pictures of two ranks are the same as those of one rank with eight.
    let alone = first_loss("alone", "--nproc 1 --batch-size 8");
    let together = first_loss("together", "--nproc 2 --batch-size 4 --sync-bn");
    let apart = first_loss("apart", "--nproc 2 --batch-size 4");
    // Printed with three digits.
    assert!((alone - together).abs() < 2e-3, "{alone} {together}");
    assert!((alone - apart).abs() > 2e-3, "{alone} {apart}");
}

/// A safetensors file with tensors of these names and shapes.
fn safetensors(path: &Path, tensors: &[(&str, &[usize])]) {
    let mut description = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    for (name, shape) in tensors {
        let start = data.len();
        let count: usize = shape.iter().product();
        data.extend((0..count).flat_map(|value| (value as f32 * 1e-3).to_le_bytes()));
        let entry = serde_json::json!({
            "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()],
        });
        description.insert((*name).to_owned(), entry);
    }
    let description = serde_json::to_vec(&description).unwrap();
    let length = (description.len() as u64).to_le_bytes();
    fs::write(path, [&length[..], &description, &data].concat()).unwrap();
}

#[test]
fn pretrained_parameters_are_taken_as_far_as_they_fit_and_frozen() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (flowers(folder.path()), folder.path().join("runs"));
    let weights = folder.path().join("pretrained.safetensors");
    // The first layer of the network, and a head for a thousand classes.
    let (first, head): (&[_], &[_]) = (&[16, 3, 3, 3], &[1000, 64]);
    safetensors(&weights, &[("conv1.weight", first), ("fc.weight", head)]);
    let more = format!(
        "--nproc 2 --num-classes 3 --epochs 1 --freeze-layers --weights {}",
        weights.display()
    );
    let end = run(&data, &out, &more);
    assert_eq!(epochs(&end).len(), 1);
    let said = |part: &str| end.stdout.iter().any(|line| line.contains(part));
    assert!(said("1 loaded, 1 skipped by shape"), "{:?}", end.stdout);
    assert!(said("fc.weight (model [64, 3], file [64, 1000])"), "{:?}", end.stdout);
    assert!(said("parameters are frozen"), "{:?}", end.stdout);
}

/// A start that fails before any rank does anything leaves nothing behind.
#[track_caller]
fn refused(data: &Path, more: &str, expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("runs");
    said_before_the_start(&run(data, &out, more), &[expected]);
    assert!(!out.exists(), "{more} left something behind");
}

#[test]
fn what_is_wrong_before_the_start_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let data = flowers(folder.path());
    let missing = folder.path().join("nothing");
    refused(&missing, "--nproc 2", "cannot read");
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    refused(&empty, "--nproc 2", "empty has no class folders");
    refused(&data, "--nproc 2", "3 classes (daisies, roses, violets), but 5 are expected");
    let three = "--nproc 2 --num-classes 3";
    refused(&data, &format!("{three} --weights no.pth"), "cannot read weights from no.pth");
    let text = folder.path().join("text.safetensors");
    fs::write(&text, "no tensors").unwrap();
    let weights = format!("{three} --weights {}", text.display());
    refused(&data, &weights, "cannot read weights from");
    fs::create_dir(data.join("tulips")).unwrap();
    refused(&data, three, "tulips has no jpg, jpeg or png picture");
    fs::remove_dir(data.join("tulips")).unwrap();
    // One picture cannot be both learnt from and held out.
    fs::create_dir(data.join("lonely")).unwrap();
    fs::copy(data.join("roses/000.jpg"), data.join("lonely/000.jpg")).unwrap();
    refused(&data, "--nproc 2 --num-classes 4", "cannot be split");
}

/// Starts two ranks, of which rank 0 says for both what is wrong; there is nothing new on disk.
#[track_caller]
fn refused_by_ranks(data: &Path, out: &Path, more: &str, parts: &[&str]) {
    let is_there = out.exists();
    let ends = of_another_launcher(2, LIMIT, || finetune(data, out, more));
    said_by_one_of(&ends, 0, parts);
    assert_eq!(out.exists(), is_there);
}

#[test]
fn what_is_wrong_later_ends_all_ranks_and_is_said_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let data = flowers(folder.path());
    let out = folder.path().join("runs");
    let three = "--num-classes 3 --epochs 3";
    let large = format!("{three} --batch-size 100");
    let smaller = "choose a smaller --batch-size";
    refused_by_ranks(&data, &out, &large, &[smaller]);
    said_by(0, &run(&data, &out, &format!("{large} --nproc 2")), &[smaller]);
    let foreign = folder.path().join("foreign.safetensors");
    safetensors(&foreign, &[("encoder.weight", &[2, 2])]);
    let weights = format!("{three} --weights {}", foreign.display());
    let none = "none of the 1 tensors";
    refused_by_ranks(&data, &out, &weights, &[none, "foreign.safetensors", "encoder.weight"]);
    let below_a_file = foreign.join("runs");
    refused_by_ranks(&data, &below_a_file, three, &["rank 0 can write to"]);
    // All ranks see it in the same step.
    let diverging = run(&data, &out, &format!("{three} --lr 1e30 --nproc 2"));
    said_by_any(&diverging, &["loss", "is not finite"]);
    assert!(!out.exists());

    let one = "--num-classes 3 --epochs 1";
    assert_eq!(epochs(&run(&data, &out, &format!("{one} --nproc 2"))).len(), 1);
    let other = format!("{three} --arch resnet20");
    refused_by_ranks(&data, &out, &other, &["step-000000006 is of another model"]);
}

#[test]
fn a_damaged_picture_is_named_by_its_rank_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let data = flowers(folder.path());
    let out = folder.path().join("runs");
    flowers::cut(&data.join("roses/007.jpg"));
    let end = run(&data, &out, "--nproc 2 --num-classes 3 --epochs 2");
    let rank = usize::from(end.stderr.iter().any(|line| line.starts_with("[rank 1]")));
    said_by(rank, &end, &["roses/007.jpg ends after"]);
    assert!(!out.exists());
}

#[test]
fn a_picture_that_is_damaged_meanwhile_ends_the_run_after_its_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let data = flowers(folder.path());
    let out = folder.path().join("runs");
    let common = "--nproc 2 --num-classes 3 --epochs";
    let job = Job::start_for(&mut finetune(&data, &out, &format!("{common} 40")), LIMIT);
    while !job.next_line().contains("[epoch 1]") {}
    let damaged = data.join("roses/007.jpg");
    let sound = fs::read(&damaged).unwrap();
    flowers::cut(&damaged);
    let end = job.end();
    let rank = usize::from(end.stderr.iter().any(|line| line.starts_with("[rank 1]")));
    said_by(rank, &end, &["roses/007.jpg ends after"]);
    let done = 2 + end.stdout.iter().filter(|line| line.contains("[epoch ")).count();
    // 48 pictures in steps of 8.
    let newest = out.join(format!("checkpoints/step-{:09}", done * 6));
    assert!(newest.join("manifest.json").exists(), "{end:#?}");
    for entry in fs::read_dir(out.join("checkpoints")).unwrap() {
        let name = entry.unwrap().file_name();
        let is_whole = name.to_string_lossy().starts_with("step-");
        assert!(is_whole || name == ".lock", "{name:?}");
    }

    fs::write(&damaged, sound).unwrap();
    let again = run(&data, &out, &format!("{common} {}", done + 1));
    assert_eq!(epochs(&again).len(), 1, "{again:#?}");
}

/// The lines of the epochs.
fn lines(end: &JobEnd) -> Vec<&String> {
    let lines = end.stdout.iter();
    lines.filter(|line| line.contains("[epoch ")).collect()
}

#[test]
fn ctrl_c_keeps_where_it_was_and_the_same_command_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = flowers(folder.path());
    let [whole, stopped] = ["whole", "stopped"].map(|name| folder.path().join(name));
    let more = "--nproc 2 --num-classes 3 --epochs 20";
    let whole = run(&data, &whole, more);
    epochs(&whole);

    let job = Job::start_for(&mut finetune(&data, &stopped, more), LIMIT);
    while !job.next_line().contains("[epoch 1]") {}
    job.signal(Signal::INT);
    let end = job.end();
    assert_eq!(end.status.code(), Some(130), "{end:#?}");
    assert_eq!(end.stderr, ["error: interrupted by SIGINT; all ranks have ended"]);
    let last = end.stdout.last().unwrap();
    let (_, steps) = last.split_once("stopped after step ").unwrap();
    let (steps, rest) = steps.split_once("; ").unwrap();
    assert_eq!(rest, "the same command continues from there");
    let steps: u64 = steps.parse().unwrap();
    let checkpoint = format!("checkpoints/step-{steps:09}/manifest.json");
    assert!(stopped.join(checkpoint).exists(), "{end:#?}");

    let again = run(&data, &stopped, more);
    assert!(again.status.success(), "{again:#?}");
    // Every epoch is there once and comes to the same, the one that was interrupted, too. The first two
    // were read from the job.
    let rest = [lines(&end), lines(&again)].concat();
    assert_eq!(rest, lines(&whole)[2..], "{end:#?} {again:#?}");
}

#[test]
fn a_rank_alone_stops_as_the_signal_says() {
    let folder = tempfile::tempdir().unwrap();
    let data = flowers(folder.path());
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let out = folder.path().join(code.to_string());
        let more = "--nproc 1 --num-classes 3 --epochs 40";
        let job = Job::start_for(&mut finetune(&data, &out, more), LIMIT);
        while !job.next_line().contains("[epoch 0]") {}
        job.signal(signal);
        let end = job.end();
        assert_eq!(end.status.code(), Some(code), "{end:#?}");
        let last = end.stdout.last().unwrap();
        assert!(last.starts_with("stopped after step"), "{end:#?}");
        assert_eq!(end.stderr, [""; 0]);
    }
}
