//! The end of a training: its last checkpoint and its report.

use std::fmt;

use bonfire_report::Report;

use super::Trainer;
use super::engine::{Engine, Model};
use crate::all_or_none;
use crate::error::Result;

impl<M: Model, B: Send + 'static> Trainer<M, B> {
    /// Adds a fact to the report, such as the name of a data set, in place of an earlier one of this name or of the
    /// trainer's own.
    pub fn fact(&mut self, name: &str, value: impl fmt::Display) {
        self.facts.retain(|(known, _)| known != name);
        self.facts.push((name.to_owned(), value.to_string()));
    }

    /// Adds a fact, unless the program has one of this name.
    fn own_fact(&mut self, name: &str, value: impl fmt::Display) {
        if !self.facts.iter().any(|(known, _)| known == name) {
            self.fact(name, value);
        }
    }

    /// Ends the training: saves a last checkpoint, if there is a folder for them, and returns the report, which rank 0
    /// also writes into `report.folder`. Every rank calls it, also after a stop, or after a program left its loop.
    /// Where parameters are sharded, each rank needs the memory of one complete parameter for the digest in the
    /// report.
    ///
    /// # Errors
    /// If a checkpoint or the report cannot be written, if the training has diverged, or if a rank has failed.
    #[track_caller]
    pub fn finish(mut self) -> Result<Report> {
        self.end_exchanges()?;
        self.save(None)?;
        if let Some(checkpoints) = &self.checkpoints {
            checkpoints.wait()?;
        }
        let digest = self.engine.ddp().digest()?;
        self.own_fact("placement", self.config.placement);
        if self.place.has_parts() {
            self.own_fact("parameters of rank 0, which has parts", digest);
        } else {
            self.own_fact("parameters", digest);
        }
        if let Some(grid) = self.place.mesh().map(|mesh| *mesh.grid()) {
            self.own_fact("mesh", grid);
        }
        let report = self.journal.close()?;
        let report = report.with_configuration(self.config.resolved().into_iter().map(|value| {
            let is = format!("{} ({})", value.value, value.source);
            (value.path, is)
        }));
        let facts = self.facts.into_iter();
        let report = facts.fold(report, |report, (name, value)| report.with_fact(&name, value));
        let report = match &self.planned {
            Some(training) => {
                report.with_memory_planned(training.memory(self.config.placement).resident())
            }
            None => report,
        };
        let written = match &report.folder {
            Some(folder) if self.world.is_main() => report.write(folder),
            _ => Ok(()),
        };
        all_or_none(&self.world, written)?;
        Ok(report)
    }
}
