//! Errors of loading and writing parameters.

#![allow(missing_docs, reason = "fields are named for what they hold")]

use serde::{Deserialize, Serialize};

/// A file cannot be loaded or written. Every rank gets the error of rank 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be read in the format that its name suggests.
    #[error(
        "cannot read weights from {path} ({cause}); give a safetensors file or one that torch.save \
         has written"
    )]
    Unreadable { path: String, cause: String },
    /// The file cannot be written.
    #[error("cannot write weights to {path}: {cause}")]
    Unwritable { path: String, cause: String },
    /// None of its tensors has the name and the shape of a parameter.
    #[error(
        "none of the {count} tensors in {path} has the name and shape of a parameter: the file has \
         {in_file}, the model has {in_model}; choose the file of this model, or rename in the program \
         with `WeightsFile::under_key` or `WeightsFile::renaming`"
    )]
    NothingFits {
        path: String,
        count: usize,
        /// The file's first names, for the message.
        in_file: String,
        /// The model's first names, for the message.
        in_model: String,
    },
    /// Two tensors have the same name.
    #[error(
        "two tensors in {path} are called {name} once their names are changed; choose renamings that \
         keep them apart"
    )]
    SameName { path: String, name: String },
    /// A parameter was found, but its values cannot be read.
    #[error("the values of {parameter} in {path} cannot be used ({cause}); get the file again")]
    BrokenTensor { path: String, parameter: String, cause: String },
    /// A pattern is not a regular expression.
    #[error("the renaming pattern {pattern:?} is not a regular expression: {cause}")]
    BadPattern {
        /// The pattern as it was given.
        pattern: String,
        cause: String,
    },
}
