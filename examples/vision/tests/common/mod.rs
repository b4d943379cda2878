//! A small data set that the tests make, in CIFAR-10's binary form.

#![allow(clippy::unwrap_used, dead_code)] // helpers of tests, not each used by every test

use std::fs;
use std::path::{Path, PathBuf};

use bonfire_testkit::oracle::scramble;
use tempfile::TempDir;

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
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("data_batch_1.bin"), records(training, 1)).unwrap();
        fs::write(
            folder.path().join("test_batch.bin"),
            records(training / 2, 2),
        )
        .unwrap();
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
