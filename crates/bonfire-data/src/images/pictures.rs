//! The interface of a source of pictures.

use std::fmt::Debug;

use super::{Picture, PictureError};

/// Pictures that can be read in any order, from several threads at once.
pub trait Pictures: Debug + Send + Sync {
    /// Returns the name of the source, for messages.
    fn name(&self) -> &str;

    /// Returns the names of the classes; a label is an index in them.
    fn classes(&self) -> &[String];

    /// Returns the class of each picture. [`SampleWeights::balanced`](crate::SampleWeights::balanced) takes these
    /// labels.
    fn labels(&self) -> &[usize];

    /// Reads one picture.
    ///
    /// # Errors
    /// [`PictureError`] names the file.
    ///
    /// # Panics
    /// If `index` is out of range.
    fn picture(&self, index: usize) -> Result<Picture, PictureError>;

    /// Returns the number of pictures.
    fn count(&self) -> usize {
        self.labels().len()
    }

    /// Checks that there are as many classes as the model has.
    ///
    /// # Errors
    /// [`PictureError::ClassCount`].
    fn expect_classes(&self, expected: usize) -> Result<(), PictureError> {
        const SHOWN_MAX: usize = 8;
        let classes = self.classes();
        if classes.len() == expected {
            return Ok(());
        }
        let mut shown = classes[..classes.len().min(SHOWN_MAX)].join(", ");
        if classes.len() > SHOWN_MAX {
            shown.push_str(", ...");
        }
        Err(PictureError::ClassCount {
            name: self.name().to_owned(),
            found: classes.len(),
            classes: shown,
            expected,
        })
    }
}
