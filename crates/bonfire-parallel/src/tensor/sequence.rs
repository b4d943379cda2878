//! Sequence parallelism: between the divided layers, each rank has some of the tokens.
//!
//! Where tensor parallelism alone has every rank compute norms, dropout and residual sums of all tokens, each rank has
//! its own tokens here, and less to keep for the backward pass. A sum becomes a [`reduce_scatter`](crate::ops), and the
//! next divided layer begins with a [`gather`](crate::ops::gather): the same bytes (Korthikanti et al. 2022,
//! arXiv 2205.05198).

use bonfire_train::World;
use burn::module::{Module, ModuleVisitor, Param, Reparameterization, Reparameterizer};
use burn::tensor::Tensor;

use crate::error::or_end_pass;
use crate::{ParallelError, ops};

/// Marks a module that sees only this rank's tokens: the gradients of its parameters, which all ranks of `tp` have,
/// are summed over them. For what is between divided layers, such as norms.
///
/// It attaches a reparameterization, and parameters that a [`Ddp`](bonfire_train::Ddp) shards
/// ([`Placement::zero3`](bonfire_train::Placement)) cannot have one.
///
/// # Errors
/// [`ParallelError::Reparameterized`] if a parameter already has one, as with LoRA.
pub fn sequence_parallel<M: Module>(module: M, tp: &World) -> Result<M, ParallelError> {
    let mut finder = Finder::default();
    module.visit(&mut finder);
    match finder.found {
        Some((parameter, name)) => Err(ParallelError::Reparameterized { parameter, name }),
        None => Ok(module.apply_reparameterization(Attacher(tp))),
    }
}

/// Finds the first parameter with a reparameterization: its path, and the name of the latter.
#[derive(Default)]
struct Finder {
    path: Vec<String>,
    found: Option<(String, String)>,
}

impl ModuleVisitor for Finder {
    fn enter_module(&mut self, name: &str, container: &str) {
        // Burn's name of a reparameterization's own tensors, which it visits behind the parameter.
        if container == "Reparameterization" {
            let parameter = self.path.join(".");
            self.found.get_or_insert((parameter, name.to_owned()));
        }
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }
}

struct Attacher<'a>(&'a World);

impl Reparameterizer for Attacher<'_> {
    type Reparam = SummedGradient;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<SummedGradient>) {
        let tp = self.0.clone();
        (param, Some(SummedGradient { tp }))
    }
}

#[derive(Module, Debug)]
struct SummedGradient {
    #[module(skip)]
    tp: World,
}

impl Reparameterization for SummedGradient {
    const NAME: &'static str = "sequence_parallel";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        or_end_pass(ops::copy(base, &self.tp), &self.tp)
    }
}
