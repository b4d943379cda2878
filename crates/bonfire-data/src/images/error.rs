//! Errors of pictures, each with the file at fault.

use std::io;
use std::path::{Path, PathBuf};

use super::{PictureSize, Transform};

/// Pictures cannot be found, read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PictureError {
    /// A file or a folder cannot be read.
    #[error("cannot read {}; check that it is there and that this user may read it", .path.display())]
    Unreadable {
        /// The file or folder, or the archive that contains it.
        path: PathBuf,
        /// The error of the operating system or of the archive's format.
        source: io::Error,
    },
    /// A compressed archive, of which no single file can be read.
    #[error("{} is compressed; unpack it to a tar archive with `gunzip` first", .path.display())]
    Compressed {
        /// The archive, which begins as gzip files do.
        path: PathBuf,
    },
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
        /// The archive and the folder in it that was opened.
        archive: String,
        /// The path of the entry inside the archive.
        path: PathBuf,
        /// The link's target, if it is a link.
        target: PathBuf,
    },
    /// There is no folder of a class.
    #[error(
        "{name} has no class folders; put the pictures of each class into a folder of its own there"
    )]
    NoClasses {
        /// The root folder, or the archive and the folder in it.
        name: String,
    },
    /// A class folder has no pictures in it.
    #[error("class folder {name} has no jpg, jpeg or png picture; add some, or remove the folder")]
    EmptyClass {
        /// The root and the folder of the class below it.
        name: String,
    },
    /// The number of classes differs from the model's.
    #[error(
        "{name} has {found} classes ({classes}), but {expected} are expected; give the model as many \
         classes as there are class folders"
    )]
    ClassCount {
        /// The name of the data set, usually its folder or archive.
        name: String,
        /// The number of classes in the data set.
        found: usize,
        /// The first class names, for the message.
        classes: String,
        /// The number of classes that the caller expects.
        expected: usize,
    },
    /// A file that is not a picture, or a damaged one.
    #[error("{name} is not a picture that can be read ({cause}); replace it, or remove it")]
    Undecodable {
        /// The name of the picture, usually its path.
        name: String,
        /// The message of the decoder, in one line.
        cause: String,
    },
    /// A picture whose end is missing.
    #[error(
        "{name} ends after {bytes} bytes, in the middle of the picture; copy it again, or remove it"
    )]
    Truncated {
        /// The name of the picture, usually its path.
        name: String,
        /// The size of the file in bytes.
        bytes: usize,
    },
    /// A folder or archive without the files of CIFAR-10.
    #[error(
        "{} has no {wanted}; give the folder or the tar archive of CIFAR-10's binary version", .path.display()
    )]
    NoCifar {
        /// The folder or archive that was searched.
        path: PathBuf,
        /// The file names that were searched for, perhaps with `*`.
        wanted: &'static str,
    },
    /// A file of CIFAR-10 with unexpected content.
    #[error("{name} is not a file of CIFAR-10's binary version: {cause}")]
    NotCifar {
        /// The path of the file, perhaps inside an archive.
        name: String,
        /// The unexpected length in bytes, or the record with an unknown label.
        cause: String,
    },
    /// A batch of no pictures, whose size is undefined.
    #[error(
        "a batch of {name} was asked for without an index; skip it, or weight its loss by 0 samples"
    )]
    EmptyBatch {
        /// The data set from which the batch was taken.
        name: String,
    },
    /// The index of a picture is out of range.
    #[error("{name} has {count} pictures, and none at {index}; give the sampler their number")]
    NoSuchPicture {
        /// The data set from which the picture was requested.
        name: String,
        /// The index that was requested.
        index: usize,
        /// The number of pictures, one more than the highest index.
        count: usize,
    },
    /// A picture cannot be transformed as asked.
    #[error("picture {name}: {source}")]
    Transform {
        /// The index of the picture and its data set.
        name: String,
        /// The transform that failed, with its sizes in pixels.
        source: TransformError,
    },
    /// The pictures of a batch do not have one size.
    #[error(
        "picture {name} is {found} but the batch began with {expected}; end the transforms with a \
         crop to one size"
    )]
    UnequalSizes {
        /// The index of the picture and its data set.
        name: String,
        /// The size of this picture in pixels, after all transforms.
        found: PictureSize,
        /// The size of the batch's first picture.
        expected: PictureSize,
    },
    /// A class has too few pictures to be divided.
    #[error("{name} cannot be split: {cause}")]
    Unsplittable {
        /// The data set that was to be divided.
        name: String,
        /// The class with one picture, or the share that is not between 0 and 1.
        cause: String,
    },
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
        /// The size of the picture in pixels, with its padding.
        found: PictureSize,
    },
    /// A transform that fits no picture.
    #[error("{transform:?} fits no picture; give sizes above 0, and bounds with 0 < least <= most")]
    Senseless {
        /// The first such transform, with its sizes and bounds.
        transform: Transform,
    },
}
