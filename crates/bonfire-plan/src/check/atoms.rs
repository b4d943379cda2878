//! The coarsest cut of the buffer such that every range of a plan is a run of whole pieces.
//!
//! All elements of an atom undergo the same steps, so one symbol stands for all of them and the
//! cost of a check does not depend on the number of elements.

use std::ops::Range;

use crate::{ElemRange, Plan, Role, Step};

pub(super) struct Atoms {
    /// Where atoms begin, ascending, and the end of the buffer last.
    cuts: Vec<usize>,
}

impl Atoms {
    pub(super) fn new(plan: &Plan) -> Self {
        let schedule = plan.schedule();
        let count = schedule.space().end();
        let mut cuts = vec![0, count];
        for rank in schedule.world_size().ranks() {
            for role in [Role::Input, Role::Output] {
                let extent = schedule.extent(rank, role);
                cuts.extend(extent.iter().flat_map(|range| [range.start(), range.end()]));
            }
            for step in plan.steps(rank) {
                match step {
                    Step::Put { source: range, .. }
                    | Step::Reduce { target: range, .. }
                    | Step::Copy { target: range, .. }
                    | Step::ReduceDirect { range, .. } => {
                        let ends = [range.start(), range.end()].into_iter();
                        cuts.extend(ends.filter(|&cut| cut < count));
                    }
                    Step::Wait { .. } | Step::Release { .. } => {}
                }
            }
            // After each rank, so that the list stays short: ranks cut mostly in the same places.
            cuts.sort_unstable();
            cuts.dedup();
        }
        Self { cuts }
    }

    pub(super) fn len(&self) -> usize {
        self.cuts.len() - 1
    }

    pub(super) fn range(&self, atom: usize) -> ElemRange {
        ElemRange::new(self.cuts[atom], self.cuts[atom + 1])
    }

    /// The atoms that make up a range of the plan.
    pub(super) fn of(&self, range: ElemRange) -> Range<usize> {
        self.index(range.start())..self.index(range.end())
    }

    fn index(&self, position: usize) -> usize {
        let found = self.cuts.binary_search(&position);
        found.expect("the buffer was cut wherever a range ends")
    }
}
