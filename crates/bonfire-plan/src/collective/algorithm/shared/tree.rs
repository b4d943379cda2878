//! What trees share: a rank's neighbours, and one chunk on its way down or up.
//!
//! No deadlock, even with one slot: frames are only ever sent away from the root, or only towards it.

use super::chunking::{fold, receive};
use crate::{ElemRange, Rank, Source, Stage, Step};

#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The rank that the data comes from, or goes to.
    pub(crate) root: Rank,
    pub(crate) rank: Rank,
}

pub(crate) struct Family {
    /// `None` at the root alone.
    pub(crate) parent: Option<Rank>,
    /// In the order in which their data is folded.
    pub(crate) children: Vec<Rank>,
}

impl Family {
    /// Passes a chunk on from the parent to the children, the last child first.
    pub(crate) fn pass_down(&self, chunk: ElemRange, steps: &mut Vec<Step>) {
        if let Some(peer) = self.parent {
            steps.extend(receive(peer, chunk));
        }
        let source = chunk;
        let last_first = self.children.iter().rev();
        steps.extend(last_first.map(|&peer| Step::Put { peer, source }));
    }

    /// Folds the children's data onto this rank's own, and passes it on to the parent.
    pub(crate) fn fold_up(&self, chunk: ElemRange, steps: &mut Vec<Step>) {
        let stage = match self.parent {
            Some(_) => Stage::Partial,
            None => Stage::Final,
        };
        // A leaf's data goes up as it is.
        if !self.children.is_empty() || self.parent.is_none() {
            let children = self.children.iter().copied();
            let inboxes = children.clone().map(Source::Inbox);
            let sources = std::iter::once(Source::Own).chain(inboxes).collect();
            fold(children, chunk, sources, stage, steps);
        }
        let source = chunk;
        steps.extend(self.parent.map(|peer| Step::Put { peer, source }));
    }
}
