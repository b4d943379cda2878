//! Models whose parameters lie on several devices, in host memory, or stay in the file that they are loaded from.
//!
//! A device map has the place of each module; [`infer`] finds one for a Burn model, [`Dispatch`] applies it. Burn has
//! no hooks around a module's forward pass. So what lies in host memory or in the file is brought to a device by a
//! reparameterization: when the model asks for the value of the parameter, and no longer than what uses it.
//!
//! Parts on different devices move what goes in themselves: see [`device_of`].

mod ahead;
mod anchors;
mod dispatch;
mod error;
mod offloaded;
mod survey;

use bonfire_plan::device_map::{Inference, Inferred, MapError, ModuleTree};
use burn::module::Module;

pub use dispatch::Dispatch;
pub use error::PlaceError;
pub use offloaded::device_of;

use survey::Survey;

/// Finds a device map for a model. Parameters that are not initialised yet stay so, and count with the type of their
/// device's floats.
///
/// ```
/// # mod bonfire { pub mod weights { pub use bonfire_parallel::infer; pub use bonfire_plan::device_map; } }
/// use bonfire::weights::infer;
/// use bonfire::weights::device_map::{Budgets, Inference};
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
///
/// let layer = |_| LinearConfig::new(100, 100).init(&Device::flex());
/// let model: Vec<_> = (0..4).map(layer).collect();
/// // Each layer has 40,400 bytes, and device 0 keeps room for one of them.
/// let budgets = Budgets::new([("0", "100KB"), ("cpu", "1GB")])?;
/// let map = infer(&model, &Inference::new(budgets))?.map;
/// assert_eq!(map.to_string(), "0: 0\n1: cpu\n2: cpu\n3: cpu\n");
/// # Ok::<(), bonfire_plan::device_map::MapError>(())
/// ```
///
/// # Errors
/// [`MapError::UnknownClasses`].
pub fn infer<M: Module>(model: &M, inference: &Inference) -> Result<Inferred, MapError> {
    inference.infer(&module_tree(model))
}

/// The modules of a model and their parameters, as device maps see them. Variants of enums are not in paths, as in
/// files. Lists are of the class `Vec`.
pub fn module_tree<M: Module>(model: &M) -> ModuleTree {
    Survey::of(model).tree()
}
