//! How much memory each place has, and how devices share the work.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::{MapError, Place};
use crate::Bytes;

/// How much of each place parameters may take. What is not named is not used, but for the file, which has room for
/// everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    pub(super) places: BTreeMap<Place, Bytes>,
}

impl Budgets {
    /// As people write them: `[("0", "10GiB"), ("cpu", "32GB")]`.
    ///
    /// # Errors
    /// [`MapError::UnknownPlace`] or [`MapError::BadBytes`].
    pub fn new<'a>(places: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, MapError> {
        let mut budgets = Self::default();
        for (place, bytes) in places {
            let bytes = bytes
                .parse()
                .map_err(|cause| MapError::BadBytes { place: place.to_owned(), cause })?;
            budgets.places.insert(place.parse()?, bytes);
        }
        Ok(budgets)
    }

    /// Gives a place this much.
    #[must_use]
    pub fn with(mut self, place: Place, bytes: Bytes) -> Self {
        self.places.insert(place, bytes);
        self
    }
}

/// How the devices share a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Evenly, and what does not fit goes to host memory, then to the file. Also called `auto`.
    #[default]
    Balanced,
    /// The same, with as little as possible on the first device, which has other work.
    BalancedLow0,
    /// One device after the other, each as full as it may be.
    Sequential,
}

impl FromStr for Strategy {
    type Err = MapError;

    fn from_str(text: &str) -> Result<Self, MapError> {
        match text {
            "auto" | "balanced" => Ok(Self::Balanced),
            "balanced_low_0" => Ok(Self::BalancedLow0),
            "sequential" => Ok(Self::Sequential),
            text => Err(MapError::UnknownStrategy(text.to_owned())),
        }
    }
}
