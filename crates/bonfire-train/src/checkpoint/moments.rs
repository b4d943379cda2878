//! The device of an optimizer's moments between reading them and its next step.
//!
//! `ModuleOptimizer::load_record` makes those of Burn's optimizers on Burn's default device, and the next step moves
//! them to that of their parameters. In a build with CUDA the default is the first GPU, for every rank of a host.
//! Those of Bonfire's are on the host until then; a `ModuleOptimizer` does not show which of both it is.

use burn::module::Module;
use burn::tensor::Device;

use crate::parameters::device_of;

/// Warns if the moments of a model take that detour over a GPU of another rank.
pub(super) fn tell_detour<M: Module>(model: &M) {
    let default = Device::default();
    if device_of(model).is_some_and(|own| is_detour(&own, &default)) {
        tracing::warn!(
            "the moments of an optimizer of Burn's are on {default:?} until the next step, like those of all other \
             ranks of this host; those of Bonfire's are in host memory, and BURN_DEVICE=flex, in the environment, has \
             Burn's read to it, too"
        );
    }
}

fn is_detour(own: &Device, default: &Device) -> bool {
    use burn::backend::{CubeDevice, DispatchDevice};
    let is_cuda = matches!(default.as_dispatch(), DispatchDevice::Cube(CubeDevice::Cuda(_)));
    is_cuda && own != default
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_moments_that_pass_through_the_gpu_of_another_rank_take_a_detour() {
        let [first, second] = [0, 1].map(Device::cuda);
        assert!(is_detour(&second, &first));
        assert!(!is_detour(&first, &first));
        #[cfg(feature = "flex")]
        {
            assert!(!is_detour(&second, &Device::flex()));
            assert!(is_detour(&Device::flex(), &first));
        }
    }
}
