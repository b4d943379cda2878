//! Errors of a configuration.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    File {
        path: PathBuf,
        line: u64,
    },
    CommandLine,
    /// The built-in default of the key.
    Default,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error("cannot read {}; give the path of a configuration to --cfg", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// The file is not valid YAML.
    #[error("{}: {cause}", path.display())]
    Syntax { path: PathBuf, cause: String },
    /// A key that no section has.
    #[error("{origin}: there is no key {key}{suggestion}")]
    UnknownKey {
        origin: Origin,
        key: String,
        /// A question with the most similar key.
        suggestion: String,
    },
    /// A value that its key does not take.
    #[error("{origin}: {key}: {cause}")]
    WrongValue {
        origin: Origin,
        key: String,
        /// The reason why it is not taken.
        cause: String,
    },
    #[error("command line: {key} has no value; give pairs of KEY VALUE")]
    NoValue { key: String },
    #[error("cannot write {}; give OUT_DIR a folder that rank 0 can write to", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
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
