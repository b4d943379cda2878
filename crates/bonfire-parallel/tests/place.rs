//! Models in several places: the outputs and the training of a model in one, in less memory.

#![cfg(all(feature = "flex", feature = "weights"))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bonfire_checkpoint::weights::{Export, WeightsFile};
use bonfire_parallel::{Dispatch, PlaceError, device_of, infer};
use bonfire_plan::device_map::{Budgets, DeviceMap, Inference, Place};
use bonfire_testkit::{again, task};
use burn::module::{Lora, Module, ModuleVisitor, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Device, Int, Shape, Tensor, TensorData, activation};
use burn_store::bridge;
use burn_store::burn_pack::Tensor as StoredTensor;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LAYERS: usize = 4;
const WIDTH: usize = 6;

#[derive(Module, Debug)]
struct Net {
    input: Linear,
    layers: Vec<Linear>,
    scale: Param<Tensor<1>>,
}

impl Net {
    fn new(device: &Device) -> Self {
        let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        Self {
            input: layer(3, WIDTH),
            layers: (0..LAYERS).map(|_| layer(WIDTH, WIDTH)).collect(),
            scale: Param::from_tensor(Tensor::ones([WIDTH], device)),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = self.input.forward(x.to_device(&device_of(&self.input.weight)));
        let x = self.layers.iter().fold(x, |x, layer| {
            let x = x.to_device(&device_of(&layer.weight));
            activation::tanh(layer.forward(x))
        });
        x.to_device(&device_of(&self.scale)) * self.scale.val().unsqueeze()
    }
}

fn x(device: &Device) -> Tensor<2> {
    Tensor::<1, Int>::arange(0..12, device).float().reshape([4, 3]) * 0.1
}

fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u8> {
    tensor.into_data().as_bytes().to_vec()
}

/// All parameters of a model, by path, with the types of the modules around them.
#[derive(Default)]
struct Tensors {
    names: Vec<String>,
    containers: Vec<String>,
    all: Vec<(StoredTensor, Vec<String>)>,
}

impl ModuleVisitor for Tensors {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.names.push(name.to_owned());
        self.containers.push(container.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.names.pop();
        self.containers.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let stored = bridge::from_tensor(&param.val(), self.names.join("."), None);
        self.all.push((stored, self.containers.clone()));
    }
}

fn tensors<M: Module>(model: &M) -> Vec<(StoredTensor, Vec<String>)> {
    let mut tensors = Tensors::default();
    model.visit(&mut tensors);
    tensors.all
}

/// A model, and the file that has it.
fn saved(folder: &Path) -> (Net, WeightsFile) {
    let model = Net::new(&Device::flex());
    let path = folder.join("model.safetensors");
    Export::new(&path).write(tensors(&model)).unwrap();
    (model, WeightsFile::new(path))
}

fn dispatch<'a>(places: impl IntoIterator<Item = (&'a str, &'a str)>) -> Dispatch {
    Dispatch::new(DeviceMap::new(places).unwrap(), [Device::flex()]).unwrap()
}

#[test]
fn outputs_are_those_of_the_model_in_one_place() {
    let folder = tempfile::tempdir().unwrap();
    let (model, file) = saved(folder.path());
    let expected = bits(model.forward(x(&Device::flex())));
    // The same as PyTorch has it, in files of one tensor each.
    let path = folder.path().join("torch.safetensors");
    let export = Export::new(&path).for_pytorch().with_file_bytes_max(1);
    export.write(tensors(&model)).unwrap();
    let shards = WeightsFile::new(folder.path().join("torch.safetensors.index.json"));
    for places in [
        vec![("", "0")],
        vec![("", "cpu")],
        vec![("", "disk")],
        vec![
            ("input", "0"),
            ("layers.0", "0"),
            ("layers.1.weight", "cpu"),
            ("layers", "disk"),
            ("scale", "disk"),
        ],
    ] {
        for file in [&file, &shards] {
            let dispatch = dispatch(places.clone());
            let (model, report) = dispatch.load(Net::new(&Device::flex()), file).unwrap();
            assert_eq!(report.loaded.len(), 2 * LAYERS + 3);
            assert!(report.unexpected.is_empty(), "{report}");
            // What comes next is known from the second pass on, and in the third the order is another.
            for _ in 0..2 {
                assert!(bits(model.forward(x(&Device::flex()))) == expected, "{places:?}");
            }
            let backwards = model.layers.iter().rev();
            backwards.for_each(|layer| drop(layer.weight.val()));
            assert!(bits(model.forward(x(&Device::flex()))) == expected, "{places:?}");
            // Whoever writes the model gets its values.
            let whole = model.materialize();
            assert!(bits(whole.layers[3].weight.base()) == bits(whole.layers[3].weight.val()));
        }
    }
}

/// The bits of all parameters after some steps.
fn trained(model: Net, device: &Device) -> Vec<Vec<u8>> {
    let (mut model, device) = if device.is_autodiff() {
        (model, device.clone())
    } else {
        (model.train(), device.clone().autodiff())
    };
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    for _ in 0..3 {
        let loss = model.forward(x(&device)).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.1, model, gradients);
    }
    let all = tensors(&model.materialize()).into_iter();
    all.map(|(tensor, _)| tensor.to_bytes().unwrap().to_vec()).collect()
}

#[test]
fn training_has_the_bits_of_a_model_in_one_place() {
    let folder = tempfile::tempdir().unwrap();
    let (model, file) = saved(folder.path());
    for device in [
        Device::flex(),
        Device::flex().autodiff(),
        Device::flex().autodiff().gradient_checkpointing(),
    ] {
        let expected = trained(model.clone(), &Device::flex());
        for places in [vec![("", "cpu")], vec![("input", "0"), ("layers", "cpu"), ("scale", "cpu")]]
        {
            let (model, _) = dispatch(places).load(Net::new(&device), &file).unwrap();
            assert!(trained(model, &device) == expected);
        }
        // What stays in the file is frozen.
        let freeze = |mut model: Net| {
            model.layers = model.layers.into_iter().map(Module::freeze).collect();
            model
        };
        let expected = trained(freeze(model.clone()), &Device::flex());
        let places = [("input", "cpu"), ("layers", "disk"), ("scale", "0")];
        let (model, _) = dispatch(places).load(freeze(Net::new(&device)), &file).unwrap();
        assert!(trained(model, &device) == expected);
    }
}

#[test]
fn what_stays_in_a_file_is_not_trained() {
    let folder = tempfile::tempdir().unwrap();
    let (_, file) = saved(folder.path());
    let dispatch = dispatch([("", "0"), ("scale", "disk"), ("layers.2", "disk")]);
    let error = dispatch.load(Net::new(&Device::flex().autodiff()), &file).unwrap_err();
    let expected = ["layers.2.weight", "layers.2.bias", "scale"].map(str::to_owned);
    assert_eq!(error, PlaceError::Trained(expected.to_vec()));
    let (model, _) = dispatch.load(Net::new(&Device::flex()), &file).unwrap();
    let forward = || model.train().forward(x(&Device::flex().autodiff()));
    let panic = catch_unwind(AssertUnwindSafe(forward)).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("parameter layers.2.weight: it stays on disk"), "{text}");
}

#[test]
fn what_does_not_go_together_is_listed_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (_, file) = saved(folder.path());
    let device = Device::flex();
    let error =
        |dispatch: Dispatch| dispatch.load(Net::new(&device), &file).unwrap_err().to_string();
    assert_eq!(
        error(dispatch([("input", "0"), ("layers.0", "cpu"), ("layer.1", "disk")])),
        "the device map does not fit the model: there is no layer.1; no place for scale, layers.1.weight, \
         layers.1.bias, layers.2.weight, layers.2.bias, layers.3.weight, layers.3.bias"
    );
    let map = DeviceMap::new([("", "2")]).unwrap();
    let error = Dispatch::new(map, [device.clone()]).unwrap_err();
    assert_eq!(error, PlaceError::NoDevice { index: 2, count: 1 });
    let error = dispatch([("", "0"), ("scale", "disk")]).apply(Net::new(&device)).unwrap_err();
    assert_eq!(error, PlaceError::NoFile(vec!["scale".to_owned()]));
    let path = folder.path().join("other.safetensors");
    let mut other = Net::new(&device);
    other.layers.pop();
    other.input = LinearConfig::new(4, WIDTH).init(&device);
    Export::new(&path).write(tensors(&other)).unwrap();
    let error =
        dispatch([("", "disk")]).load(Net::new(&device), &WeightsFile::new(&path)).unwrap_err();
    let path = path.display();
    assert_eq!(
        error.to_string(),
        format!(
            "{path} does not have this model: missing: layers.3.weight, layers.3.bias; of another shape: \
                 input.weight (model [3, 6], file [4, 6])"
        )
    );
}

#[derive(Module, Debug)]
struct Special {
    norm: BatchNorm,
    one: Linear,
    same: Linear,
}

/// Its running statistics are no parameters that could be offloaded; two of its layers share their weight.
#[test]
fn buffers_stay_where_the_model_computes_and_shared_parameters_shared() {
    let device = Device::flex();
    let one: Linear = LinearConfig::new(3, 3).with_bias(false).init(&device);
    let model = Special { norm: BatchNormConfig::new(3).init(&device), same: one.clone(), one };
    let forward = |model: &Special| {
        let x = model.norm.forward(x(&Device::flex()));
        bits(model.same.forward(model.one.forward(x)))
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    // As transformers saves it: once.
    let once = tensors(&model).into_iter().filter(|(tensor, _)| !tensor.name.starts_with("same"));
    Export::new(&path).write(once.collect()).unwrap();
    let (loaded, _) =
        dispatch([("", "disk")]).load(model.clone(), &WeightsFile::new(&path)).unwrap();
    assert!(forward(&loaded) == forward(&model));
    assert_eq!(loaded.one.weight.id, loaded.same.weight.id);
    let apart = dispatch([("", "cpu"), ("same", "0")]).apply(model.clone()).unwrap_err();
    assert!(apart.to_string().contains("one.weight = same.weight"), "{apart}");
    let adapted = model.apply_lora(Lora::new(1, 1.0));
    let error = dispatch([("", "cpu")]).apply(adapted).unwrap_err();
    assert!(matches!(error, PlaceError::Reparameterized(_)), "{error}");
}

/// Layers of 1 MiB each, 96 MiB in all, and a quarter of that as memory.
const LARGE_LAYERS: usize = 96;
const LARGE_WIDTH: usize = 512;
const LEFT_BYTES: u64 = 24 << 20;

#[derive(Module, Debug)]
struct Large {
    input: Linear,
    layers: Vec<Linear>,
}

impl Large {
    /// Not initialised.
    fn new(device: &Device) -> Self {
        let layer = |width| {
            let config = LinearConfig::new(width, LARGE_WIDTH).with_bias(false);
            config.init(device)
        };
        Self { input: layer(8), layers: (0..LARGE_LAYERS).map(|_| layer(LARGE_WIDTH)).collect() }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = self.input.forward(x);
        self.layers.iter().fold(x, |x, layer| layer.forward(x))
    }
}

/// Values of a layer's weight: it moves each number to another place, and changes its sign in every second layer.
fn weight(layer: usize) -> Result<TensorData, burn_store::burn_pack::Error> {
    let mut values = vec![0.0_f32; LARGE_WIDTH * LARGE_WIDTH];
    let sign = if layer.is_multiple_of(2) { 1.0 } else { -1.0 };
    for input in 0..LARGE_WIDTH {
        values[input * LARGE_WIDTH + (input + layer + 1) % LARGE_WIDTH] = sign;
    }
    Ok(TensorData::new(values, [LARGE_WIDTH, LARGE_WIDTH]))
}

fn write_large(path: &Path) {
    let input: Vec<f32> = (0..8 * LARGE_WIDTH).map(|n| n as f32).collect();
    let input = TensorData::new(input, [8, LARGE_WIDTH]);
    let mut all = vec![(bridge::from_data(input, "input.weight".to_owned(), None), Vec::new())];
    for layer in 0..LARGE_LAYERS {
        let name = format!("layers.{layer}.weight");
        let shape = Shape::from([LARGE_WIDTH, LARGE_WIDTH]);
        let tensor = bridge::deferred(name, DType::F32, shape, None, move || weight(layer));
        all.push((tensor, Vec::new()));
    }
    Export::new(path).write(all).unwrap();
}

#[test]
fn a_model_of_four_times_the_memory_answers_from_disk() {
    if let Some(task) = task() {
        let (place, file) = task.split_once(' ').unwrap();
        return answer_in_little_memory(place, file);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.safetensors");
    write_large(&path);
    assert!(fs::metadata(&path).unwrap().len() > 4 * LEFT_BYTES);
    let child = |place: &str| {
        let task = format!("{place} {}", path.display());
        again("a_model_of_four_times_the_memory_answers_from_disk", &task).output().unwrap()
    };
    let plain = child("cpu");
    let said = String::from_utf8_lossy(&plain.stderr);
    assert!(!plain.status.success() && said.contains("memory allocation of"), "{said}");
    let filed = child("disk");
    let said = String::from_utf8_lossy(&filed.stderr);
    let printed = String::from_utf8_lossy(&filed.stdout);
    assert!(filed.status.success(), "{printed}{said}");
    assert!(printed.contains("answered and trained"), "{printed}");
}

/// Where the layers are to be, and the file of the model.
fn answer_in_little_memory(place: &str, file: &str) {
    let device = Device::flex();
    let layer: Linear = LinearConfig::new(LARGE_WIDTH, LARGE_WIDTH).init(&device);
    // The threads and what they take.
    layer.forward(Tensor::<2>::ones([2, LARGE_WIDTH], &device));
    drop(layer);
    let places = [("input", "0"), ("layers", place)];
    let large = Large::new(&device);
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let data = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let data = data.unwrap().trim().strip_suffix(" kB").unwrap();
    let limit = Rlimit {
        current: Some((data.parse::<u64>().unwrap() << 10) + LEFT_BYTES),
        maximum: getrlimit(Resource::Data).maximum,
    };
    setrlimit(Resource::Data, limit).unwrap();
    let (large, _) = dispatch(places).load(large, &WeightsFile::new(file)).unwrap();
    let turns = (1..=LARGE_LAYERS).sum::<usize>() % LARGE_WIDTH;
    for _ in 0..2 {
        let x = Tensor::<2>::eye(8, &device);
        let y = large.forward(x).into_data().try_to_vec::<f32>().unwrap();
        for (index, value) in y.iter().enumerate() {
            let (row, column) = (index / LARGE_WIDTH, index % LARGE_WIDTH);
            let source = (column + LARGE_WIDTH - turns) % LARGE_WIDTH;
            assert_eq!(*value, (row * LARGE_WIDTH + source) as f32);
        }
    }
    println!("answered");
    // What comes before layers in the file is trained through them, and nothing of them is kept.
    let Large { input, layers } = large;
    let layers: Vec<Linear> = layers.into_iter().map(Module::freeze).collect();
    let large = Large { input, layers }.train();
    let x = Tensor::<2>::eye(8, &device.clone().autodiff());
    let gradients = large.forward(x).sum().backward();
    let gradient = large.input.weight.grad(&gradients).unwrap();
    // Each number went to one place, and its sign changed in half of the layers.
    assert_eq!(gradient.sum().into_scalar::<f32>(), (8 * LARGE_WIDTH) as f32);
    println!("answered and trained");
}

#[test]
fn maps_are_inferred_without_initialising_a_model() {
    let large = Large::new(&Device::flex());
    let budgets = Budgets::new([("0", "8MiB"), ("cpu", "40MiB")]).unwrap();
    let inference = Inference::new(budgets).with_no_split(["Linear"]);
    let map = infer(&large, &inference).unwrap().map;
    assert_eq!(map.place("input"), Some(Place::Device(0)));
    assert_eq!(map.place("layers.10.weight"), Some(Place::Cpu));
    assert_eq!(map.place("layers.95"), Some(Place::Disk));
    assert!(!large.layers[0].weight.is_initialized());
}

/// A file that is cut off in between is an error when it is opened.
#[test]
fn a_file_that_is_cut_off_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (_, file) = saved(folder.path());
    let bytes = fs::read(file.path()).unwrap();
    fs::write(file.path(), &bytes[..bytes.len() - 10]).unwrap();
    let error = dispatch([("", "disk")]).load(Net::new(&Device::flex()), &file).unwrap_err();
    assert!(matches!(error, PlaceError::File(_)), "{error}");
}
