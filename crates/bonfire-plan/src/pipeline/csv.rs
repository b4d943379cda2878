//! Schedules as text: a line for each rank, its actions with commas between them.
//!
//! It is the form that PyTorch's `_dump_csv` writes and `_load_csv` reads. An empty field is a rank that waits in
//! PyTorch's grid of steps; it means nothing here.

use std::collections::BTreeMap;

use super::action::{Action, UnknownAction};
use super::error::Broken;
use super::schedule::Schedule;
use super::verify::verify;
use crate::types::joined;
use crate::{PlanError, Rank, WorldSize};

/// A text that is not a schedule. Its author is at fault. Lines and fields are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CsvError {
    /// A field that is not an action.
    #[error("line {line}, field {field}: {source}")]
    Action {
        /// The line of the field, from 1; line 1 is of rank 0.
        line: usize,
        /// The place of the field in its line, from 1.
        field: usize,
        /// The error of the field's text, which it quotes.
        source: UnknownAction,
    },
    /// A rank with nothing to do.
    #[error("line {line} has no pass; give every rank a stage, or remove the line")]
    EmptyRank {
        /// The line without a pass, counted from 1.
        line: usize,
    },
    /// A stage that nobody computes, in front of one that somebody does.
    #[error("no rank computes stage {stage}, but one computes stage {last}; count stages from 0")]
    MissingStage {
        /// The lowest stage that no rank computes.
        stage: u32,
        /// The highest stage that a rank computes.
        last: u32,
    },
    /// A text without lines, and so without ranks.
    #[error(transparent)]
    Ranks(#[from] PlanError),
    /// Actions that can be read, but that [`verify`] refuses.
    #[error(transparent)]
    Broken(#[from] Broken),
}

impl Schedule {
    /// Reads a schedule, and verifies it. Each stage is on the rank whose line first computes it; there are as many
    /// stages and micro-batches as the largest numbers say.
    ///
    /// # Errors
    /// [`CsvError`] for what is not a schedule, and for one that the verifier refuses.
    pub fn from_csv(text: &str) -> Result<Self, CsvError> {
        let lines = (1..).zip(text.trim_end().lines());
        let lists = lines.map(|(line, text)| list(line, text));
        let lists: Vec<_> = lists.collect::<Result<_, _>>()?;
        let ranks = WorldSize::new(u32::try_from(lists.len()).unwrap_or(u32::MAX))?;
        let mut owners: BTreeMap<u32, Rank> = BTreeMap::new();
        let mut micro_batches = 0_u32;
        for (rank, list) in ranks.ranks().zip(&lists) {
            for action in list {
                if let Action::Compute(compute) = action {
                    owners.entry(compute.stage).or_insert(rank);
                    micro_batches = micro_batches.max(compute.micro_batch.saturating_add(1));
                }
            }
        }
        for (stage, &found) in (0..).zip(owners.keys()) {
            if found != stage {
                let last = owners.keys().next_back().copied().unwrap_or(found);
                return Err(CsvError::MissingStage { stage, last });
            }
        }
        let owners = owners.into_values().collect();
        let schedule = Self::of_owners(owners, micro_batches, ranks).with_lists(lists);
        verify(&schedule)?;
        Ok(schedule)
    }

    /// The lists as text, with a line break at the end of each line.
    pub fn to_csv(&self) -> String {
        let lines = self.lists().iter().map(|list| joined(list, ",") + "\n");
        lines.collect()
    }
}

fn list(line: usize, text: &str) -> Result<Vec<Action>, CsvError> {
    let fields = (1..).zip(text.split(',').map(str::trim));
    let actions = fields.filter(|(_, text)| !text.is_empty()).map(|(field, text)| {
        let action: Result<Action, _> = text.parse();
        action.map_err(|source| CsvError::Action { line, field, source })
    });
    let list: Vec<_> = actions.collect::<Result<_, _>>()?;
    let is_pass = |action: &Action| matches!(action, Action::Compute(_));
    if !list.iter().any(is_pass) {
        return Err(CsvError::EmptyRank { line });
    }
    Ok(list)
}
