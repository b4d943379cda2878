//! The parts of a training: model, data, and what the configuration cannot express.

use std::fmt;
use std::sync::Arc;

use bonfire_checkpoint::record::TensorTable;
use bonfire_launch::StopRequest;
use bonfire_plan::memory::Activations;
use bonfire_report::JournalDisplay;
use bonfire_train::Mesh;
use burn::optim::ModuleOptimizer;

use super::Data;

/// Learning rates by the step and the epoch.
pub(super) type Rates = Arc<dyn Fn(u64, u64) -> f64 + Send + Sync>;

pub(super) fn by_step(rate: impl Fn(u64) -> f64 + Send + Sync + 'static) -> Rates {
    Arc::new(move |step, _| rate(step))
}

/// The parts of a training: a model or its [`Stages`](super::Stages), its data, and what the configuration cannot
/// express. `(model, data)` converts into it.
pub struct Parts<M, B> {
    pub(super) model: M,
    pub(super) data: Data<B>,
    pub(super) optimizer: Option<ModuleOptimizer>,
    pub(super) rates: Option<Rates>,
    pub(super) stop: Option<StopRequest>,
    pub(super) activations: Option<Activations>,
    pub(super) flops_per_sample: Option<f64>,
    pub(super) units: (&'static str, usize),
    pub(super) display: JournalDisplay,
    pub(super) mesh: Option<(Mesh, TensorTable)>,
}

impl<M, B> Parts<M, B> {
    /// Takes a model, or its [`Stages`](super::Stages), and its training data.
    pub fn new(model: M, data: Data<B>) -> Self {
        Self {
            model,
            data,
            optimizer: None,
            rates: None,
            stop: None,
            activations: None,
            flops_per_sample: None,
            units: ("samples", 1),
            display: JournalDisplay::default(),
            mesh: None,
        }
    }

    /// Sets the program's own optimizer, such as one with groups of parameters, in place of the configuration's. Where
    /// `placement` shards its state by rows, it has to treat each number by itself.
    #[must_use]
    pub fn with_optimizer(mut self, optimizer: ModuleOptimizer) -> Self {
        self.optimizer = Some(optimizer);
        self
    }

    /// Sets the program's own learning rates, by the step of the optimizer, counted from 0.
    #[must_use]
    pub fn with_schedule(mut self, rate: impl Fn(u64) -> f64 + Send + Sync + 'static) -> Self {
        self.rates = Some(by_step(rate));
        self
    }

    /// Sets the program's own learning rates, by the epoch, counted from 0.
    #[must_use]
    pub fn with_epoch_schedule(
        mut self,
        rate: impl Fn(u64) -> f64 + Send + Sync + 'static,
    ) -> Self {
        self.rates = Some(Arc::new(move |_, epoch| rate(epoch)));
        self
    }

    /// Sets the memory of a forward and a backward pass, as [`rehearse`](crate::plan::rehearse) measures it or the
    /// program knows it: the report then has the planned memory beside the measured one.
    #[must_use]
    pub fn with_activations(mut self, activations: impl Into<Activations>) -> Self {
        self.activations = Some(activations.into());
        self
    }

    /// Sets the floating-point operations of a forward and a backward pass over one sample: the report then has FLOP/s
    /// per rank and, with `report.peak_flops` in the configuration, model FLOPs utilisation. See
    /// [`ModelFlops`](crate::report::ModelFlops).
    #[must_use]
    pub fn with_flops_per_sample(mut self, flops: f64) -> Self {
        self.flops_per_sample = Some(flops);
        self
    }

    /// Counts throughput in another unit than samples: `per_sample` of them are in each sample, such as the `tokens` of
    /// a window.
    #[must_use]
    pub fn with_units(mut self, name: &'static str, per_sample: usize) -> Self {
        self.units = (name, per_sample.max(1));
        self
    }

    /// Sets the form in which rank 0 shows the training, such as [`JournalDisplay::Notes`] for a program with its own
    /// output.
    #[must_use]
    pub fn with_display(mut self, display: JournalDisplay) -> Self {
        self.display = display;
        self
    }

    /// Places the ranks on a mesh, which is that of the configuration: the model is this rank's part of `whole`, whose
    /// layers are divided among the ranks of `tp`, and the forward pass takes this rank's tokens of each batch, which
    /// is the same on all ranks of `cp`. A mesh with `tp` or `cp` needs it, and so do [`Stages`](super::Stages).
    #[must_use]
    pub fn with_mesh(mut self, mesh: &Mesh, whole: TensorTable) -> Self {
        self.mesh = Some((mesh.clone(), whole));
        self
    }

    /// Sets another stop request in place of Ctrl-C and SIGTERM.
    #[must_use]
    pub fn with_stop(mut self, stop: StopRequest) -> Self {
        self.stop = Some(stop);
        self
    }
}

impl<M, B> From<(M, Data<B>)> for Parts<M, B> {
    fn from((model, data): (M, Data<B>)) -> Self {
        Self::new(model, data)
    }
}

impl<M, B> fmt::Debug for Parts<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("data", &self.data).finish_non_exhaustive()
    }
}
