//! How ranks find each other and form a group.

pub(crate) mod error;
pub(crate) mod rendezvous;
