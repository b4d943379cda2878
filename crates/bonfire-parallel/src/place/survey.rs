//! Lists a model's parameters without initialising them.

use bonfire_checkpoint::weights::ModelTensor;
use bonfire_plan::Bytes;
use bonfire_plan::device_map::{ModuleTree, Part, PartKind};
use burn::module::{Module, ModuleVisitor, Param, Parameter};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, DType, Int, Tensor};

#[derive(Clone, Debug, Default)]
pub(super) struct Position {
    names: Vec<String>,
    containers: Vec<String>,
}

impl Position {
    pub(super) fn enter(&mut self, name: &str, container: &str) {
        self.containers.push(container.to_owned());
        if !is_enum(container) {
            self.names.push(name.to_owned());
        }
    }

    pub(super) fn exit(&mut self) {
        if !self.containers.pop().is_some_and(|last| is_enum(&last)) {
            self.names.pop();
        }
    }

    /// Without variants of enums, which files do not have.
    pub(super) fn path(&self) -> String {
        self.names.join(".")
    }
}

fn is_enum(container: &str) -> bool {
    container.starts_with("Enum:")
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) tensor: ModelTensor,
    pub(super) is_float: bool,
    bytes: Bytes,
}

#[derive(Debug, Default)]
pub(super) struct Survey {
    position: Position,
    classes: Vec<Part>,
    pub(super) entries: Vec<Entry>,
}

impl Survey {
    pub(super) fn of<M: Module>(model: &M) -> Self {
        let mut survey = Self::default();
        model.visit(&mut survey);
        survey
    }

    pub(super) fn tree(&self) -> ModuleTree {
        let tensors = self.entries.iter().map(|entry| Part {
            path: entry.tensor.path.clone(),
            kind: if entry.is_float {
                PartKind::Parameter { bytes: entry.bytes, identity: entry.tensor.id.val() }
            } else {
                PartKind::Buffer { bytes: entry.bytes }
            },
        });
        ModuleTree::new(self.classes.iter().cloned().chain(tensors))
    }

    /// `unset` is the type of parameters that are not initialised yet.
    fn note<const D: usize, K: Basic>(
        &mut self,
        param: &Param<Tensor<D, K>>,
        unset: DType,
        is_float: bool,
    ) where
        Tensor<D, K>: Parameter,
    {
        let shape = param.lazy_shape();
        let dtype = if param.is_initialized() { param.dtype() } else { unset };
        let bytes = shape.num_elements() * dtype.size();
        self.entries.push(Entry {
            tensor: ModelTensor {
                path: self.position.path(),
                containers: self.position.containers.clone(),
                id: param.id,
                shape: shape.to_vec(),
            },
            is_float,
            bytes: Bytes::new(bytes as u64),
        });
    }
}

impl ModuleVisitor for Survey {
    fn enter_module(&mut self, name: &str, container: &str) {
        if !is_enum(container) {
            let class = container.strip_prefix("Struct:").unwrap_or(container);
            self.classes.push(Part {
                path: self.position.path(),
                kind: PartKind::Module { class: class.to_owned() },
            });
        }
        self.position.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.position.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let unset = param.lazy_device().settings().float_dtype;
        self.note(param, unset.into(), true);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let unset = param.lazy_device().settings().int_dtype;
        self.note(param, unset.into(), false);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let unset = param.lazy_device().settings().bool_dtype;
        self.note(param, unset.into(), false);
    }
}
