//! Datasets of text: a file, the numbers of its characters, and the windows that a language model
//! reads.
//!
//! Everything is a pure function of the text, so every rank that reads the same file has the same vocabulary and the
//! same windows; a [`Loader`](bonfire::data::Loader) distributes them.

mod corpus;
mod error;
mod vocabulary;
mod windows;

pub use corpus::Text;
pub use error::TextError;
pub use vocabulary::Vocabulary;
pub use windows::{TextBatch, TextWindows};
