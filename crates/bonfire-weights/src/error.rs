//! Why no parameters can be loaded or written.

use serde::{Deserialize, Serialize};

/// A file from which no parameters can be loaded, or to which none can be written. Every rank gets the one of rank 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be read as what its name says it is.
    #[error(
        "cannot read weights from {path} ({cause}); give a safetensors file or one that torch.save \
         has written"
    )]
    Unreadable {
        /// The file.
        path: String,
        /// What is wrong with it.
        cause: String,
    },
    /// It cannot be written.
    #[error("cannot write weights to {path}: {cause}")]
    Unwritable {
        /// The file.
        path: String,
        /// Why.
        cause: String,
    },
    /// It has no tensor with the name and the shape of a parameter.
    #[error(
        "none of the {count} tensors in {path} has the name and shape of a parameter: the file has \
         {in_file}, the model has {in_model}; choose the file of this model, or rename in the program \
         with `WeightsFile::under_key` or `WeightsFile::renaming`"
    )]
    NothingFits {
        /// The file.
        path: String,
        /// How many tensors it has.
        count: usize,
        /// The first of them, for people.
        in_file: String,
        /// The first of the model, for people.
        in_model: String,
    },
    /// Two tensors have one name.
    #[error(
        "two tensors in {path} are called {name} once their names are changed; choose renamings that \
         keep them apart"
    )]
    SameName {
        /// The file.
        path: String,
        /// The name.
        name: String,
    },
    /// A parameter was found, but its values cannot be read.
    #[error("the values of {parameter} in {path} cannot be used ({cause}); get the file again")]
    BrokenTensor {
        /// The file.
        path: String,
        /// Which parameter.
        parameter: String,
        /// What is wrong with them.
        cause: String,
    },
    /// A pattern is no regular expression.
    #[error("the renaming pattern {pattern:?} is no regular expression: {cause}")]
    BadPattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        cause: String,
    },
}
