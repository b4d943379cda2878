//! Plans the memory of each rank of a training, before it runs, in each placement.
//!
//! [`plan()`] counts a model's parameters and measures its passes. The resulting table has a rank's memory in each
//! placement, and shows if it fits.

use bonfire_config::Config;
use bonfire_train::IntoLoss;
use burn::module::Module;

use bonfire_plan::{Axis, WorldSize};

use crate::error::{Error, Result};
use crate::trainer::{around, configured, ddp_config, placed};

pub use bonfire_plan::Bytes;
pub use bonfire_plan::memory::{Activations, Evaluation, Parameter, Start, Training};
pub use bonfire_train::{Resident, outline, rehearse, rehearse_among, rehearse_work};

/// Plans a training of a model with a configuration, on `ranks` ranks of one host. `forward` runs the model over one
/// micro-batch and returns the same as that of [`Ddp::backward`](crate::Ddp::backward): three passes are run on this
/// process alone, which should not have trained anything before.
///
/// ```
/// use bonfire::config::Config;
/// use bonfire::plan::{Bytes, plan};
/// use bonfire::collective::WorldSize;
/// use bonfire::prelude::*;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex().autodiff();
/// let model: Linear = LinearConfig::new(1024, 1024).init(&device);
/// let config = Config::default().with_words(["batch.micro=16", "placement=zero2"])?;
/// let training = plan(&model, &config, WorldSize::new(8)?, |model| {
///     model.forward(Tensor::<2>::ones([16, 1024], &device)).mean()
/// })?;
/// println!("{}", training.table(Placement::presets(), Some("80GiB".parse()?)));
/// assert!(training.memory(config.placement).peak().1.total() < Bytes::new(1 << 30));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Those of [`rehearse`], and of batches that do not multiply or a mesh that a trainer cannot have.
pub fn plan<M: Module, L: IntoLoss>(
    model: &M,
    config: &Config,
    ranks: WorldSize,
    forward: impl FnMut(&M) -> L,
) -> Result<Training> {
    let (config, grid) = placed(config, ranks)?;
    if [Axis::Pp, Axis::Cp, Axis::Tp].iter().any(|axis| grid.size(*axis) > 1) {
        return Err(Error::Usage(format!(
            "mesh={grid}: plan() counts the complete model, not a rank's part; plan a Training of outline(&part) and of what \
             rehearse_among or rehearse_work measures, or leave pp, tp and cp out"
        )));
    }
    let accumulation = config.batches(u64::from(ranks.get()))?.accumulation;
    let mut training = configured(model, accumulation, &config, ranks);
    training.program = around(&training)?;
    training.activations = rehearse(model, ddp_config(&config).precision, forward)?;
    Ok(training)
}
