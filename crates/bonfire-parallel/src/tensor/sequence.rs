//! Sequence parallelism: between the divided layers, each rank has some of the tokens.
//!
//! Where tensor parallelism alone has every rank compute norms, dropout and residual sums of all tokens, each rank has
//! its own tokens here, and less to keep for the backward pass. A sum becomes a [`reduce_scatter`](crate::ops), and the
//! next divided layer begins with a [`gather`](crate::ops::gather): the same bytes (Korthikanti et al. 2022,
//! arXiv 2205.05198).

use bonfire_train::World;
use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::tensor::Tensor;

use crate::error::or_end_pass;
use crate::ops;

/// The same module, which sees only this rank's tokens: the gradients of its parameters, which all ranks of `tp` have,
/// are summed over them. For what is between divided layers, such as norms.
///
/// It attaches a reparameterization, so a parameter that has one already, as LoRA's do, loses that; and parameters that
/// a [`Ddp`](bonfire_train::Ddp) shards ([`Placement::zero3`](bonfire_train::Placement)) cannot have one.
pub fn sequence_parallel<M: Module>(module: M, tp: &World) -> M {
    module.apply_reparameterization(Attacher(tp))
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

/// A parameter as it is, whose gradient is the sum of all ranks'.
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
