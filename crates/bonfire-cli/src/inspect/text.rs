//! Flight records for people.

use std::fmt;

use bonfire_collective::{FlightOperation, FlightRecord};

use super::first_written;

/// The records of one group, in rank order.
pub(super) struct Group<'a>(pub(super) &'a [FlightRecord]);

impl fmt::Display for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = self.0;
        let first = first_written(ranks);
        let (group, world_size) = (first.group, first.world_size);
        writeln!(f, "Group {group} of {world_size} ranks: {}", first.failure)?;
        writeln!(f, "{:>6}  {:>18}  last operation", "rank", "state")?;
        for record in ranks {
            writeln!(
                f,
                "{:>6}  {}",
                record.rank.get(),
                Last(record.operations.first())
            )?;
        }
        let is_there = |rank: &u32| ranks.iter().any(|record| record.rank.get() == *rank);
        let missing: Vec<String> = (0..world_size)
            .filter(|rank| !is_there(rank))
            .map(|rank| rank.to_string())
            .collect();
        if !missing.is_empty() {
            writeln!(
                f,
                "No record of rank {}: killed or stopped, or its record is on another host.",
                missing.join(", ")
            )?;
        }
        Ok(())
    }
}

/// The last operation of a rank.
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
        write!(f, "{state:>18}  {}", last.operation)?;
        match &last.name {
            Some(name) => write!(f, " ({name})"),
            None => Ok(()),
        }
    }
}
