//! The parameters of a model, in the order of its definition.

pub(crate) mod buffers;
pub(crate) mod fingerprint;
pub(crate) mod replicate;
pub(crate) mod shard_groups;
pub(crate) mod shards;

use std::collections::HashMap;
use std::fmt;

use bonfire_plan::buckets::Extent;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, DType as TensorDType, Device, Int, Tensor};

use crate::TrainError;
use crate::parameters::fingerprint::Entry;

/// Writes the methods of a visitor or mapper that keep a field of it the path of what it looks at.
macro_rules! follow_path {
    ($field:tt) => {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.$field.enter(name, container);
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.$field.exit();
        }
    };
}
pub(crate) use follow_path;

/// The position of a visitor or mapper: names, and the types of the modules as Burn names them, outermost first.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModulePath(pub(crate) Vec<(String, String)>);

impl ModulePath {
    pub(crate) fn enter(&mut self, name: &str, container: &str) {
        self.0.push((name.to_owned(), container.to_owned()));
    }

    pub(crate) fn exit(&mut self) {
        self.0.pop();
    }
}

impl fmt::Display for ModulePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_str()).collect();
        f.write_str(&names.join("."))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    /// The path, such as `blocks.0.attention.query.weight`.
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) extent: Extent,
    /// Burn's type: two types of Burn can be stored alike.
    pub(crate) tensor_dtype: TensorDType,
}

impl Parameter {
    pub(crate) fn compressible(&self) -> crate::compression::Parameter<'_> {
        crate::compression::Parameter {
            name: &self.name,
            dtype: self.extent.dtype,
            shape: &self.shape,
        }
    }
}

/// The trainable parameters of a model, and everything else that it holds.
#[derive(Clone, Debug)]
pub(crate) struct ParameterTable {
    trainable: Vec<Parameter>,
    index: HashMap<ParamId, usize>,
    /// All tensors of the model, the frozen ones too.
    entries: Vec<Entry>,
}

impl ParameterTable {
    /// Lists the parameters of a model in training mode, each of which it holds once. Parameters that are initialised
    /// on first use are initialised here.
    pub(crate) fn of<M: Module>(model: &M) -> Result<Self, TrainError> {
        let mut lister = Lister::default();
        model.visit(&mut lister);
        lister.table()
    }

    pub(crate) fn len(&self) -> usize {
        self.trainable.len()
    }

    pub(crate) fn get(&self, index: usize) -> &Parameter {
        &self.trainable[index]
    }

    pub(crate) fn index_of(&self, id: ParamId) -> Option<usize> {
        self.index.get(&id).copied()
    }

    pub(crate) fn ids(&self) -> Vec<ParamId> {
        let mut ids: Vec<_> = self.index.iter().collect();
        ids.sort_by_key(|(_, index)| **index);
        ids.into_iter().map(|(id, _)| *id).collect()
    }

    pub(crate) fn extents(&self) -> Vec<Extent> {
        self.trainable.iter().map(|parameter| parameter.extent).collect()
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.entries == other.entries && self.index == other.index
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

/// The part of a model on devices with autodiff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Autodiff {
    All,
    Parts,
    None,
}

pub(crate) fn autodiff_of<M: Module>(model: &M) -> Autodiff {
    #[derive(Default)]
    struct Finder {
        with: bool,
        without: bool,
    }
    impl ModuleVisitor for Finder {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.lazy_device().is_autodiff() {
                self.with = true;
            } else {
                // Running statistics are never with autodiff: what counts is what training would change.
                let is_trained = || param.clone().train().val().is_require_grad();
                self.without |= !param.is_initialized() || is_trained();
            }
        }
    }
    let mut found = Finder::default();
    model.visit(&mut found);
    match (found.with, found.without) {
        (true, false) => Autodiff::All,
        (true, true) => Autodiff::Parts,
        (false, _) => Autodiff::None,
    }
}

/// Puts a model in training mode: all of it, also where a part was made on a device without autodiff, such as a
/// backbone that was loaded. Frozen parameters stay frozen.
pub fn trainable<M: Module>(model: M) -> M {
    match autodiff_of(&model) {
        Autodiff::All => model,
        Autodiff::None => model.train(),
        Autodiff::Parts => model.valid().train(),
    }
}

/// Returns true if all of a model is in training mode.
pub fn is_autodiff<M: Module>(model: &M) -> bool {
    autodiff_of(model) == Autodiff::All
}

/// The device of all trainable parameters, without autodiff; `None` without any, or on several devices.
pub(crate) fn device_of<M: Module>(model: &M) -> Option<Device> {
    #[derive(Default)]
    struct Devices(Vec<Device>);
    impl ModuleVisitor for Devices {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let device = param.lazy_device().without_autodiff();
            if param.is_require_grad() && !self.0.contains(&device) {
                self.0.push(device);
            }
        }
    }
    let mut devices = Devices::default();
    model.visit(&mut devices);
    match devices.0.len() {
        1 => devices.0.pop(),
        _ => None,
    }
}

#[derive(Default)]
pub(crate) struct Lister {
    path: ModulePath,
    trainable: Vec<Parameter>,
    index: HashMap<ParamId, usize>,
    entries: Vec<Entry>,
    error: Option<TrainError>,
}

impl Lister {
    pub(crate) fn table(self) -> Result<ParameterTable, TrainError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(ParameterTable {
                trainable: self.trainable,
                index: self.index,
                entries: self.entries,
            }),
        }
    }

    fn list(&mut self, shape: &[usize], dtype: TensorDType, trainable: bool) {
        self.entries.push(Entry {
            name: self.path.to_string(),
            shape: shape.to_vec(),
            dtype: format!("{dtype:?}").to_lowercase(),
            trainable,
        });
    }
}

impl ModuleVisitor for Lister {
    crate::parameters::follow_path!(path);

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.float(param.id, &param.val());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let tensor = param.val();
        self.list(&tensor.dims(), tensor.dtype(), false);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let tensor = param.val();
        self.list(&tensor.dims(), tensor.dtype(), false);
    }
}

impl Lister {
    pub(crate) fn float<const D: usize>(&mut self, id: ParamId, tensor: &Tensor<D>) {
        let (shape, dtype) = (tensor.dims(), tensor.dtype());
        let trainable = tensor.is_require_grad();
        self.list(&shape, dtype, trainable);
        if !trainable {
            return;
        }
        let name = self.path.to_string();
        if let Some(&held) = self.index.get(&id) {
            let parameter = self.trainable[held].name.clone();
            self.error.get_or_insert(TrainError::TiedParameter { parameter, again: name });
            return;
        }
        let Some(element) = crate::values::reducible(dtype) else {
            self.error.get_or_insert(TrainError::UnsupportedDtype {
                parameter: name,
                dtype: format!("{dtype:?}"),
            });
            return;
        };
        self.index.insert(id, self.trainable.len());
        self.trainable.push(Parameter {
            name,
            shape: shape.to_vec(),
            extent: Extent { dtype: element, elems: shape.iter().product() },
            tensor_dtype: dtype,
        });
    }
}
