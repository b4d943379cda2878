//! The manifest of a checkpoint: its files with sizes and hashes.

use std::io::{self, Read, Write};

use ring::digest::{Context, SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::Milestone;

/// Raised when older programs could no longer read what newer ones write.
const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    format: u32,
    pub(crate) step: u64,
    /// Number of earlier saves of this step.
    pub(crate) revision: u32,
    /// Its number among those that were saved in the folder; older programs wrote none.
    #[serde(default)]
    pub(crate) saved: u64,
    pub(crate) metric: Option<f64>,
    /// Number of ranks that saved it; any number can resume it.
    pub(crate) world_size: u32,
    pub(crate) files: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) bytes: usize,
    sha256: String,
}

impl Manifest {
    pub(crate) fn new(milestone: Milestone, world_size: u32) -> Self {
        let mut manifest = Self {
            format: FORMAT,
            step: milestone.step,
            revision: 0,
            saved: 0,
            metric: None,
            world_size,
            files: Vec::new(),
        };
        manifest.set_metric(milestone.metric);
        manifest
    }

    pub(crate) fn set_metric(&mut self, metric: Option<f64>) {
        // JSON has no NaN and no infinity; neither is ever the best.
        self.metric = metric.filter(|metric| metric.is_finite());
    }

    pub(crate) fn text(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("a manifest is plain data")
    }

    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let manifest: Self =
            serde_json::from_slice(text).map_err(|error| format!("its manifest: {error}"))?;
        match manifest.format {
            FORMAT => Ok(manifest),
            format => {
                Err(format!("its format is {format}, and this program reads format {FORMAT}"))
            }
        }
    }

    pub(crate) fn milestone(&self) -> Milestone {
        Milestone { step: self.step, metric: self.metric }
    }
}

impl Entry {
    pub(crate) fn of(name: &str, bytes: &[u8]) -> Self {
        Self {
            name: name.to_owned(),
            bytes: bytes.len(),
            sha256: text(digest(&SHA256, bytes).as_ref()),
        }
    }

    /// Describes a file that has been written.
    pub(crate) fn read(name: &str, file: &mut impl Read) -> io::Result<Self> {
        let mut hash = Hash(Context::new(&SHA256));
        let bytes = io::copy(file, &mut hash)? as usize;
        let sha256 = text(hash.0.finish().as_ref());
        let name = name.to_owned();
        Ok(Self { name, bytes, sha256 })
    }

    /// Checks that a file is as it was when it was saved.
    pub(crate) fn check(&self, found: &Self) -> Result<(), String> {
        let Self { name, bytes, .. } = self;
        if found.bytes != *bytes {
            let found = found.bytes;
            return Err(format!("{name} has {found} bytes instead of {bytes}"));
        }
        if found.sha256 == self.sha256 {
            Ok(())
        } else {
            Err(format!("{name} has changed since it was saved"))
        }
    }
}

struct Hash(Context);

impl Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn text(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
