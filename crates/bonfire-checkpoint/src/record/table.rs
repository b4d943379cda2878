//! The tensors of a model, by which a checkpoint knows them.

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Int, Tensor};

/// The names and shapes of the tensors of an uncut model.
///
/// Stages and divided layers that are made of a model keep the identities of its parameters, so their tensors are
/// found in its table.
#[derive(Clone, Debug, Default)]
pub struct TensorTable {
    pub(super) rows: Vec<TensorRow>,
    by_id: HashMap<u64, usize>,
}

#[derive(Clone, Debug)]
pub(super) struct TensorRow {
    pub(super) id: ParamId,
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
}

impl TensorTable {
    /// Lists the tensors of an uncut model; parameters that Burn has not initialised yet stay as they are.
    pub fn of<M: Module>(model: &M) -> Self {
        let mut lister = Lister::default();
        model.visit(&mut lister);
        lister.table
    }

    /// Returns names and shapes, in the order of the model.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &[usize])> + Clone {
        let rows = self.rows.iter();
        rows.map(|row| (row.name.as_str(), row.shape.as_slice()))
    }

    /// Returns parameter identities, in the order of the model.
    pub fn ids(&self) -> impl Iterator<Item = ParamId> {
        self.rows.iter().map(|row| row.id)
    }

    pub(super) fn index_of(&self, id: ParamId) -> Option<usize> {
        self.by_id.get(&id.val()).copied()
    }
}

#[derive(Default)]
struct Lister {
    path: Vec<String>,
    table: TensorTable,
}

impl Lister {
    fn add(&mut self, id: ParamId, shape: &[usize]) {
        self.table.by_id.insert(id.val(), self.table.rows.len());
        self.table.rows.push(TensorRow { id, name: self.path.join("."), shape: shape.to_vec() });
    }
}

impl ModuleVisitor for Lister {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(param.id, &param.lazy_shape());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(param.id, &param.lazy_shape());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(param.id, &param.lazy_shape());
    }
}
