//! Why a text cannot be trained on.

use std::io;
use std::path::PathBuf;

/// A text cannot be read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The file cannot be opened or read.
    #[error("cannot read {}; check that it is there and that this user may read it", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A pipe, a folder or a device.
    #[error(
        "{} is no regular file, and every rank reads it for itself; give a file on disk", .path.display()
    )]
    NotAFile {
        /// What was given.
        path: PathBuf,
    },
    /// The file holds something else than text.
    #[error(
        "{} is not UTF-8 text (byte {offset}); convert it, for example with iconv", .path.display()
    )]
    NotText {
        /// The file.
        path: PathBuf,
        /// The first byte that is not part of a character.
        offset: usize,
    },
    /// There is nothing in it.
    #[error("{name} is empty; give a file with text in it")]
    Empty {
        /// The text's name.
        name: String,
    },
    /// Less text than one window needs.
    #[error(
        "{name} has {characters} characters, but a context of {context} needs at least {needed}; \
         give a longer text, or choose a smaller context"
    )]
    TooShort {
        /// The text's name.
        name: String,
        /// The text's length.
        characters: usize,
        /// The window asked for.
        context: usize,
        /// The least length that would do.
        needed: usize,
    },
}
