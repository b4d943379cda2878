//! What every source of pictures offers.

use std::fmt::Debug;

use super::{Picture, PictureError};

/// Pictures that can be read in any order, from several threads at once.
pub trait Pictures: Debug + Send + Sync {
    /// Where they come from, for messages.
    fn name(&self) -> &str;

    /// The names of the classes; a label is a place in them.
    fn classes(&self) -> &[String];

    /// The class of each picture. [`SampleWeights::balanced`](crate::SampleWeights::balanced) takes
    /// them as they are.
    fn labels(&self) -> &[usize];

    /// Reads one picture.
    ///
    /// # Errors
    /// [`PictureError`] names the file.
    ///
    /// # Panics
    /// If there are not so many.
    fn picture(&self, index: usize) -> Result<Picture, PictureError>;

    /// How many pictures there are.
    fn count(&self) -> usize {
        self.labels().len()
    }

    /// That there are as many classes as the model has.
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
