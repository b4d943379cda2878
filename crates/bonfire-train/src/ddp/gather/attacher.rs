//! Attaches gathers to the parameters of a model.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
    Param, ParamId, Reparameterization, Reparameterizer,
};
use burn::tensor::{Device, Tensor};

use super::Gatherer;
use crate::loss::precision::Enclosing;
use crate::reducer::hooks::GATHERED;
use crate::world::exchange::mapping::{Meaning, meaning};

pub(super) struct Finder<'a> {
    gatherer: &'a Gatherer,
    place: Enclosing,
    /// Those that keep their type in mixed precision.
    pub(super) staying: HashSet<usize>,
    /// A zero for each, on the computing device.
    pub(super) zeros: HashMap<usize, Tensor<1>>,
}

impl<'a> Finder<'a> {
    pub(super) fn new(gatherer: &'a Gatherer) -> Self {
        Self {
            gatherer,
            place: Enclosing::default(),
            staying: HashSet::new(),
            zeros: HashMap::new(),
        }
    }
}

impl ModuleVisitor for Finder<'_> {
    crate::parameters::follow_path!(place);

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(parameter) = self.gatherer.index_of(param.id) else {
            return;
        };
        let rows = param.base();
        let device = self.gatherer.shards.computing(rows.device());
        let zero = Tensor::zeros([1], (&device, rows.dtype()));
        self.zeros.insert(parameter, zero);
        if self.place.stays() {
            self.staying.insert(parameter);
        }
    }
}

/// The value of a parameter whose underlying tensor has this rank's rows.
#[derive(Clone, Debug)]
pub(super) struct Gathered {
    id: ParamId,
    parameter: usize,
    gatherer: Arc<Gatherer>,
    /// In a training pass, the leaf that gets the gradient of the complete parameter. The rows may be on another
    /// backend, and have another shape.
    stand_in: Option<Param<Tensor<1>>>,
}

impl Reparameterization for Gathered {
    const NAME: &'static str = GATHERED;

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let stand_in = self.stand_in.as_ref().map(Param::val);
        self.gatherer.value(self.parameter, base, stand_in)
    }
}

impl Module for Gathered {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        if let Some(stand_in) = &self.stand_in {
            Module::visit(stand_in, visitor);
        }
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let stand_in = match (self.stand_in, meaning()) {
            (None, Meaning::Train) => {
                let leaf = self.gatherer.stand_in(self.parameter);
                Some(Param::initialized(self.id, leaf))
            }
            (stand_in, _) => stand_in,
        };
        Self { stand_in: stand_in.map(|stand_in| Module::map(stand_in, mapper)), ..self }
    }

    fn to_device(self, _device: &Device) -> Self {
        self
    }

    fn fork(self, _device: &Device) -> Self {
        self
    }

    fn collect_devices(&self, devices: Devices) -> Devices {
        devices
    }

    fn materialize(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        Self { stand_in: None, ..self.clone() }
    }

    fn train(self) -> Self {
        self
    }
}

impl std::fmt::Display for Gathered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gathered")
    }
}

impl ModuleDisplayDefault for Gathered {
    fn content(&self, content: Content) -> Option<Content> {
        content.add_formatted(&self.to_string()).optional()
    }
}

impl ModuleDisplay for Gathered {}

pub(super) struct Attacher<'a>(pub(super) &'a Arc<Gatherer>);

impl Reparameterizer for Attacher<'_> {
    type Reparam = Gathered;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Gathered>) {
        let gathered = self.0.index_of(param.id).map(|parameter| Gathered {
            id: param.id,
            parameter,
            gatherer: Arc::clone(self.0),
            stand_in: None,
        });
        (param, gathered)
    }
}
