//! Places the parameters of a model by a device map.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use bonfire_checkpoint::weights::{FileError, LoadReport, Matched, WeightsFile};
use bonfire_plan::device_map::{DeviceMap, Place};
use burn::module::{
    Module, ModuleMapper, ModuleVisitor, Param, ParamId, Parameter, Reparameterization,
};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use burn_store::bridge;
use burn_store::burn_pack::Tensor as StoredTensor;

use super::PlaceError;
use super::ahead::ReadAhead;
use super::anchors::Anchors;
use super::offloaded::{Attacher, Offload, Offloaded, Store};
use super::survey::{Entry, Position, Survey};

/// Places a model's parameters by a device map.
///
/// Parameters in host memory (`cpu`) and in the file (`disk`) are brought to the first device of the map when they are
/// used, or to the CPU where the map has no device. Parameters on devices and in host memory can be trained; the
/// gradients, and so what an optimizer does, are where the parameters lie. What stays in the file cannot: it has to
/// be frozen. Running statistics, integers and booleans are not offloaded. A record of the model would have no values
/// of what stays in the file: [`Module::materialize`] reads them first.
///
/// A frozen parameter that is offloaded costs a backward pass the time of one that is trained.
#[derive(Clone, Debug)]
pub struct Dispatch {
    map: DeviceMap,
    devices: Vec<Device>,
}

impl Dispatch {
    /// Takes the map and its devices; device `0` of the map is the first of the list.
    ///
    /// # Errors
    /// [`PlaceError::NoDevice`].
    pub fn new(
        map: DeviceMap,
        devices: impl IntoIterator<Item = Device>,
    ) -> Result<Self, PlaceError> {
        let devices: Vec<Device> = devices.into_iter().collect();
        let count = devices.len();
        for (_, place) in map.iter() {
            if let Place::Device(index) = place
                && index >= count
            {
                return Err(PlaceError::NoDevice { index, count });
            }
        }
        Ok(Self { map, devices })
    }

    /// Returns the device that computes a part of the model, by its path; `None` if the map does not have it.
    pub fn device(&self, path: &str) -> Option<Device> {
        self.map.place(path).map(|place| match place {
            Place::Device(index) => self.devices[index].clone(),
            Place::Cpu | Place::Disk => self.execution(),
        })
    }

    /// Moves the parameters of a model, which may not be initialised yet. No parameter can stay in a file.
    ///
    /// # Errors
    /// [`PlaceError::Map`], [`PlaceError::NoFile`] or [`PlaceError::Reparameterized`].
    pub fn apply<M: Module>(&self, model: M) -> Result<M, PlaceError> {
        let survey = Survey::of(&model);
        let on_disk = |entry: &&Entry| self.map.place(&entry.tensor.path) == Some(Place::Disk);
        let on_disk = survey.entries.iter().filter(on_disk);
        let on_disk: Vec<String> = on_disk.map(|entry| entry.tensor.path.clone()).collect();
        if !on_disk.is_empty() {
            return Err(PlaceError::NoFile(on_disk));
        }
        self.placed(model, &survey, "", HashMap::new())
    }

    /// Reads a model from a file, or from several with their index, one tensor after the other, each to where it
    /// belongs. Parameters on disk are not read, and not copied: the file must not change. The model's present values
    /// do not matter.
    ///
    /// While the model computes, a thread reads the parameters that came next the last time. It keeps as many bytes as
    /// the largest parameter has at most, takes up to three times the bytes of one while it is read, and ends with the
    /// model.
    ///
    /// # Errors
    /// [`PlaceError`], with all faults at once.
    ///
    /// # Panics
    /// Later, when a parameter is used whose file cannot be read any more, or that stays on disk and is to be trained
    /// after all.
    pub fn load<M: Module>(
        &self,
        model: M,
        file: &WeightsFile,
    ) -> Result<(M, LoadReport), PlaceError> {
        let survey = Survey::of(&model);
        self.map.check(&survey.tree())?;
        let wanted: Vec<_> = survey.entries.iter().map(|entry| entry.tensor.clone()).collect();
        let Matched { tensors, report } = file.matched(&model, &wanted)?;
        if !report.missing.is_empty() || !report.skipped.is_empty() {
            return Err(PlaceError::Incomplete {
                path: report.path,
                missing: report.missing,
                different: report.skipped,
            });
        }
        let model = self.placed(model, &survey, &report.path, tensors)?;
        Ok((model, report))
    }

    /// The device to which offloaded parameters are brought.
    fn execution(&self) -> Device {
        let main = self.map.main_device();
        main.map_or_else(Device::flex, |index| self.devices[index].clone())
    }

    fn placed<M: Module>(
        &self,
        model: M,
        survey: &Survey,
        file: &str,
        mut stored: HashMap<String, StoredTensor>,
    ) -> Result<M, PlaceError> {
        self.map.check(&survey.tree())?;
        let (mut indices, mut files, mut parameters) = (HashMap::new(), HashMap::new(), Vec::new());
        for entry in &survey.entries {
            let place = self.map.place(&entry.tensor.path);
            let is_on_disk = match place {
                Some(Place::Disk) => true,
                Some(Place::Cpu) => false,
                _ => continue,
            };
            if !entry.is_float || indices.contains_key(&entry.tensor.id) {
                continue;
            }
            if is_on_disk && let Some(stored) = stored.get(&entry.tensor.path) {
                files.insert(parameters.len(), stored.clone());
            }
            indices.insert(entry.tensor.id, parameters.len());
            parameters.push(Offload {
                path: entry.tensor.path.clone(),
                is_on_disk,
                mapper: OnceLock::new(),
            });
        }
        let store = Arc::new(Store {
            execution: self.execution(),
            file: ReadAhead::new(files),
            parameters,
            anchors: Anchors::default(),
        });
        let attacher = Attacher { store: &store, indices: &indices };
        let model = model.apply_reparameterization(attacher);
        let mut attached = Attached::default();
        model.visit(&mut attached);
        let has_other = attached.others.iter().filter_map(|id| indices.get(id));
        let has_other: Vec<String> =
            has_other.map(|&index| store.parameters[index].path.clone()).collect();
        if !has_other.is_empty() {
            return Err(PlaceError::Reparameterized(has_other));
        }
        indices.retain(|id, _| attached.ours.contains(id));
        let mut placer = Placer {
            dispatch: self,
            store: &store,
            indices: &indices,
            file,
            stored: &mut stored,
            position: Position::default(),
            shared: HashMap::new(),
            trained: Vec::new(),
            broken: None,
        };
        let model = model.map(&mut placer);
        match (placer.broken, placer.trained) {
            (Some(error), _) => Err(error.into()),
            (None, trained) if !trained.is_empty() => Err(PlaceError::Trained(trained)),
            _ => Ok(model),
        }
    }
}

#[derive(Default)]
struct Attached {
    last: Option<ParamId>,
    ours: HashSet<ParamId>,
    others: HashSet<ParamId>,
}

impl ModuleVisitor for Attached {
    fn enter_module(&mut self, name: &str, container: &str) {
        if container == "Reparameterization" {
            let ids = if name == Offloaded::NAME { &mut self.ours } else { &mut self.others };
            ids.extend(self.last);
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.last = Some(param.id);
    }
}

struct Placer<'a> {
    dispatch: &'a Dispatch,
    store: &'a Arc<Store>,
    indices: &'a HashMap<ParamId, usize>,
    file: &'a str,
    stored: &'a mut HashMap<String, StoredTensor>,
    position: Position,
    /// Parameters that others share, which are in place.
    shared: HashMap<ParamId, Box<dyn Any>>,
    trained: Vec<String>,
    broken: Option<FileError>,
}

impl Placer<'_> {
    fn values(&mut self, path: &str) -> Option<TensorData> {
        let stored = self.stored.remove(path)?;
        let values = bridge::into_data(stored).map_err(|error| FileError::BrokenTensor {
            path: self.file.to_owned(),
            parameter: path.to_owned(),
            cause: error.to_string(),
        });
        let values = values.map_err(|error| self.broken.get_or_insert(error));
        values.ok()
    }

    fn device(&self, path: &str) -> Device {
        let device = self.dispatch.device(path);
        device.expect("the map was compared with the model")
    }

    fn placed<const D: usize>(&mut self, param: Param<Tensor<D>>, path: &str) -> Param<Tensor<D>> {
        let (id, device) = (param.id, self.device(path));
        let Some(&index) = self.indices.get(&id) else {
            return self.loaded(param, &device, path);
        };
        let offload = &self.store.parameters[index];
        if !offload.is_on_disk {
            return self.loaded(param, &Device::flex(), path);
        }
        let param = param.fork(&device);
        let Some(stored) = self.stored.get(path) else {
            return param;
        };
        let (shape, dtype) = (stored.shape.clone(), stored.dtype);
        // The shape without the memory, and no values that could be taken for some.
        let nothing = Tensor::<D>::full([1; D], f32::NAN, (&param.lazy_device(), dtype));
        let param = param.transform_for_load(nothing.expand(shape), id);
        if param.base().is_require_grad() {
            self.trained.push(path.to_owned());
        }
        let (_, _, mapper) = param.clone().consume();
        // Set once: parameters that are shared are placed once.
        let _ = offload.mapper.set(Box::new(mapper));
        param
    }

    fn loaded<const D: usize, K: Basic>(
        &mut self,
        param: Param<Tensor<D, K>>,
        device: &Device,
        path: &str,
    ) -> Param<Tensor<D, K>>
    where
        Tensor<D, K>: Parameter,
        Param<Tensor<D, K>>: Module,
    {
        let param = param.fork(device);
        let Some(values) = self.values(path) else {
            return param;
        };
        let (id, dtype) = (param.id, values.dtype());
        let tensor = Tensor::from_data(values, (&param.lazy_device(), dtype));
        param.transform_for_load(tensor, id)
    }
}

impl ModuleMapper for Placer<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.position.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.position.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        let shared = self.shared.get(&id).and_then(|shared| shared.downcast_ref());
        if let Some(shared) = shared {
            return Param::clone(shared);
        }
        let path = self.position.path();
        let param = self.placed(param, &path);
        self.shared.insert(id, Box::new(param.clone()));
        param
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let path = self.position.path();
        self.loaded(param, &self.device(&path), &path)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let path = self.position.path();
        self.loaded(param, &self.device(&path), &path)
    }
}
