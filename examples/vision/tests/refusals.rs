//! What is wrong is said once, by one rank or before any starts, and leaves nothing half-done behind.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use bonfire_testkit::of_another_launcher;
use common::messages::{said_before_the_start, said_by, said_by_any, said_by_one_of};
use common::{LIMIT, Pictures, files, flowers, program, run, start, succeeds};

#[test]
fn what_is_wrong_is_said_before_any_rank_starts() {
    let pictures = Pictures::new(20);
    let out_dir = pictures.out_dir("run");
    let folder = pictures.out_dir("folders");
    for class in ["train/a", "train/b", "val/a", "val/c", "few/a", "bare/a", "bare/b"] {
        fs::create_dir_all(folder.join(class)).unwrap();
        if !class.starts_with("bare") {
            fs::write(folder.join(class).join("1.jpg"), b"never read").unwrap();
        }
    }
    fs::create_dir_all(folder.join("empty")).unwrap();
    let folders = format!(
        "TRAIN.FORMAT folder MODEL.NUM_CLASSES 2 TRAIN.TOPK 1 TRAIN.DATASET {}",
        folder.display()
    );
    let split = |key: &str, name: &str| format!("{folders} {key} {name}");
    let cases: [(&str, String, &[&str]); 11] = [
        (
            "train",
            "TRAIN.BATCHSIZE 8".into(),
            &["command line", "did you mean `TRAIN.BATCH_SIZE`?"],
        ),
        ("train", "TRAIN.BATCH_SIZE many".into(), &["TRAIN.BATCH_SIZE", "string \"many\""]),
        ("train", "MODEL.NUM_CLASSES 7".into(), &["TRAIN.SPLIT", "10 classes", "7 are expected"]),
        ("train", split("TRAIN.SPLIT", "empty"), &["TRAIN.SPLIT", "empty"]),
        ("train", split("TRAIN.SPLIT", "bare"), &["TRAIN.SPLIT", "bare/a", "has no jpg"]),
        ("train", split("TEST.SPLIT", "bare"), &["TEST.SPLIT", "bare/a", "has no jpg"]),
        ("train", split("TRAIN.SPLIT", "none"), &["TRAIN.SPLIT", "none"]),
        ("train", split("TEST.SPLIT", "few"), &["TEST.SPLIT", "1 classes"]),
        ("train", folders.clone(), &["TEST.SPLIT", "`c`", "`b`"]),
        ("test", String::new(), &["best.bpk", "MODEL.WEIGHTS"]),
        ("test", split("TEST.SPLIT", "few"), &["best.bpk", "MODEL.WEIGHTS"]),
    ];
    for (command, more, parts) in cases {
        let end = run(command, 2, &pictures.pairs(&out_dir, &more));
        said_before_the_start(&end, parts);
        assert!(!out_dir.exists(), "{more} made the output folder");
    }
}

#[test]
fn a_slip_in_the_file_is_named_with_its_line() {
    let pictures = Pictures::new(20);
    let out_dir = pictures.out_dir("run");
    let cfg = pictures.out_dir("run.yaml");
    let cases: [(&str, &[&str]); 4] = [
        (
            "MODEL:\n  ARCH: resnet8\n  NUM_CLASES: 10\n",
            &["run.yaml line 3", "did you mean `MODEL.NUM_CLASSES`?"],
        ),
        ("MODEL:\n  ARCH: resnet9\n", &["run.yaml line 2", "MODEL.ARCH", "did you mean resnet"]),
        ("TRAIN:\n  BATCH_SIZE: [8\n", &["run.yaml", "line"]),
        ("OPTIM:\n  MOMENTUM: 2\n", &["run.yaml line 2", "OPTIM.MOMENTUM"]),
    ];
    for (text, parts) in cases {
        fs::write(&cfg, text).unwrap();
        let mut more = vec!["--cfg".to_owned(), cfg.display().to_string()];
        more.extend(["OUT_DIR".to_owned(), out_dir.display().to_string()]);
        said_before_the_start(&run("train", 2, &more), parts);
        assert!(!out_dir.exists(), "{text:?} made the output folder");
    }
}

/// Starts two ranks with something wrong: rank 0 says it for both, and nothing changes on disk.
#[track_caller]
fn refused(command: &str, pairs: &[String], out_dir: &Path, parts: &[&str]) {
    let before = files(out_dir);
    let ends = of_another_launcher(2, LIMIT, || program(command, pairs));
    said_by_one_of(&ends, 0, parts);
    let trained = |line: &String| line.contains("TRAIN [");
    assert!(!ends.iter().flat_map(|end| &end.stdout).any(trained), "{ends:#?}");
    assert!(before == files(out_dir), "{parts:?} changed the output folder");
    assert_eq!(!before.is_empty(), out_dir.exists());
}

#[test]
fn what_belongs_to_another_network_is_refused_and_kept() {
    let pictures = Pictures::new(20);
    let out_dir = pictures.out_dir("run");
    let more = "OPTIM.MAX_EPOCH 1";
    succeeds("train", 2, &pictures.pairs(&out_dir, more));
    let pairs = |more: &str| pictures.pairs(&out_dir, &format!("OPTIM.MAX_EPOCH 2 {more}"));
    let cases: [(&str, &str, &[&str]); 4] = [
        ("train", "MODEL.ARCH resnet20", &["of another model"]),
        ("train", "TRAIN.AUTO_RESUME false", &["OUT_DIR"]),
        ("train", "RNG_SEED 6", &["seed=5", "seed=6"]),
        ("test", "MODEL.ARCH resnet20", &["best.bpk", "this network"]),
    ];
    for (command, more, parts) in cases {
        refused(command, &pairs(more), &out_dir, parts);
    }
    let end = run("train", 2, &pairs("MODEL.ARCH resnet20"));
    said_by(0, &end, &["of another model"]);

    let elsewhere = pictures.out_dir("other");
    let path = out_dir.join("best.bpk");
    let weights = format!("{more} MODEL.ARCH resnet20 MODEL.WEIGHTS {}", path.display());
    let pairs = pictures.pairs(&elsewhere, &weights);
    refused("train", &pairs, &elsewhere, &["best.bpk", "this network"]);
    let text = pictures.out_dir("notes.safetensors");
    fs::write(&text, "no tensors").unwrap();
    let weights = format!("{more} MODEL.WEIGHTS {}", text.display());
    let pairs = pictures.pairs(&elsewhere, &weights);
    refused("train", &pairs, &elsewhere, &["notes.safetensors", "give a safetensors file"]);
}

#[test]
fn a_folder_that_cannot_be_made_is_refused() {
    let pictures = Pictures::new(20);
    let below_a_file = pictures.path().join("data_batch_1.bin/run");
    let pairs = pictures.pairs(&below_a_file, "");
    refused("train", &pairs, &below_a_file, &["data_batch_1.bin/run", "rank 0 can write to"]);
}

#[test]
fn a_loss_that_is_no_number_stops_all_ranks() {
    let pictures = Pictures::new(40);
    let out_dir = pictures.out_dir("run");
    let end = run("train", 2, &pictures.pairs(&out_dir, "OPTIM.BASE_LR 1e30"));
    said_by_any(&end, &["loss", "rank"]);
    assert!(!out_dir.join("best.bpk").exists());
    assert!(!out_dir.join("checkpoints").exists());
}

/// A data set of drawn flowers, in both splits, and the pairs of a configuration that trains on it.
fn garden(pictures: &Pictures, more: &str) -> (PathBuf, PathBuf, Vec<String>) {
    let (folder, out_dir) = (pictures.out_dir("garden"), pictures.out_dir("run"));
    for split in ["train", "val"] {
        flowers::draw(&folder.join(split), 16);
    }
    let more = format!(
        "TRAIN.FORMAT folder MODEL.NUM_CLASSES 3 TRAIN.TOPK 1 TRAIN.DATASET {} {more}",
        folder.display()
    );
    let pairs = pictures.pairs(&out_dir, &more);
    (folder, out_dir, pairs)
}

#[test]
fn a_damaged_picture_is_named_by_the_rank_that_reads_it() {
    let pictures = Pictures::new(20);
    // Both ranks read all of them in the first step, at the latest.
    let (folder, out_dir, pairs) = garden(&pictures, "TRAIN.BATCH_SIZE 24");
    flowers::cut(&folder.join("train/roses/007.jpg"));
    let end = run("train", 2, &pairs);
    let rank = usize::from(end.stderr.iter().any(|line| line.starts_with("[rank 1]")));
    said_by(rank, &end, &["roses/007.jpg", "ends after"]);
    assert!(!out_dir.exists(), "{:?}", files(&out_dir).keys());

    // All pictures of the test are damaged, so both ranks have one at once.
    let (folder, out_dir, pairs) = garden(&pictures, "TRAIN.BATCH_SIZE 24");
    for index in 0..16 {
        for class in ["daisies", "roses", "violets"] {
            flowers::cut(&folder.join(format!("val/{class}/{index:03}.jpg")));
        }
    }
    let ends = of_another_launcher(2, LIMIT, || program("train", &pairs));
    said_by_one_of(&ends, 0, &["val/", "ends after"]);
    assert!(!out_dir.join("checkpoints").exists());
}

#[test]
fn a_picture_that_is_damaged_meanwhile_ends_the_run_after_its_last_checkpoint() {
    let pictures = Pictures::new(20);
    let (folder, out_dir, pairs) = garden(&pictures, "TRAIN.BATCH_SIZE 4 OPTIM.MAX_EPOCH 40");
    let job = start("train", 2, &pairs);
    while !job.next_line().contains("epoch 1 |") {}
    let damaged = folder.join("train/violets/003.jpg");
    let sound = fs::read(&damaged).unwrap();
    flowers::cut(&damaged);
    let end = job.end();
    let rank = usize::from(end.stderr.iter().any(|line| line.starts_with("[rank 1]")));
    said_by(rank, &end, &["violets/003.jpg", "ends after"]);
    let half_done = |path: &PathBuf| {
        let path = path.strip_prefix(&out_dir).unwrap();
        path.iter().any(|part| part != ".lock" && part.as_encoded_bytes()[0] == b'.')
    };
    assert!(!files(&out_dir).keys().any(half_done), "{end:#?}");

    // Once it is there again, the run goes on from the last whole epoch.
    fs::write(&damaged, sound).unwrap();
    let whole = end.stdout.iter().filter(|line| line.contains(" | best Acc@1 "));
    let trained = 1 + whole.count();
    let pairs = [pairs, vec!["OPTIM.MAX_EPOCH".to_owned(), (trained + 1).to_string()]].concat();
    let lines = succeeds("train", 2, &pairs).join("\n");
    assert!(lines.contains(&format!("resumed after epoch {trained}")), "{lines}");
}
