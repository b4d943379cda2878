//! One operation of one rank, with the line of the program that asked for it.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::fnv::fnv_1a;
use crate::{Algorithm, Collective, DType, ReduceOp};

/// One collective operation as one rank sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Number of the group, the same on all its ranks.
    pub group: u32,
    /// Number of the operation in its group, from 0.
    pub seq: u64,
    /// The step of the program that it is part of, where ranks compare that.
    #[serde(default)]
    pub step: Option<u32>,
    /// The collective and the ranks that it names; compared between ranks.
    pub collective: Collective,
    /// The algorithm of the schedule; compared between ranks.
    pub algorithm: Algorithm,
    /// The type of the elements in the buffers; compared between ranks.
    pub dtype: DType,
    /// How elements are combined; `None` where nothing is reduced.
    pub reduce: Option<ReduceOp>,
    /// Elements in the data buffer of the schedule.
    pub count: u64,
    /// [`ScheduleShape::layout_hash`](crate::ScheduleShape::layout_hash): block lengths and hosts. Where call-sites
    /// are to be compared, exclusive-or [`CallSite::hash`]; where names are, exclusive-or a hash of the name.
    pub layout: u32,
    /// The line of this rank's program, for people; see [`Operation::matches`].
    pub call_site: CallSite,
}

impl Operation {
    /// The bytes of its encoding that two ranks in one operation have alike.
    pub const AGREED_BYTES: usize = 40;

    /// Whether two ranks are in the same operation. The call-site is for people and is not compared
    /// unless it is in the layout: ranks may reach one operation from different lines.
    pub fn matches(&self, other: &Self) -> bool {
        let call_site = self.call_site.clone();
        *self == Self { call_site, ..other.clone() }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.collective.name(), self.seq)?;
        if let Some(step) = self.step {
            write!(f, " of step {step}")?;
        }
        write!(f, " (")?;
        if let Some(reduce) = self.reduce {
            write!(f, "{reduce}, ")?;
        }
        match self.collective {
            Collective::Transfer { source, target } => {
                write!(f, "from rank {source} to rank {target}, ")?;
            }
            Collective::Exchange { first, second } => write!(f, "ranks {first} and {second}, ")?,
            other => {
                let mut root = other.root().into_iter();
                root.try_for_each(|root| write!(f, "root {root}, "))?;
            }
        }
        write!(f, "{} x {}", self.dtype, self.count)?;
        if self.layout != 0 {
            write!(f, " in layout {:08x}", self.layout)?;
        }
        write!(f, ", {})", self.algorithm)?;
        if !self.call_site.as_str().is_empty() {
            write!(f, " at {}", self.call_site)?;
        }
        Ok(())
    }
}

/// `file:line` of a call; what does not fit a header lacks its first folders. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct CallSite(Arc<str>);

impl CallSite {
    /// The longest text, in bytes of UTF-8.
    pub const BYTES_MAX: usize = 75;

    /// The place that `location` names.
    pub fn new(location: &Location<'_>) -> Self {
        Self::from_text(&format!("{}:{}", location.file(), location.line()))
    }

    fn from_text(text: &str) -> Self {
        if text.len() <= Self::BYTES_MAX {
            return Self(text.into());
        }
        let mut start = text.len() - Self::BYTES_MAX + "...".len();
        while !text.is_char_boundary(start) {
            start += 1;
        }
        let end = &text[start..];
        // Half a folder's name reads as another one.
        Self(format!("...{}", &end[end.find('/').unwrap_or(0)..]).into())
    }

    /// The place as `file:line` text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A number that differs, but for a chance of one in 2^32, where the texts do; the same on every machine.
    pub fn hash(&self) -> u32 {
        fnv_1a(self.0.bytes())
    }
}

impl From<String> for CallSite {
    fn from(text: String) -> Self {
        Self::from_text(&text)
    }
}

impl From<CallSite> for String {
    fn from(site: CallSite) -> Self {
        site.as_str().to_owned()
    }
}

impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_call_site_keeps_its_end() {
        let text = format!("{}é/src/main.rs:12", "x".repeat(200));
        let site = CallSite::from(text);
        assert!(site.as_str().len() <= CallSite::BYTES_MAX);
        assert!(site.as_str().ends_with("/src/main.rs:12"));
    }

    #[test]
    fn a_long_call_site_has_whole_folders() {
        let text = format!("/home/me/{}/my-training/src/step.rs:12", "deep/down/".repeat(9));
        let site = CallSite::from(text.clone());
        let folders = site.as_str().strip_prefix("...").unwrap();
        assert!(folders.starts_with("/d"), "{site}");
        assert!(text.ends_with(folders), "{site}");
        assert!(site.as_str().len() > CallSite::BYTES_MAX - "down/".len(), "{site}");
        assert_eq!(CallSite::from(site.to_string()), site);
    }
}
