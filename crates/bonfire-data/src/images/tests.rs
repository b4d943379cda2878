//! What the tests of pictures share.

pub(super) mod fixtures;
