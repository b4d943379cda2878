//! What is measured, what it must reach, and how it is shown.

pub(super) mod bound;
pub(super) mod measure;
pub(super) mod row;
