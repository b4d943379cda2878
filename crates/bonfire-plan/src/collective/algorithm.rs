//! A module for each algorithm, and what they share: [`chunking`], [`seats`], [`tree`] and [`pairs`].

pub(super) mod binomial;
pub(super) mod chain;
pub(super) mod chunking;
pub(super) mod direct;
pub(super) mod dissemination;
pub(super) mod double_tree;
pub(super) mod halving;
pub(super) mod hierarchical;
pub(super) mod pairs;
pub(super) mod pairwise;
pub(super) mod ring;
mod seats;
pub(super) mod tree;
pub(super) mod zero_copy;
