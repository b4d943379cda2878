//! How much of a long suite runs.

/// All of the cases where tests run in full, as `.ci/run` has them with `BONFIRE_TESTS=full`; otherwise the
/// first `few`, so that a run between two edits takes minutes.
pub fn some<T>(cases: &[T], few: usize) -> &[T] {
    if is_full() { cases } else { &cases[..few] }
}

pub fn is_full() -> bool {
    std::env::var_os("BONFIRE_TESTS").is_some_and(|scope| scope == "full")
}
