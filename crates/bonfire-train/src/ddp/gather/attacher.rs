//! Has the parameters of a model gathered.

use std::collections::HashSet;
use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param, Reparameterization, Reparameterizer};
use burn::tensor::Tensor;

use super::Gatherer;
use crate::loss::precision::Enclosing;

/// Finds parameters whose values stay as they are in mixed precision.
pub(super) struct Staying<'a> {
    gatherer: &'a Gatherer,
    place: Enclosing,
    pub(super) found: HashSet<usize>,
}

impl<'a> Staying<'a> {
    /// None found yet.
    pub(super) fn new(gatherer: &'a Gatherer) -> Self {
        Self {
            gatherer,
            place: Enclosing::default(),
            found: HashSet::new(),
        }
    }
}

impl ModuleVisitor for Staying<'_> {
    fn enter_module(&mut self, _name: &str, container: &str) {
        self.place.enter(container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.place.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.place.stays() {
            self.found.extend(self.gatherer.index_of(param.id));
        }
    }
}

/// Has the rest of parameters gathered.
pub(super) struct Attacher<'a>(pub(super) &'a Arc<Gatherer>);

/// The value of a parameter of which the tensor beneath has this rank's rows.
#[derive(Module, Debug)]
pub(super) struct Gathered {
    #[module(skip)]
    parameter: usize,
    #[module(skip)]
    gatherer: Arc<Gatherer>,
}

impl Reparameterization for Gathered {
    const NAME: &'static str = "gathered";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        self.gatherer.value(self.parameter, base)
    }
}

impl Reparameterizer for Attacher<'_> {
    type Reparam = Gathered;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Gathered>) {
        let gathered = self.0.index_of(param.id).map(|parameter| Gathered {
            parameter,
            gatherer: Arc::clone(self.0),
        });
        (param, gathered)
    }
}
