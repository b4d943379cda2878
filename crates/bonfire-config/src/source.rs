//! Where the values of a configuration are from.

use std::fmt;

/// Where a value is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody has said it.
    Default,
    /// The file.
    File,
    /// The program, for an `"auto"` of a DeepSpeed file.
    Program,
    /// A variable of the environment.
    Environment,
    /// The command line.
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
