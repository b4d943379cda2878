//! Jobs that end, well or badly: a small training, a misfortune that a seed chooses, and a judge.
//!
//! The training is real in all that can fail: a data loader, a model, gradients that are sent in
//! the background, agreed ends, checkpoints of rank 0, the launcher's own processes. The judge asks
//! of every ending: is it the same on all ranks, is the culprit named last, is the last checkpoint
//! whole and right, and is nothing left?

pub mod checkpoint;
pub mod model;
mod residue;
mod run;

use std::fmt;
use std::str::FromStr;

use bonfire_plan::UnknownName;
use chacha20::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

pub use run::{Ending, Times, now, run};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfortune {
    DatasetError,
    Panic,
    EarlyStop,
    /// A rank has one batch fewer, and all stop with it.
    OneBatchFewer,
    /// A rank has one batch fewer, and continues without samples until all are done.
    OneBatchShadowed,
    ExitZero,
    /// A rank is sent SIGKILL.
    Kill,
    /// A rank is sent SIGSTOP.
    Stop,
    /// The launcher is sent SIGKILL.
    KillLauncher,
    /// The launcher gets SIGINT, as by Ctrl-C.
    Interrupt,
}

impl Misfortune {
    pub const ALL: [Self; 10] = [
        Self::DatasetError,
        Self::Panic,
        Self::EarlyStop,
        Self::OneBatchFewer,
        Self::OneBatchShadowed,
        Self::ExitZero,
        Self::Kill,
        Self::Stop,
        Self::KillLauncher,
        Self::Interrupt,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::DatasetError => "dataset-error",
            Self::Panic => "panic",
            Self::EarlyStop => "early-stop",
            Self::OneBatchFewer => "one-batch-fewer",
            Self::OneBatchShadowed => "one-batch-shadowed",
            Self::ExitZero => "exit-zero",
            Self::Kill => "sigkill",
            Self::Stop => "sigstop",
            Self::KillLauncher => "sigkill-launcher",
            Self::Interrupt => "ctrl-c",
        }
    }

    /// Whether it comes from outside, at a moment of its own.
    pub fn is_from_outside(self) -> bool {
        matches!(self, Self::Kill | Self::Stop | Self::KillLauncher | Self::Interrupt)
    }
}

impl fmt::Display for Misfortune {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Misfortune {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        UnknownName::find("misfortune", name, &Self::ALL)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What the rest was drawn from.
    pub seed: u64,
    pub misfortune: Misfortune,
    pub world_size: u32,
    /// The rank that it happens to.
    pub rank: u32,
    pub step: u64,
    /// The batches of a rank, unless it has one fewer.
    pub batches: u64,
    /// How long after the beginning of the step it comes, from outside.
    pub delay_us: u64,
}

/// Batches of a job that only ends when something happens to it.
const ENDLESS: u64 = 1 << 40;

impl Scenario {
    /// Draws everything else from the seed.
    pub fn of_seed(misfortune: Misfortune, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let world_size = random.random_range(2..=4);
        let batches =
            if misfortune.is_from_outside() { ENDLESS } else { random.random_range(5..=40) };
        Self {
            seed,
            misfortune,
            world_size,
            rank: random.random_range(0..world_size),
            step: random.random_range(1..batches.min(40)),
            batches,
            delay_us: random.random_range(0..3_000),
        }
    }

    /// The batches of one rank.
    pub fn batches_of(&self, rank: u32) -> u64 {
        let has_fewer =
            matches!(self.misfortune, Misfortune::OneBatchFewer | Misfortune::OneBatchShadowed);
        self.batches - u64::from(has_fewer && rank == self.rank)
    }
}
