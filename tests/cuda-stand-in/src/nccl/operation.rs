//! What a call asks for.

use super::number::Reduction;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Data {
    pub(super) address: u64,
    pub(super) bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// An operation with all ranks.
    Together {
        source: Data,
        target: Data,
        what: Together,
    },
    Send {
        source: Data,
        peer: usize,
    },
    Recv {
        target: Data,
        peer: usize,
    },
}

/// What all ranks ask for alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Together {
    /// To one rank, or to all.
    Reduce(Reduction, Option<usize>),
    /// From one rank to all.
    Broadcast(usize),
}

impl Together {
    /// A number that identifies it.
    pub(super) fn number(self) -> u64 {
        let (kind, root, reduction) = match self {
            Self::Reduce(reduction, None) => (0, 0, reduction.number()),
            Self::Reduce(reduction, Some(root)) => (1, root, reduction.number()),
            Self::Broadcast(root) => (2, root, 0),
        };
        (root as u64) << 32 | reduction << 2 | kind
    }

    /// Whether a rank's result is made of the data of another, or of its own.
    pub(super) fn needs(self, source: usize, target: usize) -> bool {
        match self {
            Self::Reduce(_, root) => root.is_none_or(|root| root == target),
            Self::Broadcast(root) => root == source,
        }
    }
}

impl Operation {
    pub(super) fn reduce(
        [source, target]: [Data; 2],
        reduction: Reduction,
        root: Option<usize>,
    ) -> Self {
        let what = Together::Reduce(reduction, root);
        Self::Together { source, target, what }
    }

    pub(super) fn broadcast([source, target]: [Data; 2], root: usize) -> Self {
        let what = Together::Broadcast(root);
        Self::Together { source, target, what }
    }

    pub(super) fn send(source: Data, peer: usize) -> Self {
        Self::Send { source, peer }
    }

    pub(super) fn recv(target: Data, peer: usize) -> Self {
        Self::Recv { target, peer }
    }

    pub(super) fn data(&self) -> Vec<Data> {
        match *self {
            Self::Together { source, target, .. } => vec![source, target],
            Self::Send { source: data, .. } | Self::Recv { target: data, .. } => vec![data],
        }
    }
}
