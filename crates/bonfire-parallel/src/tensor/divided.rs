//! Finds the divided parameters of a model.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

/// Returns the parameters that are divided among ranks: those of the layers of this crate, but for the bias of a
/// [`RowParallelLinear`](crate::RowParallelLinear), which is the same on all ranks as everything else is.
///
/// For the norm of a gradient, of which each element must count once:
///
/// ```
/// # use bonfire_parallel::divided_parameters;
/// # use bonfire_train::{Clip, Gradients, TrainError, World};
/// # use burn::module::Module;
/// fn clipped<M: Module>(model: &M, gradients: Gradients, tp: &World) -> Result<Gradients, TrainError> {
///     let divided = divided_parameters(model);
///     gradients.sharded_along(tp, |parameter| divided.contains(&parameter)).clip(Clip::Norm(1.0))
/// }
/// ```
pub fn divided_parameters<M: Module>(model: &M) -> HashSet<ParamId> {
    let mut finder = Finder::default();
    model.visit(&mut finder);
    finder.found
}

#[derive(Default)]
struct Finder {
    /// The position of the visitor: fields and their types.
    path: Vec<(String, String)>,
    found: HashSet<ParamId>,
}

impl ModuleVisitor for Finder {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push((name.to_owned(), container.to_owned()));
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let place = self.path.last();
        let place = place.map(|(name, container)| (container.rsplit(':').next(), name.as_str()));
        let is_divided = match place {
            Some((Some("ColumnParallelLinear" | "VocabParallelEmbedding"), _)) => true,
            Some((Some("RowParallelLinear"), name)) => name == "weight",
            _ => false,
        };
        if is_divided {
            self.found.insert(param.id);
        }
    }
}
