//! The memory of several placements, as people read it.

use std::fmt;

use super::held::RankMemory;
use crate::{Bytes, WorldSize};

/// The memory of a training in several placements. It prints as a line for each: what a rank holds when that is the
/// most, and what the operating system counts for its process, which is more where it sees memory of other ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryTable {
    /// Ranks that average their gradients, the same for all rows.
    pub ranks: WorldSize,
    /// How many elements all parameters have.
    pub parameters: usize,
    /// The fullest rank in each placement, in the order in which placements were given.
    pub rows: Vec<RankMemory>,
    /// What a rank may take, if somebody has said it.
    pub limit: Option<Bytes>,
}

impl MemoryTable {
    /// Those that go into the memory that there is; all if nobody has said how much that is.
    pub fn fitting(&self) -> impl Iterator<Item = &RankMemory> {
        let limit = self.limit.unwrap_or(Bytes::new(u64::MAX));
        let rows = self.rows.iter();
        rows.filter(move |row| row.peak().1.total() <= limit)
    }
}

impl fmt::Display for MemoryTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millions = self.parameters as f64 / 1e6;
        let ranks = self.ranks;
        write!(f, "{millions:.1} million parameters; ")?;
        writeln!(f, "what each of {ranks} ranks holds at its most:")?;
        write!(f, "{:<12}", "placement")?;
        let names = self.rows.first().map(|row| row.peak().1.classes());
        for (name, _) in names.into_iter().flatten() {
            write!(f, " {name:>11}")?;
        }
        write!(f, " {:>11} {:>11}  {:<21}", "all", "resident", "when")?;
        match self.limit {
            Some(limit) => writeln!(f, " fits {limit}")?,
            None => writeln!(f)?,
        }
        for row in &self.rows {
            let (phase, held) = row.peak();
            write!(f, "{:<12}", row.placement.to_string())?;
            for (_, bytes) in held.classes() {
                write!(f, " {:>11}", shown(bytes))?;
            }
            let total = held.total();
            let (all, resident) = (shown(total), shown(row.resident()));
            write!(f, " {all:>11} {resident:>11}  {phase:<21}")?;
            match self.limit {
                Some(limit) if total <= limit => writeln!(f, " yes")?,
                Some(_) => writeln!(f, " no")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

fn shown(bytes: Bytes) -> String {
    match bytes.get() {
        0 => "-".to_owned(),
        _ => bytes.to_string(),
    }
}
