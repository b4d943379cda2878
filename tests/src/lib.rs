//! End-to-end tests with real processes; the tests are under `tests`, the programs they run under
//! `src/bin`.

#![forbid(unsafe_code)]
