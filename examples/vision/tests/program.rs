//! The program as its users start it: real processes, real files.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bonfire::World;
use bonfire_testkit::{Job, JobEnd, Signal};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use common::Pictures;
use vision::config::Config;
use vision::weights;

/// Far beyond what the smallest training takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(400);

fn start(command: &str, ranks: u32, more: &[String]) -> Job {
    let mut program = Command::new(env!("CARGO_BIN_EXE_vision"));
    program.args([command, "--nproc", &ranks.to_string(), "--device", "cpu"]);
    Job::start_for(program.args(more), LIMIT)
}

fn run(command: &str, ranks: u32, more: &[String]) -> JobEnd {
    start(command, ranks, more).end()
}

#[track_caller]
fn succeeds(command: &str, ranks: u32, more: &[String]) -> Vec<String> {
    let end = run(command, ranks, more);
    assert!(end.status.success(), "{end:#?}");
    end.stdout
}

/// All files below a folder with their content.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => open.push(path),
                false => drop(files.insert(path.clone(), fs::read(path).unwrap())),
            }
        }
    }
    files
}

/// The parameters in the newest checkpoint of a run, bit for bit, and the running statistics.
fn newest(out_dir: &Path) -> Vec<u32> {
    struct Bits(Vec<u32>);
    impl ModuleVisitor for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.val().into_data();
            self.0.extend(data.iter::<f32>().map(f32::to_bits));
        }
    }
    let file = files(&out_dir.join("checkpoints"))
        .into_keys()
        .rfind(|path| path.file_name().unwrap() == "model.bpk")
        .unwrap();
    let config = Config::load(Some(&out_dir.join("config.yaml")), &[]).unwrap();
    let load = |world: World| {
        let model = config.network().init(1, &world.device());
        let mut bits = Bits(Vec::new());
        weights::load(model, &file, &world).map(|model| {
            model.visit(&mut bits);
            bits.0
        })
    };
    bonfire::spawn(1, load).unwrap().remove(0)
}

/// The number after a word in a line.
fn figure(line: &str, word: &str) -> f64 {
    let rest = line.split(word).nth(1).unwrap().trim_start();
    let number: String = rest
        .chars()
        .take_while(|letter| letter.is_ascii_digit() || *letter == '.')
        .collect();
    number.trim_end_matches('.').parse().unwrap()
}

#[test]
fn two_ranks_learn_and_the_best_is_tested_again() {
    let pictures = Pictures::new(160);
    let out_dir = pictures.out_dir("run");
    let pairs = pictures.pairs(&out_dir, "OPTIM.MAX_EPOCH 4");
    let lines = succeeds("train", 2, &pairs);
    let all = lines.join("\n");
    assert!(
        all.contains("2 ranks × batch 8 × accumulation 1 = global batch 16"),
        "{all}"
    );
    assert!(all.contains("resnet8 with"), "{all}");
    assert!(
        all.contains("TRAIN [1][10/10]") && all.contains("ETA"),
        "{all}"
    );
    let done = lines.iter().find(|line| line.contains("done: ")).unwrap();
    let best = figure(done, "best");
    assert!(
        best > 60.0,
        "ten classes were learnt to {best} per cent only: {all}"
    );

    // The saved configuration is the whole configuration.
    let saved = out_dir.join("config.yaml");
    let config = Config::load(Some(&saved), &[]).unwrap();
    assert_eq!(config, Config::load(None, &pairs).unwrap());
    assert!(files(&out_dir.join("tensorboard")).len() == 1);
    let tested = succeeds(
        "test",
        3,
        &["--cfg".to_owned(), saved.display().to_string()],
    );
    let line = tested.iter().find(|line| line.contains("Acc@1")).unwrap();
    let last = tested
        .iter()
        .rfind(|line| line.contains("80 pictures"))
        .unwrap();
    // Printed with three digits.
    assert!(
        (figure(last, "Acc@1") - best).abs() < 2e-3,
        "{line}\n{last}\n{done}"
    );
}

#[test]
fn a_killed_training_ends_with_the_same_bits() {
    let pictures = Pictures::new(64);
    let more = "OPTIM.MAX_EPOCH 5 OPTIM.WARMUP_EPOCHS 1";
    let [whole, killed] = ["whole", "killed"].map(|name| pictures.out_dir(name));
    succeeds("train", 2, &pictures.pairs(&whole, more));

    let pairs = pictures.pairs(&killed, more);
    let job = start("train", 2, &pairs);
    while !job.next_line().contains("TRAIN [2][1/4]") {}
    job.signal(Signal::KILL);
    let end = job.end();
    assert!(!end.status.success());
    let lines = succeeds("train", 2, &pairs).join("\n");
    assert!(lines.contains("resumed after epoch"), "{lines}");
    assert!(!lines.contains("TRAIN [1]"), "{lines}");
    assert_eq!(newest(&whole), newest(&killed));

    // And once more, when nothing is left to do.
    let again = succeeds("train", 2, &pairs).join("\n");
    assert!(
        again.contains("all 5 epochs are trained already"),
        "{again}"
    );
}

/// Starts the program with something wrong: every rank ends with an error, one line says what, and
/// nothing has changed on disk.
#[track_caller]
fn refuses(command: &str, pairs: &[String], out_dir: &Path, parts: &[&str]) {
    let before = files(out_dir);
    let end = run(command, 2, pairs);
    assert!(!end.status.success(), "{end:#?}");
    let told = |line: &&String| parts.iter().all(|part| line.contains(part));
    assert!(
        end.stderr.iter().any(|line| told(&line)),
        "{parts:?} in {end:#?}"
    );
    assert!(
        !end.stdout.iter().any(|line| line.contains("TRAIN [")),
        "{end:#?}"
    );
    assert_eq!(
        before.keys().collect::<Vec<_>>(),
        files(out_dir).keys().collect::<Vec<_>>()
    );
    assert_eq!(before, files(out_dir));
}

#[test]
fn what_is_wrong_is_said_in_one_line_before_any_rank_starts() {
    let pictures = Pictures::new(20);
    let out_dir = pictures.out_dir("run");
    let folder = pictures.out_dir("folders");
    for class in ["train/a", "train/b", "val/a", "val/c", "few/a"] {
        fs::create_dir_all(folder.join(class)).unwrap();
        fs::write(folder.join(class).join("1.jpg"), b"never read").unwrap();
    }
    fs::create_dir_all(folder.join("empty")).unwrap();
    let folders = format!(
        "TRAIN.FORMAT folder MODEL.NUM_CLASSES 2 TRAIN.TOPK 1 TRAIN.DATASET {}",
        folder.display()
    );
    let cases: [(&str, String, &[&str]); 8] = [
        (
            "train",
            "TRAIN.BATCHSIZE 8".into(),
            &["command line", "did you mean `TRAIN.BATCH_SIZE`?"],
        ),
        (
            "train",
            "TRAIN.BATCH_SIZE many".into(),
            &["TRAIN.BATCH_SIZE", "string \"many\""],
        ),
        (
            "train",
            "MODEL.NUM_CLASSES 7".into(),
            &["TRAIN.SPLIT", "10 classes", "7 are expected"],
        ),
        (
            "train",
            format!("{folders} TRAIN.SPLIT empty"),
            &["TRAIN.SPLIT", "empty"],
        ),
        (
            "train",
            format!("{folders} TRAIN.SPLIT none"),
            &["TRAIN.SPLIT", "none"],
        ),
        (
            "train",
            format!("{folders} TEST.SPLIT few"),
            &["TEST.SPLIT", "1 classes"],
        ),
        ("train", folders.clone(), &["TEST.SPLIT", "`c`", "`b`"]),
        ("test", String::new(), &["best.bpk", "MODEL.WEIGHTS"]),
    ];
    for (command, more, parts) in cases {
        let pairs = pictures.pairs(&out_dir, &more);
        refuses(command, &pairs, &out_dir, parts);
        assert!(!out_dir.exists(), "{more} made the output folder");
        let end = run(command, 2, &pairs);
        assert_eq!(end.stderr.len(), 1, "one line for {more}: {end:#?}");
    }
}

#[test]
fn what_belongs_to_another_network_is_refused_and_kept() {
    let pictures = Pictures::new(20);
    let out_dir = pictures.out_dir("run");
    let more = "OPTIM.MAX_EPOCH 1";
    succeeds("train", 2, &pictures.pairs(&out_dir, more));
    let other = |more: &str| format!("OPTIM.MAX_EPOCH 2 {more}");
    let pairs = |more: &str| pictures.pairs(&out_dir, &other(more));
    refuses(
        "train",
        &pairs("MODEL.ARCH resnet20"),
        &out_dir,
        &["of another model"],
    );
    refuses(
        "train",
        &pairs("TRAIN.AUTO_RESUME false"),
        &out_dir,
        &["OUT_DIR"],
    );
    refuses(
        "train",
        &pairs("RNG_SEED 6"),
        &out_dir,
        &["seed 5", "seed 6"],
    );
    refuses(
        "test",
        &pairs("MODEL.ARCH resnet20"),
        &out_dir,
        &["best.bpk", "this network"],
    );

    let elsewhere = pictures.out_dir("other");
    let weights = format!(
        "{more} MODEL.ARCH resnet20 MODEL.WEIGHTS {}",
        out_dir.join("best.bpk").display()
    );
    refuses(
        "train",
        &pictures.pairs(&elsewhere, &weights),
        &elsewhere,
        &["best.bpk", "this network"],
    );
}

#[test]
fn a_loss_that_is_no_number_stops_all_ranks() {
    let pictures = Pictures::new(40);
    let out_dir = pictures.out_dir("run");
    let end = run("train", 2, &pictures.pairs(&out_dir, "OPTIM.BASE_LR 1e30"));
    assert!(!end.status.success());
    let told = |line: &String| line.contains("loss") && line.contains("rank");
    assert!(end.stderr.iter().any(told), "{end:#?}");
    assert!(!out_dir.join("best.bpk").exists());
    assert!(files(&out_dir.join("checkpoints")).is_empty());
}
