//! Failing, and naming the culprit: what the ranks of a group know of each other beside their data.

pub(crate) mod control;
pub(crate) mod domain;
pub(crate) mod failure;
pub(crate) mod flight;
pub(crate) mod inspection;
pub(crate) mod poison;
pub(crate) mod query;
pub(crate) mod recorder;
pub(crate) mod reports;
pub(crate) mod stragglers;
pub(crate) mod wait;
