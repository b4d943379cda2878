//! A running mean or variance of one replica.

use std::collections::VecDeque;
use std::sync::Arc;

use bonfire_collective::Mutex;
use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
    Param, ParamId,
};
use burn::tensor::{Device, Tensor};

use crate::nn::norm::normalize::GlobalMoments;
use crate::world::exchange::group::NormGroup;
use crate::world::exchange::mapping::{Meaning, meaning};

/// The container of a mapper that has statistics join others: distinguishes them from those of Burn's batch norm.
pub(crate) const JOINING: &str = "joining";

/// The moments with which a layer normalised in the runs of a segment, in their order.
type Tape = Arc<Mutex<VecDeque<GlobalMoments>>>;

/// The running mean or variance of a [`BatchNorm`](crate::BatchNorm): a tensor of shape `[features]`
/// which the forward pass of training updates. It is recorded like a parameter that is not trained.
///
/// Clones share the value, as the training replica and its original must. Mapping, loading or moving a module,
/// `train()`, `valid()`, and [`Ddp`](crate::Ddp) copy the value: ranks that are threads of one process and start from
/// clones of one model do not affect each other. (Burn's `RunningState` shares its value in most of these cases, and
/// is the mean over the threads that updated it.)
#[derive(Clone, Debug)]
pub struct RunningStatistic {
    id: ParamId,
    value: Arc<Mutex<Tensor<1>>>,
    exchange: Option<NormGroup>,
    /// In a run of a segment that will be repeated.
    recorded: Option<Tape>,
    /// In a run that repeats another.
    replayed: Option<Tape>,
}

impl RunningStatistic {
    pub(crate) fn new(value: Tensor<1>) -> Self {
        let value = value.set_require_grad(false).without_autodiff();
        Self {
            id: ParamId::new(),
            value: Arc::new(Mutex::new(value)),
            exchange: None,
            recorded: None,
            replayed: None,
        }
    }

    /// Returns the value, of shape `[features]`, without autodiff.
    pub fn value(&self) -> Tensor<1> {
        self.value.lock().clone()
    }

    pub(crate) fn update(&self, value: Tensor<1>) {
        *self.value.lock() = value;
    }

    pub(crate) fn exchange(&self) -> Option<&NormGroup> {
        self.exchange.as_ref()
    }

    /// The moments of the run that this one repeats, or those of `exchange`; kept if this run will be repeated.
    pub(crate) fn moments(&self, exchange: impl FnOnce() -> GlobalMoments) -> GlobalMoments {
        let replayed = self.replayed.as_ref();
        let replayed = replayed.and_then(|tape| tape.lock().pop_front());
        let moments = replayed.unwrap_or_else(exchange);
        if let Some(tape) = &self.recorded {
            tape.lock().push_back(moments.clone());
        }
        moments
    }

    fn with_value(&self, value: Tensor<1>) -> Self {
        let value = value.set_require_grad(false).without_autodiff();
        Self { value: Arc::new(Mutex::new(value)), ..self.clone() }
    }
}

impl Module for RunningStatistic {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        visitor.visit_float(&Param::initialized(self.id, self.value()));
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let meaning = meaning();
        let shown = Param::initialized(self.id, self.value());
        if let Meaning::Join(_) = meaning {
            mapper.enter_module(JOINING, JOINING);
        }
        let (_, value, _) = mapper.map_float(shown).consume();
        if let Meaning::Join(_) = meaning {
            mapper.exit_module(JOINING, JOINING);
        }
        match meaning {
            Meaning::Copy => self.with_value(value),
            Meaning::Share | Meaning::Train => {
                self.update(value.set_require_grad(false).without_autodiff());
                self
            }
            Meaning::Join(group) => Self { exchange: Some(group), ..self.with_value(value) },
            Meaning::Record => Self { recorded: Some(Tape::default()), ..self },
            Meaning::Replay => {
                Self { recorded: None, replayed: self.recorded.clone(), ..self.with_value(value) }
            }
        }
    }

    fn to_device(self, device: &Device) -> Self {
        let value = self.value().to_device(&device.clone().without_autodiff());
        self.with_value(value)
    }

    fn fork(self, device: &Device) -> Self {
        self.to_device(device)
    }

    fn collect_devices(&self, mut devices: Devices) -> Devices {
        let device = self.value.lock().device();
        if !devices.contains(&device) {
            devices.push(device);
        }
        devices
    }

    fn materialize(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        self.with_value(self.value())
    }

    fn train(self) -> Self {
        self.with_value(self.value())
    }
}

impl std::fmt::Display for RunningStatistic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RunningStatistic(id={})", self.id)
    }
}

impl ModuleDisplayDefault for RunningStatistic {
    fn content(&self, content: Content) -> Option<Content> {
        content.add_formatted(&"RunningStatistic".to_owned()).optional()
    }
}

impl ModuleDisplay for RunningStatistic {}
