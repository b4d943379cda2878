//! The sources of a configuration's values.

use std::fmt;

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The built-in default of the key.
    Default,
    /// The file of the configuration.
    File,
    /// The program, for an `"auto"` of a DeepSpeed file.
    Program,
    /// An environment variable such as `BONFIRE__SEED`.
    Environment,
    /// A word of the command line.
    CommandLine,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Program => "program",
            Self::Environment => "environment",
            Self::CommandLine => "command line",
        })
    }
}
