//! The optimizer, with nanoGPT's two groups: matrices decay, the gains of layer norms do not.

use bonfire::optim::{AdamWConfig, DeferredScale, LionConfig, Offload, SgdConfig};
use burn::module::ParamGroup;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{self as burn_optim, AdjustLrFn, ModuleOptimizer, MuonConfig, Optimizer};

use crate::options::{OptimizerKind, OptimizerSettings};

const EPSILON: f32 = 1e-8;

/// Builds the optimizer of a [`crate::model::Gpt`], with its state in files if it has a folder; and the handle for
/// factors of gradients, if all its groups have one.
pub fn build(
    settings: OptimizerSettings,
    offload: Option<&Offload>,
) -> (ModuleOptimizer, Option<DeferredScale>) {
    let OptimizerSettings { kind, beta1, beta2, weight_decay, clip: _ } = settings;
    let adamw = AdamWConfig::new().with_beta_1(beta1).with_beta_2(beta2).with_epsilon(EPSILON);
    let offload = || offload.cloned();
    let defers = !matches!(kind, OptimizerKind::BurnAdamw | OptimizerKind::Muon);
    let deferred = defers.then(DeferredScale::default);
    let handle = || deferred.clone();
    let adamw = |decay| {
        let adamw = adamw.with_weight_decay(decay);
        let adamw = adamw.build().with_offload(offload());
        adamw.with_deferred_scale(handle())
    };
    let optimizer = match kind {
        OptimizerKind::Adamw => grouped(weight_decay, adamw),
        OptimizerKind::BurnAdamw => {
            let burns = burn_optim::AdamWConfig::new()
                .with_beta_1(beta1)
                .with_beta_2(beta2)
                .with_epsilon(EPSILON);
            grouped(weight_decay, |decay| burns.clone().with_weight_decay(decay).build())
        }
        OptimizerKind::Sgd => {
            let sgd = SgdConfig::new().with_momentum(f64::from(beta1));
            grouped(weight_decay, |decay| {
                let sgd = sgd.with_weight_decay(decay).build();
                sgd.with_offload(offload()).with_deferred_scale(handle())
            })
        }
        OptimizerKind::Lion => {
            let lion = LionConfig::new().with_beta_1(beta1).with_beta_2(beta2);
            grouped(weight_decay, |decay| {
                let lion = lion.with_weight_decay(decay).build();
                lion.with_offload(offload()).with_deferred_scale(handle())
            })
        }
        OptimizerKind::Muon => {
            // Its steps are as long as AdamW's, so that one learning rate serves both.
            let muon = MuonConfig::new()
                .with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW)
                .with_weight_decay(Some(WeightDecayConfig::new(weight_decay)));
            let matrices = ParamGroup::from_predicate("blocks").exclude(gains());
            grouped(weight_decay, adamw).with_group(matrices, muon.build(), None)
        }
    };
    (optimizer, deferred)
}

fn grouped<O: Optimizer>(weight_decay: f32, build: impl Fn(f32) -> O) -> ModuleOptimizer {
    ModuleOptimizer::from(build(weight_decay)).with_group(gains(), build(0.0), None)
}

fn gains() -> ParamGroup {
    ParamGroup::from_predicate("gamma")
}

#[cfg(test)]
mod tests {
    use burn::module::{Module, ModuleVisitor, Param};
    use burn::optim::GradientsParams;
    use burn::tensor::{Device, Tensor};
    use clap::ValueEnum;

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
            self.0.push((D, param.val().inner().abs().max().into_scalar()));
        }
    }

    fn largest(model: &Gpt) -> Vec<(usize, f32)> {
        let mut largest = Largest(Vec::new());
        model.visit(&mut largest);
        largest.0
    }

    #[test]
    fn only_matrices_decay() {
        let config = GptConfig { vocabulary: 5, context: 4, layers: 1, heads: 1, width: 4 };
        for &kind in OptimizerKind::value_variants() {
            let model = config.init(1, &Device::flex().autodiff());
            let before = largest(&model);
            let mut gradients = Zeros(GradientsParams::new());
            model.visit(&mut gradients);
            let settings =
                OptimizerSettings { kind, beta1: 0.9, beta2: 0.99, weight_decay: 0.5, clip: None };
            let after = largest(&build(settings, None).0.step(1.0, model, gradients.0));
            assert!(before.iter().any(|&(dimensions, _)| dimensions == 1));
            for ((dimensions, before), (_, after)) in before.into_iter().zip(after) {
                let expected = match dimensions {
                    2 => 0.5 * before,
                    _ => before,
                };
                assert_eq!(after, expected, "{kind:?}: {dimensions} dimensions");
            }
        }
    }
}
