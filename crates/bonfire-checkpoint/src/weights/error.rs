//! Errors of loading and writing parameters.

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
    Unreadable {
        /// The weights file, its index, or a file that the index names.
        path: String,
        /// The first fault that was found, in one line.
        cause: String,
    },
    /// The file cannot be written.
    #[error("cannot write weights to {path}: {cause}")]
    Unwritable {
        /// The weights file or the index that rank 0 was writing.
        path: String,
        /// The message of the file system or of the safetensors writer.
        cause: String,
    },
    /// None of its tensors has the name and the shape of a parameter.
    #[error(
        "none of the {count} tensors in {path} has the name and shape of a parameter: the file has \
         {in_file}, the model has {in_model}; choose the file of this model, or rename in the program \
         with `WeightsFile::under_key` or `WeightsFile::renaming`"
    )]
    NothingFits {
        /// The file of which every tensor was compared.
        path: String,
        /// The number of tensors in the file, of types that Burn has.
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
    SameName {
        /// The file with both tensors, or the index of their files.
        path: String,
        /// The name that both have after all renamings.
        name: String,
    },
    /// A parameter was found, but its values cannot be read.
    #[error("the values of {parameter} in {path} cannot be used ({cause}); get the file again")]
    BrokenTensor {
        /// The weights file, or the index of several.
        path: String,
        /// The path of the parameter in the model.
        parameter: String,
        /// The message of the reader or of the conversion.
        cause: String,
    },
    /// A pattern is not a regular expression.
    #[error("the renaming pattern {pattern:?} is not a regular expression: {cause}")]
    BadPattern {
        /// The pattern as it was given.
        pattern: String,
        /// The last line of the message of the regex parser.
        cause: String,
    },
}
