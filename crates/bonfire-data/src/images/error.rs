//! What can be wrong with pictures, always with the file at fault.

use std::io;
use std::path::PathBuf;

use super::{PictureSize, Transform};

/// Pictures cannot be found, read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PictureError {
    /// A file or a folder cannot be read.
    #[error("cannot read {}; check that it is there and that this user may read it", .path.display())]
    Unreadable {
        /// Which one.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A compressed archive, of which no single file can be read.
    #[error("{} is compressed; unpack it to a tar archive with `gunzip` first", .path.display())]
    Compressed {
        /// The archive.
        path: PathBuf,
    },
    /// A picture in an archive that is a link to something else than a file in it, or a file with gaps.
    #[error(
        "{} in {archive} is no whole file{}; make the archive anew with `tar --dereference`", .path.display(),
        if .target.as_os_str().is_empty() {
            String::new()
        } else {
            format!(", but a link to {}, which is no file in it", .target.display())
        }
    )]
    Unlinked {
        /// The archive.
        archive: String,
        /// The picture, or the class, in it.
        path: PathBuf,
        /// What it is a link to, if it is one.
        target: PathBuf,
    },
    /// There is no folder of a class.
    #[error(
        "{name} has no class folders; put the pictures of each class into a folder of its own there"
    )]
    NoClasses {
        /// The folder that should have them.
        name: String,
    },
    /// A class without pictures.
    #[error("class folder {name} has no jpg, jpeg or png picture; add some, or remove the folder")]
    EmptyClass {
        /// Its folder.
        name: String,
    },
    /// Another number of classes than the model has.
    #[error(
        "{name} has {found} classes ({classes}), but {expected} are expected; give the model as many \
         classes as there are class folders"
    )]
    ClassCount {
        /// Where the pictures come from.
        name: String,
        /// How many classes there are.
        found: usize,
        /// The first of them, for people.
        classes: String,
        /// How many there should be.
        expected: usize,
    },
    /// A file that is no picture, or a damaged one.
    #[error("{name} is not a picture that can be read ({cause}); replace it, or remove it")]
    Undecodable {
        /// The file.
        name: String,
        /// The decoder's words.
        cause: String,
    },
    /// A picture whose end is missing.
    #[error(
        "{name} ends after {bytes} bytes, in the middle of the picture; copy it again, or remove it"
    )]
    Truncated {
        /// The file.
        name: String,
        /// Its size.
        bytes: usize,
    },
    /// A place without the files of CIFAR-10.
    #[error(
        "{} has no {wanted}; give the folder or the tar archive of CIFAR-10's binary version", .path.display()
    )]
    NoCifar {
        /// The folder or the archive.
        path: PathBuf,
        /// What the files are called.
        wanted: &'static str,
    },
    /// A file of CIFAR-10 with something else in it.
    #[error("{name} is no file of CIFAR-10's binary version: {cause}")]
    NotCifar {
        /// The file.
        name: String,
        /// What is wrong with it.
        cause: String,
    },
    /// A batch of no pictures, which would have no size.
    #[error(
        "a batch of {name} was asked for without an index; skip it, or weight its loss by 0 samples"
    )]
    EmptyBatch {
        /// Where the pictures come from.
        name: String,
    },
    /// A picture that the source has not.
    #[error("{name} has {count} pictures, and none at {index}; give the sampler their number")]
    NoSuchPicture {
        /// Where the pictures come from.
        name: String,
        /// Which one was asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A picture cannot be transformed as asked.
    #[error("picture {name}: {source}")]
    Transform {
        /// The picture.
        name: String,
        /// Why not.
        source: TransformError,
    },
    /// The pictures of a batch do not have one size.
    #[error(
        "picture {name} is {found} but the batch began with {expected}; end the transforms with a \
         crop to one size"
    )]
    UnequalSizes {
        /// The picture.
        name: String,
        /// Its size.
        found: PictureSize,
        /// The size of the batch's first picture.
        expected: PictureSize,
    },
    /// A class has too few pictures to be divided.
    #[error("{name} cannot be split: {cause}")]
    Unsplittable {
        /// Where the pictures come from.
        name: String,
        /// What is in the way.
        cause: String,
    },
}

/// A picture cannot be transformed as asked.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TransformError {
    /// A random crop has no room.
    #[error("a crop of {size} x {size} does not fit into {found}; resize first, or pad more")]
    TooSmall {
        /// The side of the crop.
        size: usize,
        /// The padded picture.
        found: PictureSize,
    },
    /// A transform that makes no sense for any picture.
    #[error("{transform:?} fits no picture; give sizes above 0, and bounds with 0 < least <= most")]
    Senseless {
        /// Which one.
        transform: Transform,
    },
}
