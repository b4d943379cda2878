//! What the commands that use GPUs share.

pub(crate) mod collectives;
pub(crate) mod connections;
pub(crate) mod devices;
