//! What running statistics and gathered parameters do while a module is mapped.
//!
//! A [`ModuleMapper`](burn::module::ModuleMapper) sees nothing of a layer but its parameters, so it cannot
//! hand a layer its group. Who maps a module says here what the mapping means, for as long as it lasts and on
//! this thread, and a [`RunningStatistic`](crate::RunningStatistic) asks when it is mapped. So does what gathers a
//! parameter.

use std::cell::RefCell;

use super::group::NormGroup;

#[derive(Clone, Debug)]
pub(crate) enum Meaning {
    /// What comes back has a value of its own.
    Copy,
    /// What comes back shares its value with the module that was mapped, which gets the new one, too.
    Share,
    /// As `Share`, for a training pass: a parameter that is gathered gets what stands for it in the graph.
    Train,
    /// What comes back is the statistic of several ranks.
    Join(NormGroup),
    /// As `Share`, for the first of two runs: what its layers normalise with is kept.
    Record,
    /// As `Copy`, for the second run: layers normalise with what was kept of the first.
    Replay,
}

thread_local! {
    static MEANING: RefCell<Meaning> = const { RefCell::new(Meaning::Copy) };
}

/// What the mapping under way on this thread means.
pub(crate) fn meaning() -> Meaning {
    MEANING.with_borrow(Clone::clone)
}

/// Maps with a meaning.
pub(crate) fn meant<R>(meaning: Meaning, map: impl FnOnce() -> R) -> R {
    /// Brings back what was meant before, after a panic, too.
    struct Before(Meaning);
    impl Drop for Before {
        fn drop(&mut self) {
            MEANING.set(std::mem::replace(&mut self.0, Meaning::Copy));
        }
    }
    let _before = Before(MEANING.replace(meaning));
    map()
}
