//! The optimizer of a configuration.

use bonfire_config::{MuonScale, OptimizerKind, OptimizerSection};
use bonfire_optim::{AdamConfig, AdamWConfig, DeferredScale, LionConfig, Offload, SgdConfig};
use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdjustLrFn, LambConfig, LearningRate, ModuleOptimizer, Muon, MuonConfig, Optimizer,
};
use burn::tensor::{Device, Tensor};

use crate::error::{Error, Result};

/// Builds the optimizer, with its state in files if it has a folder; and the handle for factors of gradients, if all
/// its groups have one.
pub(super) fn build<M: Module>(
    section: &OptimizerSection,
    model: &M,
    offload: Option<Offload>,
) -> Result<(ModuleOptimizer, Option<DeferredScale>)> {
    let defers = !matches!(section.kind, OptimizerKind::Lamb | OptimizerKind::Muon);
    let deferred = defers.then(DeferredScale::default);
    let betas = |own: (f64, f64)| {
        let (one, other) = section.betas.unwrap_or(own);
        (one as f32, other as f32)
    };
    let adams = betas((0.9, 0.999));
    let (eps, decay) = (section.eps as f32, section.weight_decay as f32);
    if offload.is_some() && matches!(section.kind, OptimizerKind::Lamb | OptimizerKind::Muon) {
        return Err(Error::Usage(
            "offload.optimizer and offload.parameters are for adamw, adam, sgd and lion".to_owned(),
        ));
    }
    let adamw = || {
        AdamWConfig::new()
            .with_beta_1(adams.0)
            .with_beta_2(adams.1)
            .with_epsilon(eps)
            .with_weight_decay(decay)
            .build()
            .with_offload(offload.clone())
            .with_deferred_scale(deferred.clone())
    };
    let optimizer = match section.kind {
        OptimizerKind::AdamW => adamw().into(),
        OptimizerKind::Adam => AdamConfig::new()
            .with_beta_1(adams.0)
            .with_beta_2(adams.1)
            .with_epsilon(eps)
            .with_weight_decay(decay)
            .build()
            .with_offload(offload)
            .with_deferred_scale(deferred.clone())
            .into(),
        OptimizerKind::Sgd => SgdConfig::new()
            .with_momentum(section.momentum.unwrap_or(0.0))
            .with_dampening(section.dampening)
            .with_nesterov(section.nesterov)
            .with_weight_decay(decay)
            .build()
            .with_offload(offload)
            .with_deferred_scale(deferred.clone())
            .into(),
        OptimizerKind::Lion => {
            let betas = betas((0.9, 0.99));
            LionConfig::new()
                .with_beta_1(betas.0)
                .with_beta_2(betas.1)
                .with_weight_decay(decay)
                .build()
                .with_offload(offload)
                .with_deferred_scale(deferred.clone())
                .into()
        }
        OptimizerKind::Lamb => LambConfig::new()
            .with_beta_1(adams.0)
            .with_beta_2(adams.1)
            .with_epsilon(eps)
            .with_weight_decay(decay)
            .init(),
        OptimizerKind::Muon => {
            let matrices = ParamGroup::from_ids(matrices(model));
            let optimizer = ModuleOptimizer::from(adamw());
            match section.muon_scale {
                MuonScale::AdamW => optimizer.with_group(matrices, muon(section).build(), None),
                MuonScale::Original => {
                    optimizer.with_group(matrices, OriginalMuon::new(section), None)
                }
            }
        }
    };
    Ok((optimizer, deferred))
}

/// Burn's Muon with steps on AdamW's scale, so that one rate serves both.
fn muon(section: &OptimizerSection) -> MuonConfig {
    let momentum = MomentumConfig::new()
        .with_momentum(section.momentum.unwrap_or(0.95))
        .with_dampening(0.0)
        .with_nesterov(true);
    let decay = WeightDecayConfig::new(section.weight_decay as f32);
    MuonConfig::new()
        .with_momentum(momentum)
        .with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW)
        .with_weight_decay(Some(decay))
}

/// Muon with the step scale of its authors and DeepSpeed: sqrt(max(1, outputs / inputs)). Burn takes the rows of a
/// matrix for its outputs, as in PyTorch, but the rows of Burn's own layers are inputs.
#[derive(Clone)]
pub(super) struct OriginalMuon {
    /// Without weight decay, which uses the unscaled rate.
    muon: Muon,
    weight_decay: f64,
}

impl OriginalMuon {
    pub(super) fn new(section: &OptimizerSection) -> Self {
        let muon = muon(section).with_adjust_lr_fn(AdjustLrFn::Original);
        Self { muon: muon.with_weight_decay(None).build(), weight_decay: section.weight_decay }
    }
}

impl Optimizer for OriginalMuon {
    type State<const D: usize> = <Muon as Optimizer>::State<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let [inputs, outputs] = [0, 1].map(|dim| tensor.dims()[dim] as f64);
        let length = |ratio: f64| ratio.max(1.0).sqrt();
        let rate = lr * length(outputs / inputs) / length(inputs / outputs);
        let kept = tensor.mul_scalar(1.0 - lr * self.weight_decay);
        self.muon.step(rate, kept, grad, state)
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        Muon::to_device(state, device)
    }
}

/// The matrices of a model that are not tables of embeddings.
pub(super) fn matrices<M: Module>(model: &M) -> Vec<ParamId> {
    #[derive(Default)]
    struct Matrices {
        ids: Vec<ParamId>,
        containers: Vec<String>,
    }
    impl ModuleVisitor for Matrices {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let is_table = self.containers.last().is_some_and(|name| name.contains("Embedding"));
            if D == 2 && !is_table {
                self.ids.push(param.id);
            }
        }

        fn enter_module(&mut self, _name: &str, container_type: &str) {
            self.containers.push(container_type.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.containers.pop();
        }
    }
    let mut matrices = Matrices::default();
    model.visit(&mut matrices);
    matrices.ids
}
