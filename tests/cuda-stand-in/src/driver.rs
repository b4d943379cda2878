//! The driver's functions: what `cuda.h` declares.

pub(crate) mod context;
mod copy;
pub(crate) mod device;
pub(crate) mod event;
mod ipc;
pub(crate) mod mapping;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod stream;
mod words;
