//! A program without the feature `cuda`: asked for GPUs, it says how to get one with it.

use std::fmt;

use anyhow::bail;
use bonfire_collective::ProcessGroup;
use serde::Serialize;

use super::layout::Form;
use super::measure::{Measurement, Timing};
use crate::operation::Operation;

#[derive(Clone, Debug, Serialize)]
pub(super) enum Absent {}

pub(super) use Absent as Fleet;
pub(super) use Absent as Gpus;
pub(super) use Absent as Member;

impl fmt::Display for Absent {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl Absent {
    pub(super) fn prepare_for_threads() -> anyhow::Result<()> {
        Ok(())
    }

    pub(super) fn find() -> anyhow::Result<Self> {
        bail!(
            "this program was built without GPUs: build it again with `cargo build --release -p \
             bonfire-cli --features cuda`"
        )
    }

    pub(super) fn join(&self, _group: &ProcessGroup, _over_nccl: bool) -> anyhow::Result<Member> {
        match *self {}
    }

    pub(super) fn describe(&self, _ranks: usize, _oversubscribe: bool) -> anyhow::Result<Gpus> {
        match *self {}
    }
}

/// Which forms an operation has there does not matter before [`Fleet::find`] has said why not.
pub(super) fn forms(operation: Operation) -> &'static [Form] {
    operation.forms()
}

pub(super) fn transport(group: &Member) -> &'static str {
    match *group {}
}

impl Measurement {
    pub(super) fn time_on_gpu(self, group: &Member, _bytes: usize) -> anyhow::Result<Timing> {
        match *group {}
    }
}
