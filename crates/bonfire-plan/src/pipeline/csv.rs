//! Schedules as text: a line for each rank, its actions with commas between them.
//!
//! It is the form that PyTorch's `_dump_csv` writes and `_load_csv` reads. An empty field is a rank that waits in
//! PyTorch's grid of steps; it means nothing here.

use std::collections::BTreeMap;

use super::action::{Action, UnknownAction};
use super::error::Broken;
use super::schedule::Schedule;
use super::verify::verify;
use crate::{PlanError, Rank, WorldSize};

/// A text that is not a schedule. Its author is at fault.
#[allow(missing_docs, reason = "fields are named for what they hold")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CsvError {
    /// A field that is not an action.
    #[error("line {line}, field {field}: {source}")]
    Action {
        /// The line, counted from 1.
        line: usize,
        /// The field, counted from 1.
        field: usize,
        source: UnknownAction,
    },
    /// A line without a pass: a rank with nothing to do.
    #[error("line {line} has no pass; give every rank a stage, or remove the line")]
    EmptyRank {
        /// The line, counted from 1.
        line: usize,
    },
    /// A stage that nobody computes, in front of one that somebody does.
    #[error("no rank computes stage {stage}, but one computes stage {last}; count stages from 0")]
    MissingStage {
        /// The first stage that is missing.
        stage: u32,
        last: u32,
    },
    /// More or fewer ranks than there can be.
    #[error(transparent)]
    Ranks(#[from] PlanError),
    /// A schedule that must not run.
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
        let lines = text.trim_end().lines().enumerate();
        let lists: Vec<_> = lines
            .map(|(line, text)| list(line + 1, text))
            .collect::<Result<_, _>>()?;
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
        for (expected, (&stage, _)) in (0..).zip(&owners) {
            if stage != expected {
                let last = owners.keys().next_back().copied().unwrap_or(stage);
                return Err(CsvError::MissingStage {
                    stage: expected,
                    last,
                });
            }
        }
        let owners = owners.into_values().collect();
        let schedule = Self::of_owners(owners, micro_batches, ranks).with_lists(lists);
        verify(&schedule)?;
        Ok(schedule)
    }

    /// The lists as text, with a line break at the end of each line.
    pub fn to_csv(&self) -> String {
        let mut text = String::new();
        for list in self.lists() {
            let fields: Vec<_> = list.iter().map(Action::to_string).collect();
            text += &fields.join(",");
            text.push('\n');
        }
        text
    }
}

fn list(line: usize, text: &str) -> Result<Vec<Action>, CsvError> {
    let fields = text.split(',').map(str::trim).enumerate();
    let fields = fields.filter(|(_, text)| !text.is_empty());
    let actions = fields.map(|(field, text)| {
        let wrong = |source| CsvError::Action {
            line,
            field: field + 1,
            source,
        };
        text.parse().map_err(wrong)
    });
    let list: Vec<Action> = actions.collect::<Result<_, _>>()?;
    if list
        .iter()
        .any(|action| matches!(action, Action::Compute(_)))
    {
        Ok(list)
    } else {
        Err(CsvError::EmptyRank { line })
    }
}
