//! What a checkpoint is said to contain.

use std::io::{self, Read};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Milestone;

/// Raised when older programs could no longer read what newer ones write.
const FORMAT: u32 = 1;

/// The content of `manifest.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: u32,
    pub(super) step: u64,
    /// How often this step has been saved before.
    pub(super) revision: u32,
    pub(super) metric: Option<f64>,
    /// How many ranks trained it; any number may go on.
    pub(super) world_size: u32,
    pub(super) files: Vec<Entry>,
}

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) bytes: usize,
    sha256: String,
}

impl Manifest {
    /// Of a checkpoint without files.
    pub(super) fn new(milestone: Milestone, world_size: u32) -> Self {
        Self {
            format: FORMAT,
            step: milestone.step,
            revision: 0,
            // JSON has no NaN and no infinity; neither is ever the best.
            metric: milestone.metric.filter(|metric| metric.is_finite()),
            world_size,
            files: Vec::new(),
        }
    }

    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let manifest: Self =
            serde_json::from_slice(text).map_err(|error| format!("its manifest: {error}"))?;
        match manifest.format {
            FORMAT => Ok(manifest),
            format => Err(format!(
                "its format is {format}, and this program reads format {FORMAT}"
            )),
        }
    }

    pub(super) fn milestone(&self) -> Milestone {
        Milestone {
            step: self.step,
            metric: self.metric,
        }
    }
}

impl Entry {
    /// Of a file with this content.
    pub(super) fn of(name: &str, bytes: &[u8]) -> Self {
        Self {
            name: name.to_owned(),
            bytes: bytes.len(),
            sha256: sha256(bytes),
        }
    }

    /// Of a file that has been written.
    pub(super) fn read(name: &str, file: &mut impl Read) -> io::Result<Self> {
        let mut hash = Sha256::new();
        let bytes = io::copy(file, &mut hash)? as usize;
        let sha256 = text(&hash.finalize());
        let name = name.to_owned();
        Ok(Self {
            name,
            bytes,
            sha256,
        })
    }

    /// That these are the bytes that were saved.
    pub(super) fn check(&self, bytes: &[u8]) -> Result<(), String> {
        let Self { name, .. } = self;
        if bytes.len() != self.bytes {
            let (found, expected) = (bytes.len(), self.bytes);
            return Err(format!("{name} has {found} bytes instead of {expected}"));
        }
        match sha256(bytes) == self.sha256 {
            true => Ok(()),
            false => Err(format!("{name} has changed since it was saved")),
        }
    }
}

fn sha256(bytes: &[u8]) -> String {
    text(&Sha256::digest(bytes))
}

fn text(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
