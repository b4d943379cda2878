//! The values of gradients, where they are.

pub(crate) mod host;
