//! Brings a file's tensors to a model's layout and types.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor};
use burn_store::burn_pack::Tensor as StoredTensor;
use burn_store::{ModuleAdapter, ModuleContext, PyTorchToBurnAdapter, bridge};

/// How a file lays out its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// As Burn has saved them.
    Burn,
    /// As PyTorch has them.
    PyTorch,
}

/// The key under which a safetensors file says who laid out its tensors.
pub(crate) const PRODUCER: &str = "producer";

impl Layout {
    /// What a safetensors file says of itself.
    pub(crate) fn producer(self) -> &'static str {
        match self {
            Self::Burn => "burn",
            Self::PyTorch => "bonfire",
        }
    }

    /// That of a file which says this.
    pub(crate) fn said(producer: Option<&str>) -> Self {
        match producer == Some(Self::Burn.producer()) {
            true => Self::Burn,
            false => Self::PyTorch,
        }
    }
}

/// Converts the layout, then the type of each float tensor to that of its parameter.
#[derive(Clone)]
pub(crate) struct ToModel {
    layout: Layout,
    /// By path.
    types: Arc<HashMap<String, DType>>,
}

impl ToModel {
    pub(crate) fn of<M: Module>(model: &M, layout: Layout) -> Self {
        let mut lister = TypeLister::default();
        model.visit(&mut lister);
        Self {
            layout,
            types: Arc::new(lister.types),
        }
    }
}

impl ModuleAdapter for ToModel {
    fn adapt(&self, tensor: StoredTensor, context: ModuleContext<'_>) -> StoredTensor {
        let tensor = match self.layout {
            Layout::Burn => tensor,
            Layout::PyTorch => PyTorchToBurnAdapter.adapt(tensor, context),
        };
        match self.types.get(&tensor.name) {
            Some(&wanted) if tensor.dtype.is_float() && tensor.dtype != wanted => {
                let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
                bridge::map_data(tensor, name, wanted, shape, move |data| {
                    data.convert_dtype(wanted)
                })
            }
            _ => tensor,
        }
    }

    fn get_alternative_param_name(&self, parameter: &str, module: &str) -> Option<String> {
        match self.layout {
            Layout::Burn => None,
            Layout::PyTorch => PyTorchToBurnAdapter.get_alternative_param_name(parameter, module),
        }
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

/// Lists the types of float parameters by their paths, in which the variants of enums do not count,
/// because other programs do not know them.
#[derive(Default)]
struct TypeLister {
    path: Vec<String>,
    types: HashMap<String, DType>,
}

impl ModuleVisitor for TypeLister {
    fn enter_module(&mut self, name: &str, container: &str) {
        if !container.starts_with("Enum:") {
            self.path.push(name.to_owned());
        }
    }

    fn exit_module(&mut self, _name: &str, container: &str) {
        if !container.starts_with("Enum:") {
            self.path.pop();
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // What is not initialised yet stays so: the file's values take its place.
        let dtype = match param.is_initialized() {
            true => param.base().dtype(),
            false => param.lazy_device().settings().float_dtype.into(),
        };
        self.types.insert(self.path.join("."), dtype);
    }
}
