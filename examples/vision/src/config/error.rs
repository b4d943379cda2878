//! What can be wrong with a configuration.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A line of a file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
    },
    /// A pair of the command line.
    CommandLine,
    /// Nobody gave another.
    Default,
}

/// A configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}; give the path of a configuration to --cfg", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file is no YAML.
    #[error("{}: {cause}", path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// What is wrong, and where.
        cause: String,
    },
    /// A key that no section has.
    #[error("{origin}: there is no key {key}{suggestion}")]
    UnknownKey {
        /// Where it stands.
        origin: Origin,
        /// The key.
        key: String,
        /// Perhaps which one was meant.
        suggestion: String,
    },
    /// A value that its key cannot have.
    #[error("{origin}: {key}: {cause}")]
    WrongValue {
        /// Where it stands.
        origin: Origin,
        /// The key.
        key: String,
        /// Why not.
        cause: String,
    },
    /// A key without a value.
    #[error("command line: {key} has no value; give pairs of KEY VALUE")]
    NoValue {
        /// The last key.
        key: String,
    },
    /// A file of the output folder.
    #[error("cannot write {}; give OUT_DIR a folder that rank 0 can write to", path.display())]
    Unwritable {
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{} line {line}", path.display()),
            Self::CommandLine => f.write_str("command line"),
            Self::Default => f.write_str("default"),
        }
    }
}
