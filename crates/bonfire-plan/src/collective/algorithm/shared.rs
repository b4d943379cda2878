//! What several algorithms need: frames of a step, places in trees, pairs that exchange, and the order of hosts.

pub(crate) mod chunking;
pub(crate) mod pairs;
pub(crate) mod seats;
pub(crate) mod tree;
