//! Errors of pictures, each with the file at fault.

#![allow(missing_docs, reason = "fields are named for what they hold")]

use std::io;
use std::path::{Path, PathBuf};

use super::{PictureSize, Transform};

/// Pictures cannot be found, read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PictureError {
    /// A file or a folder cannot be read.
    #[error("cannot read {}; check that it is there and that this user may read it", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// A compressed archive, of which no single file can be read.
    #[error("{} is compressed; unpack it to a tar archive with `gunzip` first", .path.display())]
    Compressed { path: PathBuf },
    /// A picture in an archive that is a link to something else than a file in it, or a file with gaps.
    #[error(
        "{} in {archive} is not a complete file{}; make the archive again with `tar --dereference`", .path.display(),
        if .target.as_os_str().is_empty() {
            String::new()
        } else {
            format!(", but a link to {}, which is not a file in it", .target.display())
        }
    )]
    Unlinked {
        archive: String,
        path: PathBuf,
        /// The link's target, if it is a link.
        target: PathBuf,
    },
    /// There is no folder of a class.
    #[error(
        "{name} has no class folders; put the pictures of each class into a folder of its own there"
    )]
    NoClasses { name: String },
    /// A class folder has no pictures in it.
    #[error("class folder {name} has no jpg, jpeg or png picture; add some, or remove the folder")]
    EmptyClass { name: String },
    /// The number of classes differs from the model's.
    #[error(
        "{name} has {found} classes ({classes}), but {expected} are expected; give the model as many \
         classes as there are class folders"
    )]
    ClassCount {
        name: String,
        found: usize,
        /// The first class names, for the message.
        classes: String,
        expected: usize,
    },
    /// A file that is not a picture, or a damaged one.
    #[error("{name} is not a picture that can be read ({cause}); replace it, or remove it")]
    Undecodable { name: String, cause: String },
    /// A picture whose end is missing.
    #[error(
        "{name} ends after {bytes} bytes, in the middle of the picture; copy it again, or remove it"
    )]
    Truncated {
        name: String,
        /// The size of the file in bytes.
        bytes: usize,
    },
    /// A folder or archive without the files of CIFAR-10.
    #[error(
        "{} has no {wanted}; give the folder or the tar archive of CIFAR-10's binary version", .path.display()
    )]
    NoCifar { path: PathBuf, wanted: &'static str },
    /// A file of CIFAR-10 with unexpected content.
    #[error("{name} is not a file of CIFAR-10's binary version: {cause}")]
    NotCifar { name: String, cause: String },
    /// A batch of no pictures, whose size is undefined.
    #[error(
        "a batch of {name} was asked for without an index; skip it, or weight its loss by 0 samples"
    )]
    EmptyBatch { name: String },
    /// The index of a picture is out of range.
    #[error("{name} has {count} pictures, and none at {index}; give the sampler their number")]
    NoSuchPicture {
        name: String,
        /// The index that was requested.
        index: usize,
        count: usize,
    },
    /// A picture cannot be transformed as asked.
    #[error("picture {name}: {source}")]
    Transform { name: String, source: TransformError },
    /// The pictures of a batch do not have one size.
    #[error(
        "picture {name} is {found} but the batch began with {expected}; end the transforms with a \
         crop to one size"
    )]
    UnequalSizes {
        name: String,
        found: PictureSize,
        /// The size of the batch's first picture.
        expected: PictureSize,
    },
    /// A class has too few pictures to be divided.
    #[error("{name} cannot be split: {cause}")]
    Unsplittable { name: String, cause: String },
}

impl PictureError {
    pub(super) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Unreadable { path: path.to_path_buf(), source }
    }
}

/// A picture cannot be transformed as asked.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TransformError {
    /// A random crop is larger than the picture.
    #[error("a crop of {size} x {size} does not fit into {found}; resize first, or pad more")]
    TooSmall {
        /// The side of the crop in pixels.
        size: usize,
        found: PictureSize,
    },
    /// A transform that fits no picture.
    #[error("{transform:?} fits no picture; give sizes above 0, and bounds with 0 < least <= most")]
    Senseless { transform: Transform },
}
