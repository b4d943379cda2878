//! What the ranks of a group do or did, for people.

use std::fmt;
use std::time::Duration;

use super::{GroupReport, list};
use crate::health::flight::FlightRecord;
use crate::health::recorder::FlightOperation;

/// A shorter wait for an operation's turn is not worth a word.
const QUEUED_MIN: Duration = Duration::from_millis(1);

impl fmt::Display for GroupReport {
    /// The verdict, and a table of the ranks; every line ends with its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_running = self.failure().is_none();
        writeln!(
            f,
            "Group {} of {} ranks{}: {}",
            self.group,
            self.world_size,
            if is_running { ", running" } else { "" },
            self.verdict()
        )?;
        if let Some(stragglers) = &self.stragglers {
            writeln!(f, "Pace of the last {} s: {stragglers}.", stragglers.window.as_secs())?;
        }
        let (rank, waited, state) = ("rank", "waited", "state");
        writeln!(f, "{rank:>6}  {waited:>9}  {state:>18}  last operation")?;
        for record in &self.records {
            let (rank, waited) = (record.rank.get(), record.waited.as_secs_f64());
            writeln!(f, "{rank:>6}  {waited:>7.1} s  {}", Line(record))?;
        }
        if !self.departed.is_empty() {
            writeln!(f, "Rank {} has left the group.", list(&self.departed))?;
        }
        let silent = self.silent();
        match (silent.is_empty(), is_running) {
            (true, _) => Ok(()),
            (false, true) => writeln!(
                f,
                "No word from rank {}: its process is stopped, or its host cannot be reached.",
                list(&silent)
            ),
            (false, false) => writeln!(
                f,
                "No record of rank {}: killed or stopped, or its record is on another host.",
                list(&silent)
            ),
        }
    }
}

/// A rank's last operation, and what its program says.
struct Line<'a>(&'a FlightRecord);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(record) = self;
        write!(f, "{}", Last(record.operations.first()))?;
        if record.progress.is_empty() { Ok(()) } else { write!(f, "; {}", record.progress) }
    }
}

struct Last<'a>(Option<&'a FlightOperation>);

impl fmt::Display for Last<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(last) = self.0 else {
            return write!(f, "{:>18}  none", "never called");
        };
        let state = match last.ended_ago {
            Some(ago) => format!("ended {:.1} s ago", ago.as_secs_f64()),
            None => format!("in it for {:.1} s", last.started_ago.as_secs_f64()),
        };
        write!(f, "{state:>18}  {last}")?;
        match last.queued() {
            short if short < QUEUED_MIN => Ok(()),
            queued => write!(f, ", queued for {:.1} ms", queued.as_secs_f64() * 1e3),
        }
    }
}
