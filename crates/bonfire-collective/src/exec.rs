//! Runs schedules: what an operation is on elements, which algorithm it uses, and the steps of it over links or in
//! the ranks' own memory.

pub(crate) mod element;
pub(crate) mod executor;
pub(crate) mod fold;
pub(crate) mod select;
