//! What a call asks for.

use super::number::Reduction;

/// Device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Data {
    pub(super) address: u64,
    pub(super) bytes: usize,
}

/// Of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// With all ranks.
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
    /// From one rank.
    Broadcast(usize),
}

impl Operation {
    pub(super) fn reduce(
        [source, target]: [Data; 2],
        reduction: Reduction,
        root: Option<usize>,
    ) -> Self {
        let what = Together::Reduce(reduction, root);
        Self::Together {
            source,
            target,
            what,
        }
    }

    pub(super) fn broadcast([source, target]: [Data; 2], root: usize) -> Self {
        let what = Together::Broadcast(root);
        Self::Together {
            source,
            target,
            what,
        }
    }

    pub(super) fn send(source: Data, peer: usize) -> Self {
        Self::Send { source, peer }
    }

    pub(super) fn recv(target: Data, peer: usize) -> Self {
        Self::Recv { target, peer }
    }

    /// What it touches.
    pub(super) fn data(&self) -> Vec<Data> {
        match *self {
            Self::Together { source, target, .. } => vec![source, target],
            Self::Send { source: data, .. } | Self::Recv { target: data, .. } => vec![data],
        }
    }
}
