//! What is wrong with a configuration.

use std::fmt;
use std::path::PathBuf;

/// Everything that is wrong with a configuration, in the order of the file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// One thing that is wrong. Paths have dots between keys, as `zero_optimization.stage`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {cause}", .file.display())]
    Unreadable {
        /// Which.
        file: PathBuf,
        /// Why.
        cause: String,
    },
    /// It is no TOML or JSON.
    #[error("the configuration cannot be parsed: {cause}")]
    Syntax {
        /// What, and in which line and column.
        cause: String,
    },
    /// There is no such key.
    #[error("{path}: there is no such key{}", hint(.nearest))]
    UnknownKey {
        /// Where.
        path: String,
        /// The path of the known key that is most like it.
        nearest: Option<String>,
    },
    /// A key comes twice.
    #[error("{path}: the key is there twice; keep one")]
    Duplicate {
        /// Where.
        path: String,
    },
    /// The value is none that the key takes.
    #[error("{path}: {found} is not {allowed}{}", hint(.nearest))]
    Value {
        /// Where.
        path: String,
        /// What is there.
        found: String,
        /// What the key takes.
        allowed: String,
        /// The allowed text that is most like it.
        nearest: Option<String>,
    },
    /// Bonfire does not do what the key asks for.
    #[error("{path}: {found} is refused: {reason}")]
    Refused {
        /// Where.
        path: String,
        /// What is there.
        found: String,
        /// Why, and what to do instead.
        reason: String,
    },
    /// Something is missing.
    #[error("{path} is missing: {advice}")]
    Missing {
        /// Where.
        path: String,
        /// What to do.
        advice: String,
    },
    /// An `"auto"` that the program says nothing of.
    #[error(
        "{path}: \"auto\" needs {needs}; write a value into the file, or have the program say it"
    )]
    Unresolved {
        /// Where.
        path: String,
        /// What the program would have to say.
        needs: String,
    },
    /// The file says one thing and the program another.
    #[error(
        "{path}: the file says {file}, and the program {program}; write \"auto\", or make them equal"
    )]
    Disagrees {
        /// Where.
        path: String,
        /// The file's value.
        file: String,
        /// The program's.
        program: String,
    },
    /// Sizes of batches that do not go together.
    #[error("{path}: {cause}")]
    Batch {
        /// The key of the total.
        path: String,
        /// Which, with their numbers.
        cause: String,
    },
}

impl ConfigError {
    /// Where it is, if it is in one place.
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
