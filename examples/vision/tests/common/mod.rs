//! A small data set that the tests make, in CIFAR-10's binary form, and the program that trains on it.

#![allow(clippy::unwrap_used, dead_code)] // helpers of tests, not each used by every test

pub(crate) mod flowers;
pub(crate) mod messages;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bonfire_testkit::oracle::scramble;
use bonfire_testkit::{Job, JobEnd};
use tempfile::TempDir;

/// Far beyond what the smallest training takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(400);

/// The program on the CPU, silent about what goes well or slowly.
pub(crate) fn program(command: &str, more: &[String]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_vision"));
    program.args([command, "--device", "cpu"]).args(more);
    program.env("BONFIRE_LOG", "error");
    program
}

pub(crate) fn start(command: &str, ranks: u32, more: &[String]) -> Job {
    let ranks = ["--nproc".to_owned(), ranks.to_string()];
    Job::start_for(&mut program(command, &[&ranks, more].concat()), LIMIT)
}

pub(crate) fn run(command: &str, ranks: u32, more: &[String]) -> JobEnd {
    start(command, ranks, more).end()
}

#[track_caller]
pub(crate) fn succeeds(command: &str, ranks: u32, more: &[String]) -> Vec<String> {
    let end = run(command, ranks, more);
    assert!(end.status.success(), "{end:#?}");
    end.stdout
}

/// The number after a word in a line.
pub(crate) fn figure(line: &str, word: &str) -> f64 {
    let rest = line.split(word).nth(1).unwrap().trim_start();
    let number: String =
        rest.chars().take_while(|letter| letter.is_ascii_digit() || *letter == '.').collect();
    number.trim_end_matches('.').parse().unwrap()
}

/// All files below a folder with their content.
pub(crate) fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path)
            } else {
                drop(files.insert(path.clone(), fs::read(path).unwrap()))
            }
        }
    }
    files
}

/// Bytes of one colour of a picture.
const PLANE: usize = 32 * 32;

/// Pictures of ten classes, each a colour of its own in noise: easily learnt.
#[derive(Debug)]
pub(crate) struct Pictures {
    folder: TempDir,
}

impl Pictures {
    /// So many pictures to learn from, and half as many to be judged by.
    pub(crate) fn new(training: usize) -> Self {
        Self::of(training, training / 2)
    }

    /// So many pictures to learn from, and to be judged by.
    pub(crate) fn of(training: usize, tests: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("data_batch_1.bin"), records(training, 1)).unwrap();
        fs::write(folder.path().join("test_batch.bin"), records(tests, 2)).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A folder that is not there yet.
    pub(crate) fn out_dir(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The pairs of a configuration that trains a small network on these pictures, with more after
    /// them.
    pub(crate) fn pairs(&self, out_dir: &Path, more: &str) -> Vec<String> {
        let fixed = "MODEL.ARCH resnet8 MODEL.NUM_CLASSES 10 TRAIN.FORMAT cifar10 \
                     TRAIN.AUGMENT none TRAIN.IM_SIZE 16 TEST.IM_SIZE 16 TRAIN.WORKERS 1 \
                     TRAIN.BATCH_SIZE 8 TEST.BATCH_SIZE 16 TRAIN.PRINT_FREQ 1 OPTIM.BASE_LR 0.1 \
                     OPTIM.WARMUP_EPOCHS 0 RNG_SEED 5";
        let words = fixed.split_whitespace().map(str::to_owned);
        let paths = [
            "TRAIN.DATASET".to_owned(),
            self.path().display().to_string(),
            "OUT_DIR".to_owned(),
            out_dir.display().to_string(),
        ];
        let more = more.split_whitespace().map(str::to_owned);
        words.chain(paths).chain(more).collect()
    }
}

/// Records of CIFAR-10: a label, then red, green and blue.
fn records(count: usize, seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * (1 + 3 * PLANE));
    for index in 0..count {
        let class = index % 10;
        bytes.push(class as u8);
        for channel in 0..3 {
            // Each colour is one of three levels; no two of ten classes have the same three.
            let level = 40 + 80 * (class / 3_usize.pow(channel as u32) % 3) as u64;
            let noise = |pixel: usize| {
                let place = (index * 3 + channel) * PLANE + pixel;
                scramble(seed ^ ((place as u64) << 8)) % 40
            };
            bytes.extend((0..PLANE).map(|pixel| (level + noise(pixel)) as u8));
        }
    }
    bytes
}
