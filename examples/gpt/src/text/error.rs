//! Why a text cannot be trained on.

use std::io;
use std::path::PathBuf;

/// A text cannot be read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    #[error("cannot read {}; check that it is there and that this user may read it", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// The path is a pipe, a folder or a device.
    #[error(
        "{} is not a regular file, and every rank reads it for itself; give a file on disk", .path.display()
    )]
    NotAFile { path: PathBuf },
    /// The file is not UTF-8 text.
    #[error(
        "{} is not UTF-8 text (byte {offset}); convert it, for example with iconv", .path.display()
    )]
    NotText {
        path: PathBuf,
        /// The first byte that is not part of a character.
        offset: usize,
    },
    /// The text has no characters.
    #[error("{name} is empty; give a file with text in it")]
    Empty { name: String },
    /// The text is shorter than one window.
    #[error(
        "{name} has {characters} characters, but a context of {context} needs at least {needed}; \
         give a longer text, or choose a smaller context"
    )]
    TooShort {
        name: String,
        characters: usize,
        context: usize,
        /// The least length that is enough.
        needed: usize,
    },
}
