//! Which part of a model lies where: on a device, in host memory, or in the file that it is loaded from.
//!
//! [`Inference`] fills one place after the other, as `infer_auto_device_map` and `get_balanced_memory` of Hugging
//! Face's accelerate 1.15 do, and gives the maps that they give (tests compare 200 of them), except where those have
//! a fault. The book names some (`device-map.md`); and:
//!
//! - Names are compared by their components. There `1.` is found in `11.weight`, and parameters that are shared are
//!   taken apart.
//! - `balanced_low_0` spares the first device that is used, whatever its number. There 0 has to be there, and
//!   devices have to follow each other without a gap (`KeyError`).
//! - Room for the largest layer of the rest is only kept where a part is offloaded, and has to be brought there. There
//!   it is kept before anybody knows, and a model that just fits is offloaded.
//!
//! Pure: sizes are those that the caller gives, and so is the memory there is.

mod balance;
mod budgets;
mod infer;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

pub use budgets::{Budgets, Strategy};
pub use infer::{Inference, Inferred, Unused};
pub use tree::{ModuleTree, Part, PartKind};

/// Where a part of a model lies. In the order in which places are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The device with this index in the list of devices.
    Device(usize),
    /// The memory of the host.
    Cpu,
    /// The file of the parameters.
    Disk,
}

impl FromStr for Place {
    type Err = MapError;

    fn from_str(text: &str) -> Result<Self, MapError> {
        Ok(match text {
            "cpu" => Self::Cpu,
            "disk" => Self::Disk,
            text => {
                let device = text.parse();
                Self::Device(device.map_err(|_| MapError::UnknownPlace(text.to_owned()))?)
            }
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(index) => write!(f, "{index}"),
            Self::Cpu => f.write_str("cpu"),
            Self::Disk => f.write_str("disk"),
        }
    }
}

/// An error that prevents a device map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// Holds the text that is neither a device number, `cpu` nor `disk`.
    #[error("{0:?} is not a place: use a device number, `cpu` or `disk`")]
    UnknownPlace(String),
    /// Holds the text that is not the name of a [`Strategy`].
    #[error("{0:?} is not a strategy; choose auto, balanced, balanced_low_0 or sequential")]
    UnknownStrategy(String),
    /// A budget that is not a number of bytes.
    #[error("the memory of {place}: {cause}")]
    BadBytes {
        /// The place that the budget was given for, as written.
        place: String,
        /// The error of its text, which it quotes.
        cause: crate::UnknownBytes,
    },
    /// Classes that no module has, in [`Inference::with_no_split`].
    #[error("no module of the model is a {}; its classes are {}", .classes.join(" or a "), .known.join(", "))]
    UnknownClasses {
        /// Those that were to stay whole.
        classes: Vec<String>,
        /// The classes of the model's modules, sorted, each once.
        known: Vec<String>,
    },
    /// A map that leaves out, adds or separates parts of the model.
    #[error("the device map does not fit the model:{}", listed(.unknown, .uncovered, .apart))]
    Unfit {
        /// Paths that the model does not have.
        unknown: Vec<String>,
        /// Parameters and buffers that have no place.
        uncovered: Vec<String>,
        /// Parameters that share their values, and have different places.
        apart: Vec<Vec<String>>,
    },
}

fn listed(unknown: &[String], uncovered: &[String], apart: &[Vec<String>]) -> String {
    let apart: Vec<String> = apart.iter().map(|group| group.join(" = ")).collect();
    let said = [
        ("there is no", unknown),
        ("no place for", uncovered),
        ("shared, but in different places:", &apart),
    ];
    let said = said.iter().filter(|(_, names)| !names.is_empty());
    said.map(|(what, names)| format!(" {what} {};", names.join(", ")))
        .collect::<String>()
        .trim_end_matches(';')
        .to_owned()
}

/// A place for each part of a model: paths of modules and parameters, each for all that is below it, and the longest
/// that fits counts. The empty path is the whole model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceMap {
    places: BTreeMap<String, Place>,
}

impl DeviceMap {
    /// One that says this, as `device_map={"first": 0, "rest": "cpu"}` does.
    ///
    /// ```
    /// # mod bonfire { pub mod weights { pub mod device_map { pub use bonfire_plan::device_map::*; } } }
    /// use bonfire::weights::device_map::{DeviceMap, Place};
    ///
    /// let map = DeviceMap::new([("first", "0"), ("rest", "cpu")])?;
    /// assert_eq!(map.place("rest.3.weight"), Some(Place::Cpu));
    /// # Ok::<(), bonfire_plan::device_map::MapError>(())
    /// ```
    ///
    /// # Errors
    /// [`MapError::UnknownPlace`].
    pub fn new<'a>(places: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, MapError> {
        let places = places.into_iter().map(|(path, place)| Ok((path.to_owned(), place.parse()?)));
        Ok(Self { places: places.collect::<Result<_, _>>()? })
    }

    /// All paths, sorted, and their places.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Place)> {
        let places = self.places.iter();
        places.map(|(path, place)| (path.as_str(), *place))
    }

    /// Where a part lies; `None` if the map says nothing of it.
    pub fn place(&self, path: &str) -> Option<Place> {
        let mut paths = std::iter::successors(Some(path), |path| {
            let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent);
            (!path.is_empty()).then_some(parent)
        });
        paths.find_map(|path| self.places.get(path).copied())
    }

    /// The device that computes with what lies in host memory and in the file: the first that the map has.
    pub fn main_device(&self) -> Option<usize> {
        let devices = self.places.values().filter_map(|place| match place {
            Place::Device(index) => Some(*index),
            Place::Cpu | Place::Disk => None,
        });
        devices.min()
    }

    /// Compares it with a model.
    ///
    /// # Errors
    /// [`MapError::Unfit`], with all that is wrong.
    pub fn check(&self, tree: &ModuleTree) -> Result<(), MapError> {
        let known: BTreeSet<&str> = tree.paths().collect();
        let paths = self.places.keys();
        let unknown = paths.filter(|path| !known.contains(path.as_str()));
        let unknown: Vec<String> = unknown.cloned().collect();
        let tensors = tree.tensors().map(|node| tree.path(node));
        let uncovered = tensors.filter(|path| self.place(path).is_none());
        let uncovered: Vec<String> = uncovered.map(str::to_owned).collect();
        let mut apart = Vec::new();
        for group in tree.ties() {
            let paths = group.iter().map(|&node| tree.path(node));
            let places: BTreeSet<_> = paths.clone().filter_map(|path| self.place(path)).collect();
            if places.len() > 1 {
                apart.push(paths.map(str::to_owned).collect());
            }
        }
        if unknown.is_empty() && uncovered.is_empty() && apart.is_empty() {
            return Ok(());
        }
        Err(MapError::Unfit { unknown, uncovered, apart })
    }
}

/// One line for each path.
impl fmt::Display for DeviceMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, place) in self.iter() {
            let path = if path.is_empty() { "(all)" } else { path };
            writeln!(f, "{path}: {place}")?;
        }
        Ok(())
    }
}
