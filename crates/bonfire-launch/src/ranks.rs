//! How many ranks to start: a number, or what this host has.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::thread;

use thiserror::Error;

pub(crate) const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// The number of ranks on a host as a user asks for it, in torchrun's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankCount {
    /// Exactly this number of ranks.
    Exactly(NonZeroU32),
    /// One per GPU, or per CPU core without a GPU.
    Auto,
    /// One rank for each GPU.
    Gpu,
    /// One rank for each CPU core.
    Cpu,
}

/// The text is not a number of ranks, or this host cannot provide what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RankCountError {
    /// A job of no ranks.
    #[error("a job needs at least 1 rank")]
    Zero,
    /// Neither a number nor one of the words.
    #[error("expected a number of ranks, auto, gpu or cpu")]
    NotACount,
    /// GPUs were asked for, but none was found.
    #[error(
        "one rank per GPU was asked for, but this host shows no NVIDIA GPU; give a number, or check \
         CUDA_VISIBLE_DEVICES"
    )]
    NoGpu,
}

impl RankCount {
    /// The number of ranks for this host.
    pub fn resolve(self) -> Result<NonZeroU32, RankCountError> {
        match self {
            Self::Exactly(count) => Ok(count),
            Self::Auto => Ok(gpus().unwrap_or_else(cores)),
            Self::Gpu => gpus().ok_or(RankCountError::NoGpu),
            Self::Cpu => Ok(cores()),
        }
    }
}

impl FromStr for RankCount {
    type Err = RankCountError;

    fn from_str(text: &str) -> Result<Self, RankCountError> {
        match text {
            "auto" => Ok(Self::Auto),
            "gpu" => Ok(Self::Gpu),
            "cpu" => Ok(Self::Cpu),
            _ => match text.parse() {
                Ok(count) => NonZeroU32::new(count).map(Self::Exactly).ok_or(RankCountError::Zero),
                Err(_) => Err(RankCountError::NotACount),
            },
        }
    }
}

impl fmt::Display for RankCount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(count) => count.fmt(formatter),
            Self::Auto => formatter.write_str("auto"),
            Self::Gpu => formatter.write_str("gpu"),
            Self::Cpu => formatter.write_str("cpu"),
        }
    }
}

pub(crate) fn cores() -> NonZeroU32 {
    thread::available_parallelism()
        .ok()
        .and_then(|cores| NonZeroU32::try_from(cores).ok())
        .unwrap_or(NonZeroU32::MIN)
}

/// The NVIDIA GPUs that a process started here will see, without loading a driver to ask it.
fn gpus() -> Option<NonZeroU32> {
    let count = match std::env::var(VISIBLE_DEVICES) {
        Ok(list) => listed_devices(&list),
        Err(_) => device_files(),
    };
    NonZeroU32::new(count)
}

/// CUDA ends the list at its first entry that names no device.
pub(crate) fn listed_devices(list: &str) -> u32 {
    let named = |entry: &&str| !entry.is_empty() && !entry.starts_with('-');
    let count = list.split(',').map(str::trim).take_while(named).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn device_files() -> u32 {
    let Ok(entries) = std::fs::read_dir("/dev") else {
        return 0;
    };
    let is_gpu = |name: &str| {
        name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let count =
        entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_gpu)).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_words_are_read_and_written() {
        for text in ["1", "8", "auto", "gpu", "cpu"] {
            assert_eq!(text.parse::<RankCount>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn zero_and_nonsense_are_refused() {
        assert_eq!("0".parse::<RankCount>(), Err(RankCountError::Zero));
        for text in ["", "-1", "two", "1.5", "99999999999"] {
            assert_eq!(text.parse::<RankCount>(), Err(RankCountError::NotACount));
        }
    }

    #[test]
    fn every_host_has_a_core() {
        assert_eq!(RankCount::Cpu.resolve(), Ok(cores()));
        assert!(RankCount::Auto.resolve().is_ok());
    }

    #[test]
    fn the_list_of_visible_devices_ends_at_a_hole() {
        let cases = [("", 0), ("0", 1), ("2,3", 2), ("0,-1,1", 1), ("GPU-8f, MIG-2", 2), ("-1", 0)];
        for (list, count) in cases {
            assert_eq!(listed_devices(list), count, "{list:?}");
        }
    }
}
