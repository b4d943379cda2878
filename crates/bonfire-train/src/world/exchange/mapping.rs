//! The behaviour of running statistics and gathered parameters while a module is mapped.
//!
//! A [`ModuleMapper`](burn::module::ModuleMapper) sees nothing of a layer but its parameters, so it cannot pass a
//! layer its group. The caller of a mapping sets its meaning here, for its duration and on this thread, and a mapped
//! [`RunningStatistic`](crate::RunningStatistic) reads it. So does the reparameterization that gathers a parameter.

use std::cell::RefCell;

use super::group::NormGroup;

#[derive(Clone, Debug)]
pub(crate) enum Meaning {
    /// The result has its own value.
    Copy,
    /// The result shares its value with the mapped module, which gets the new one, too.
    Share,
    /// As `Share`, for a training pass: a parameter that is gathered gets its stand-in in the graph.
    Train,
    /// The result is the statistic of several ranks.
    Join(NormGroup),
    /// As `Share`, for the first of two runs: the moments of its layers are kept.
    Record,
    /// As `Copy`, for the second run: layers normalise with the moments of the first.
    Replay,
}

thread_local! {
    static MEANING: RefCell<Meaning> = const { RefCell::new(Meaning::Copy) };
}

pub(crate) fn meaning() -> Meaning {
    MEANING.with_borrow(Clone::clone)
}

pub(crate) fn meant<R>(meaning: Meaning, map: impl FnOnce() -> R) -> R {
    /// Restores the previous meaning, after a panic, too.
    struct Before(Meaning);
    impl Drop for Before {
        fn drop(&mut self) {
            MEANING.set(std::mem::replace(&mut self.0, Meaning::Copy));
        }
    }
    let _before = Before(MEANING.replace(meaning));
    map()
}
