//! The optimizer of a configuration.

use bonfire_config::{MuonScale, OptimizerKind, OptimizerSection};
use bonfire_optim::{
    AdamConfig, AdamWConfig, DeferredScale, Fused, LionConfig, Offload, SgdConfig,
};
use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdjustLrFn, LambConfig, LearningRate, ModuleOptimizer, Muon, MuonConfig, Optimizer,
};
use burn::tensor::{Device, Tensor};

/// Builds the optimizer, with its state in files if it has a folder; and the handle for factors of gradients, if all
/// its groups have one.
pub(super) fn build<M: Module>(
    section: &OptimizerSection,
    model: &M,
    offload: Option<Offload>,
) -> (ModuleOptimizer, Option<DeferredScale>) {
    let betas = |own: (f64, f64)| {
        let (one, other) = section.betas.unwrap_or(own);
        (one as f32, other as f32)
    };
    let adams = betas((0.9, 0.999));
    let eps = section.eps as f32;
    let handles = Handles(offload, section.kind.is_fused().then(DeferredScale::default));
    let adamw = |decay| {
        let adamw = AdamWConfig::new().with_beta_1(adams.0).with_beta_2(adams.1).with_epsilon(eps);
        handles.to(adamw.with_weight_decay(decay).build())
    };
    let optimizer = match section.kind {
        OptimizerKind::AdamW => grouped(section, adamw),
        OptimizerKind::Adam => grouped(section, |decay| {
            let adam = AdamConfig::new().with_beta_1(adams.0).with_beta_2(adams.1);
            handles.to(adam.with_epsilon(eps).with_weight_decay(decay).build())
        }),
        OptimizerKind::Sgd => grouped(section, |decay| {
            let sgd = SgdConfig::new()
                .with_momentum(section.momentum.unwrap_or(0.0))
                .with_dampening(section.dampening)
                .with_nesterov(section.nesterov);
            handles.to(sgd.with_weight_decay(decay).build())
        }),
        OptimizerKind::Lion => grouped(section, |decay| {
            let betas = betas((0.9, 0.99));
            let lion = LionConfig::new().with_beta_1(betas.0).with_beta_2(betas.1);
            handles.to(lion.with_weight_decay(decay).build())
        }),
        OptimizerKind::Lamb => grouped(section, |decay| {
            let lamb = LambConfig::new().with_beta_1(adams.0).with_beta_2(adams.1);
            lamb.with_epsilon(eps).with_weight_decay(decay).build()
        }),
        OptimizerKind::Muon => with_muon(section, model, grouped(section, adamw)),
    };
    (optimizer, handles.1)
}

/// What all fused optimizers of a training are given.
struct Handles(Option<Offload>, Option<DeferredScale>);

impl Handles {
    fn to<C>(&self, optimizer: Fused<C>) -> Fused<C> {
        optimizer.with_offload(self.0.clone()).with_deferred_scale(self.1.clone())
    }
}

/// Adds Muon for the matrices of a model.
fn with_muon<M: Module>(
    section: &OptimizerSection,
    model: &M,
    optimizer: ModuleOptimizer,
) -> ModuleOptimizer {
    let all = ParamGroup::from_ids(matrices(model));
    let decayed = match undecayed(section) {
        Some(others) => all.clone().exclude(others),
        None => all.clone(),
    };
    let decay = section.weight_decay;
    match section.muon_scale {
        MuonScale::AdamW => optimizer.with_group(all, muon(section, 0.0).build(), None).with_group(
            decayed,
            muon(section, decay).build(),
            None,
        ),
        MuonScale::Original => optimizer
            .with_group(all, OriginalMuon::new(section, 0.0), None)
            .with_group(decayed, OriginalMuon::new(section, decay), None),
    }
}

/// The parameters without weight decay, if there are any.
fn undecayed(section: &OptimizerSection) -> Option<ParamGroup> {
    let texts = &section.no_decay;
    (!texts.is_empty()).then(|| ParamGroup::from_any_predicates(texts.clone()))
}

/// Builds an optimizer from its rule with a weight decay.
fn grouped<O: Optimizer>(section: &OptimizerSection, rule: impl Fn(f32) -> O) -> ModuleOptimizer {
    let optimizer = ModuleOptimizer::from(rule(section.weight_decay as f32));
    match undecayed(section) {
        Some(group) => optimizer.with_group(group, rule(0.0), None),
        None => optimizer,
    }
}

/// Burn's Muon with steps on AdamW's scale, so that one rate serves both.
fn muon(section: &OptimizerSection, decay: f64) -> MuonConfig {
    let momentum = MomentumConfig::new()
        .with_momentum(section.momentum.unwrap_or(0.95))
        .with_dampening(0.0)
        .with_nesterov(true);
    let decay = WeightDecayConfig::new(decay as f32);
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
    pub(super) fn new(section: &OptimizerSection, weight_decay: f64) -> Self {
        let muon = muon(section, 0.0).with_adjust_lr_fn(AdjustLrFn::Original);
        Self { muon: muon.with_weight_decay(None).build(), weight_decay }
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
