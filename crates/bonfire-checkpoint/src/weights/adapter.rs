//! Converts a file's tensors to a model's layout and types.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Element, Tensor, TensorData, bf16, f16};
use burn_store::burn_pack::Tensor as StoredTensor;
use burn_store::{ModuleAdapter, ModuleContext, PyTorchToBurnAdapter, bridge};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Burn,
    PyTorch,
}

/// The safetensors metadata key of the program that laid out the tensors.
pub(super) const PRODUCER: &str = "producer";
/// Its value for Burn's own layout; all others lay tensors out as PyTorch does.
pub(super) const BURN: &str = "burn";

impl Layout {
    pub(super) fn said(producer: Option<&str>) -> Self {
        if producer == Some(BURN) { Self::Burn } else { Self::PyTorch }
    }
}

/// Converts the layout, then the type of each float tensor to that of its parameter. Warns of values that are not
/// finite: a model that begins with them computes nothing else.
#[derive(Clone)]
pub(super) struct ToModel {
    layout: Layout,
    path: Arc<str>,
    types: Arc<HashMap<String, DType>>,
}

impl ToModel {
    pub(super) fn of<M: Module>(model: &M, layout: Layout, path: &Path) -> Self {
        let mut lister = TypeLister::default();
        model.visit(&mut lister);
        Self { layout, path: path.display().to_string().into(), types: Arc::new(lister.types) }
    }

    pub(super) fn names(&self) -> Vec<&str> {
        self.types.keys().map(String::as_str).collect()
    }
}

impl ModuleAdapter for ToModel {
    fn adapt(&self, tensor: StoredTensor, context: ModuleContext<'_>) -> StoredTensor {
        let tensor = match self.layout {
            Layout::Burn => tensor,
            Layout::PyTorch => PyTorchToBurnAdapter.adapt(tensor, context),
        };
        if !tensor.dtype.is_float() {
            return tensor;
        }
        let (name, shape, dtype) = (tensor.name.clone(), tensor.shape.clone(), tensor.dtype);
        let wanted = self.types.get(&name).copied().unwrap_or(dtype);
        // A tensor that stays in its file is read in every pass.
        let (is_checked, path, named) =
            (AtomicBool::new(false), Arc::clone(&self.path), name.clone());
        bridge::map_data(tensor, name, wanted, shape, move |data| {
            let data = data.convert_dtype(wanted);
            if !is_checked.swap(true, Ordering::Relaxed)
                && let count @ 1.. = non_finite(&data)
            {
                tracing::warn!(
                    "{named} in {path} has {count} values that are infinite or no numbers"
                );
            }
            data
        })
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

fn non_finite(data: &TensorData) -> usize {
    fn count<E: Element>(data: &TensorData, is_finite: impl Fn(&E) -> bool) -> usize {
        let values = data.as_slice::<E>().unwrap_or_default();
        values.iter().filter(|value| !is_finite(value)).count()
    }
    match data.dtype() {
        DType::F64 => count(data, |value: &f64| value.is_finite()),
        DType::F32 => count(data, |value: &f32| value.is_finite()),
        DType::F16 => count(data, |value: &f16| value.is_finite()),
        DType::BF16 => count(data, |value: &bf16| value.is_finite()),
        _ => 0,
    }
}

/// Lists the types of float parameters by their paths, without variants of enums, which other programs do not know.
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
        let dtype = if param.is_initialized() {
            param.base().dtype()
        } else {
            param.lazy_device().settings().float_dtype.into()
        };
        self.types.insert(self.path.join("."), dtype);
    }
}
