//! A module for each algorithm, and what they [share](shared).

pub(super) mod binomial;
pub(super) mod chain;
pub(super) mod direct;
pub(super) mod dissemination;
pub(super) mod double_tree;
pub(super) mod halving;
pub(super) mod hierarchical;
pub(super) mod pairwise;
pub(super) mod ring;
pub(super) mod shared;
pub(super) mod zero_copy;
