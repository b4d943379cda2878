//! Takes the actions of all ranks in an order in which they can happen.
//!
//! A message here is a meeting: a send waits until the receiver is at the matching receive. Whatever finishes so
//! finishes with any number of buffers.

use super::action::Action;
use super::error::{Blocked, Broken};
use super::schedule::Schedule;
use crate::Rank;

/// Gives every action to `visit`, behind all that it depends on. The actions must be complete, and in order on
/// each rank.
pub(super) fn run(schedule: &Schedule, mut visit: impl FnMut(Rank, Action)) -> Result<(), Broken> {
    let mut state = State {
        schedule,
        made: vec![false; schedule.values()],
        next: vec![0; schedule.ranks().len()],
    };
    let mut is_moving = true;
    while is_moving {
        is_moving = false;
        // One action of each rank in turn, so that ranks advance side by side.
        for rank in schedule.ranks().ranks() {
            let head = state.head(rank);
            let Some(action) = head.filter(|&action| state.needs(action).is_none()) else {
                continue;
            };
            is_moving = true;
            state.next[rank.index()] += 1;
            visit(rank, action);
            match action {
                Action::Compute(compute) => {
                    if let Some(message) = schedule.output(compute) {
                        state.made[schedule.value(message)] = true;
                    }
                }
                Action::Send(message) => {
                    let target = schedule.owner(message.target());
                    state.next[target.index()] += 1;
                    visit(target, Action::Receive(message));
                }
                _ => {}
            }
        }
    }
    let ranks = schedule.ranks().ranks();
    let blocked: Vec<_> = ranks.filter_map(|rank| state.blocked(rank)).collect();
    if !blocked.is_empty() {
        return Err(Broken::Deadlock { blocked });
    }
    Ok(())
}

struct State<'a> {
    schedule: &'a Schedule,
    /// Which values are there, by [`Schedule::value`].
    made: Vec<bool>,
    /// The place of each rank in its list.
    next: Vec<usize>,
}

impl State<'_> {
    fn head(&self, rank: Rank) -> Option<Action> {
        let list = self.schedule.actions(rank);
        list.get(self.next[rank.index()]).copied()
    }

    /// What an action waits for; `None` when it can be taken. A receive is taken together with its send.
    fn needs(&self, action: Action) -> Option<Action> {
        match action {
            Action::Compute(compute) => {
                let input = self.schedule.input(compute)?;
                let is_made = self.made[self.schedule.value(input)];
                let is_there = |pass| self.schedule.all().any(|&action| action == pass);
                (!is_made).then(|| self.schedule.maker(input, is_there))
            }
            Action::Send(message) => {
                let target = self.schedule.owner(message.target());
                let receive = Action::Receive(message);
                (self.head(target) != Some(receive)).then_some(receive)
            }
            Action::Receive(message) => Some(Action::Send(message)),
            Action::ReduceGradients { .. } | Action::Gather { .. } | Action::Release { .. } => None,
        }
    }

    fn blocked(&self, rank: Rank) -> Option<Blocked> {
        let action = self.head(rank)?;
        Some(Blocked {
            rank,
            index: self.next[rank.index()],
            action,
            // What could be taken would have been.
            needs: self.needs(action)?,
        })
    }
}
