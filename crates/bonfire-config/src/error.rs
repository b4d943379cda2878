//! Errors of a configuration.

use std::fmt;
use std::path::PathBuf;

/// All errors of a configuration, in the order of the file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// One error of a configuration. Paths have dots between keys, as `zero_optimization.stage`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {cause}", .file.display())]
    Unreadable {
        /// The path of the file.
        file: PathBuf,
        /// The error of the operating system.
        cause: String,
    },
    /// The file is not valid TOML or JSON.
    #[error("the configuration cannot be parsed: {cause}")]
    Syntax {
        /// The parser's error, with line and column.
        cause: String,
    },
    /// The key does not exist.
    #[error("{path}: there is no such key{}", hint(.nearest))]
    UnknownKey {
        /// The path of the key.
        path: String,
        /// The path of the known key that is most like it.
        nearest: Option<String>,
    },
    /// A key occurs twice in the file.
    #[error("{path}: the key is there twice; keep one")]
    Duplicate {
        /// The path of the key.
        path: String,
    },
    /// The key does not take this value.
    #[error("{path}: {found} is not {allowed}{}", hint(.nearest))]
    Value {
        /// The path of the key.
        path: String,
        /// The value that was found.
        found: String,
        /// The values that the key takes.
        allowed: String,
        /// The allowed text that is most like it.
        nearest: Option<String>,
    },
    /// Bonfire does not do what the key asks for.
    #[error("{path}: {found} is refused: {reason}")]
    Refused {
        /// The path of the key.
        path: String,
        /// The value that was found.
        found: String,
        /// The reason, and what to do instead.
        reason: String,
    },
    /// A required key or value is missing.
    #[error("{path} is missing: {advice}")]
    Missing {
        /// The path of the key.
        path: String,
        /// The way to fix it.
        advice: String,
    },
    /// An `"auto"` for which the program gives no value.
    #[error(
        "{path}: \"auto\" needs {needs}; write a value into the file, or have the program say it"
    )]
    Unresolved {
        /// The path of the key.
        path: String,
        /// The value that the program would have to give.
        needs: String,
    },
    /// The file and the program have different values.
    #[error(
        "{path}: the file says {file}, and the program {program}; write \"auto\", or make them equal"
    )]
    Disagrees {
        /// The path of the key.
        path: String,
        /// The value of the file.
        file: String,
        /// The value of the program.
        program: String,
    },
    /// The sizes of batches contradict each other.
    #[error("{path}: {cause}")]
    Batch {
        /// The key of the total.
        path: String,
        /// The sizes, with their numbers.
        cause: String,
    },
}

impl ConfigError {
    /// Returns the path of the key, if the error is at one key.
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Syntax { .. } | Self::Unreadable { .. } => None,
            Self::Batch { path, .. }
            | Self::UnknownKey { path, .. }
            | Self::Duplicate { path }
            | Self::Value { path, .. }
            | Self::Refused { path, .. }
            | Self::Missing { path, .. }
            | Self::Unresolved { path, .. }
            | Self::Disagrees { path, .. } => Some(path),
        }
    }
}

fn hint(nearest: &Option<String>) -> String {
    match nearest {
        Some(nearest) => format!("; {nearest} is the nearest"),
        None => String::new(),
    }
}
