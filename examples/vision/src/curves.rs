//! The curves of a run for TensorBoard, which rank 0 writes.

use std::path::Path;

use anyhow::{Context, Result};
use bonfire::{EventWriter, World};

use crate::tally::Figures;

/// Writes curves; the other ranks' writes nothing.
#[derive(Debug)]
pub(crate) struct Curves {
    writer: Option<EventWriter>,
}

impl Curves {
    /// Starts a file in the folder `tensorboard` of `out_dir`, for a run whose next step is `step`,
    /// counted from 1.
    pub(crate) fn open(world: &World, out_dir: &Path, step: u64) -> Result<Self> {
        let folder = out_dir.join("tensorboard");
        let create = || {
            EventWriter::resume(&folder, step)
                .with_context(|| format!("cannot write curves to {}", folder.display()))
        };
        let writer = world.is_main().then(create).transpose()?;
        Ok(Self { writer })
    }

    /// After a training step: its loss and its learning rate.
    pub(crate) fn training(&mut self, step: u64, loss: f64, rate: f64) -> Result<()> {
        self.write(step, &[("train/loss", loss), ("learning_rate", rate)])
    }

    /// After an evaluation.
    pub(crate) fn test(&mut self, step: u64, figures: Figures) -> Result<()> {
        let Figures {
            loss, top1, topk, ..
        } = figures;
        let points = [
            ("test/loss", loss),
            ("test/acc1", top1),
            ("test/acck", topk),
        ];
        self.write(step, &points)
    }

    fn write(&mut self, step: u64, points: &[(&str, f64)]) -> Result<()> {
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        for &(tag, value) in points {
            writer.scalar(tag, step, value)?;
        }
        Ok(writer.flush()?)
    }
}
