//! Which links check that their frames arrive as they were sent.

use std::fmt;
use std::str::FromStr;

/// The links whose frames carry a CRC-32C of their header and one of their payload.
///
/// TCP's own checksum has 16 bits, and is made anew by whatever rewrites packets on the way; memory of
/// interfaces and switches that turns bits over gets past it now and then. Without a checksum of its own
/// such a frame is a wrong sum, in silence, on all ranks or on some. With it the operation fails as
/// [`CollectiveError::Corrupted`](crate::CollectiveError::Corrupted). Connections that TLS encrypts need
/// none: it authenticates every record. The book has what it costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Checksums {
    /// None.
    Off,
    /// Those between hosts.
    #[default]
    Hosts,
    /// All that go over sockets, on one host as well.
    All,
}

impl Checksums {
    const ALL: [Self; 3] = [Self::Off, Self::Hosts, Self::All];

    /// The name in `BONFIRE_CHECKSUMS`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Hosts => "hosts",
            Self::All => "all",
        }
    }
}

impl fmt::Display for Checksums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text does not say which links have checksums.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown choice of checksums {0:?}: choose off, hosts or all")]
pub struct UnknownChecksums(String);

impl FromStr for Checksums {
    type Err = UnknownChecksums;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|choice| choice.name() == text)
            .ok_or_else(|| UnknownChecksums(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back_and_others_are_refused() {
        for choice in Checksums::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        let error = "on".parse::<Checksums>().unwrap_err().to_string();
        assert!(error.contains("off, hosts or all"), "{error}");
    }
}
