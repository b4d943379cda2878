//! How the program ends: what it says last, and its exit code.

use bonfire::launcher::{Exit, LaunchError, StreamChoice};
use bonfire::{Error, LaunchArgs};

/// An error in one line, for the process that the user has started.
///
/// If it is a rank's, that rank has said it already, on the same screen unless it was sent elsewhere, and
/// no other has; see [`all_or_none`](bonfire::all_or_none). So only who it was is left to be said.
pub fn last_words(error: &anyhow::Error, launch: &LaunchArgs) -> String {
    let redirects = launch.flags.redirects.clone().unwrap_or_default();
    if redirects == StreamChoice::default()
        && let Some(Error::Launch(LaunchError::Rank(failure))) = error.downcast_ref()
    {
        let (rank, process, exit) = (failure.rank, failure.process_id, failure.exit);
        let last = failure.last_lines.last();
        if exit == Exit::Code(1) && last.is_some_and(|line| line.starts_with("error: ")) {
            return format!("rank {rank} (process {process}) {exit}");
        }
    }
    format!("{error:#}")
}
