//! Refuses to save a training that has diverged: it could not be resumed, and would replace older checkpoints.

use bonfire_checkpoint::record::all_gather_values;
use bonfire_collective::{ProcessGroup, Rank};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

use crate::TrainError;
use crate::parameters::ModulePath;

/// Checks that all trained parameters are finite, as far as each rank has them. Every rank must call it. It waits for
/// the device.
///
/// # Errors
/// [`TrainError::NonFiniteParameter`] on all ranks; [`TrainError::Collective`].
#[track_caller]
pub(super) fn check<M: Module>(model: &M, group: &ProcessGroup) -> Result<(), TrainError> {
    let mut finder = Finder::default();
    model.visit(&mut finder);
    let all: Vec<Option<String>> = all_gather_values(group, &finder.found)?;
    match (0..).zip(all).find_map(|(rank, found)| Some((rank, found?))) {
        None => Ok(()),
        Some((rank, parameter)) => {
            Err(TrainError::NonFiniteParameter { rank: Rank::new(rank), parameter })
        }
    }
}

#[derive(Default)]
struct Finder {
    path: ModulePath,
    found: Option<String>,
}

impl ModuleVisitor for Finder {
    crate::parameters::follow_path!(path);

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let values = param.base();
        let is_looked_at = values.is_require_grad() && values.shape().num_elements() > 0;
        if self.found.is_some() || !is_looked_at {
            return;
        }
        let finite = values.without_autodiff().is_finite().all();
        if !finite.into_scalar::<bool>() {
            self.found = Some(self.path.to_string());
        }
    }
}
