//! What a run came to.

use std::time::Duration;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Who waited for what when nothing was left that could happen, or when the time was over; nothing
    /// if every process ended by itself.
    pub hang: Option<String>,
    /// What threads said that panicked.
    pub panics: Vec<String>,
    pub time: Duration,
    /// A digest of who ran when and of what arrived when: equal for runs that were equal.
    pub trace: u64,
    /// How often another thread was chosen.
    pub turns: u64,
    /// Bits that were turned over.
    pub flips: u64,
    /// Between which hosts connections broke early.
    pub breaks: Vec<[usize; 2]>,
}
