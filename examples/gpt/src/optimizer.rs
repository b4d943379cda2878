//! AdamW with nanoGPT's two groups: matrices decay, the gains of layer norms do not.

use burn::module::ParamGroup;
use burn::optim::{AdamWConfig, ModuleOptimizer};

use crate::options::OptimizerSettings;

/// The optimizer of a [`crate::model::Gpt`].
pub fn adamw(settings: OptimizerSettings) -> ModuleOptimizer {
    let config = AdamWConfig::new()
        .with_beta_1(settings.beta1)
        .with_beta_2(settings.beta2)
        .with_epsilon(1e-8)
        .with_weight_decay(settings.weight_decay);
    let gains = ParamGroup::from_predicate("gamma");
    config
        .init()
        .with_group(gains, config.with_weight_decay(0.0).build(), None)
}

#[cfg(test)]
mod tests {
    use burn::module::{Module, ModuleVisitor, Param};
    use burn::optim::GradientsParams;
    use burn::tensor::{Device, Tensor};

    use super::*;
    use crate::model::{Gpt, GptConfig};

    /// Zero gradients for every parameter, so that only weight decay moves anything.
    struct Zeros(GradientsParams);

    impl ModuleVisitor for Zeros {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.register(param.id, param.val().inner().zeros_like());
        }
    }

    /// The largest value of every parameter, by its number of dimensions.
    struct Largest(Vec<(usize, f32)>);

    impl ModuleVisitor for Largest {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0
                .push((D, param.val().inner().abs().max().into_scalar()));
        }
    }

    fn largest(model: &Gpt) -> Vec<(usize, f32)> {
        let mut largest = Largest(Vec::new());
        model.visit(&mut largest);
        largest.0
    }

    #[test]
    fn only_matrices_decay() {
        let config = GptConfig {
            vocabulary: 5,
            context: 4,
            layers: 1,
            heads: 1,
            width: 4,
        };
        let model = config.init(1, &Device::flex().autodiff());
        let before = largest(&model);
        let mut gradients = Zeros(GradientsParams::new());
        model.visit(&mut gradients);
        let settings = OptimizerSettings {
            beta1: 0.9,
            beta2: 0.99,
            weight_decay: 0.5,
            clip: None,
        };
        let after = largest(&adamw(settings).step(1.0, model, gradients.0));
        assert!(before.iter().any(|&(dimensions, _)| dimensions == 1));
        for ((dimensions, before), (_, after)) in before.into_iter().zip(after) {
            let expected = if dimensions == 2 {
                0.5 * before
            } else {
                before
            };
            assert_eq!(after, expected, "a parameter of {dimensions} dimensions");
        }
    }
}
