//! The calls that stand in the book's tables, compiled and not run. `tests/tests/listings.rs` looks for each of them in
//! the sources of programs; what no other program has is here.

#![allow(
    dead_code,
    unused_variables,
    unused_must_use,
    reason = "the calls are compiled to see that they exist"
)]

use std::path::Path;
use std::sync::Arc;

use bonfire::checkpoint::TensorTable;
use bonfire::collective::Rank;
use bonfire::config::{Config, ConfigArgs};
use bonfire::data::split_pictures;
use bonfire::data::{
    Cifar10, CifarPart, DummyConfig, DummyPictures, ImageFolder, Pictures, Transform,
};
use bonfire::data::{DistributedSampler, LastBatch, Remainder};
use bonfire::ddp::{DataParallel, ShardGroup};
use bonfire::nn::{AttentionMask, convert_sync_batch_norm};
use bonfire::parallel::{ColumnParallelLinear, Pass};
use bonfire::prelude::*;
use bonfire::report::WeightedMean;
use bonfire::report::{JournalConfig, ModelFlops};
use bonfire::trainer::{self, Trainer};
use bonfire::trainer::{Data, Parts, Stages};
use bonfire::weights::device_map::{Budgets, DeviceMap, Inference, Strategy};
use bonfire::weights::{Dispatch, Export, WeightsFile, infer, load_weights, save_weights};
use bonfire::world::{Axis, Mesh};
use bonfire::{Error, Step};
use burn::module::Module;
use burn::nn::Linear;
use burn::nn::conv::Conv2d;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor};

type Any = Result<(), Box<dyn std::error::Error>>;

#[derive(Module, Debug)]
struct Net {
    layer: Linear,
}

impl Net {
    fn loss(&self, batch: Tensor<2>) -> Tensor<1> {
        self.layer.forward(batch).mean()
    }
}

struct Args {
    config: ConfigArgs,
}

fn main() {}

fn ranks(world: World, color: Option<u32>, key: i64, members: &[Rank], s: u64, step: u64) -> Any {
    let (group, ranks) = (world.group(), members);
    world.local_rank();
    world.split(color, key)?;
    group.subgroup(ranks)?;
    let device = world.device();
    device.seed(s);
    world.seed_step(s, step);
    world.mesh("pp=2,dp=2,tp=2")?;
    Ok(())
}

fn training(mut ddp: Ddp<Net>, world: World, mut optimizer: ModuleOptimizer, x: Tensor<2>) -> Any {
    let (rate, batch) = (0.1, x.clone());
    ddp.no_sync(|model| model.loss(batch))?;
    ddp.lowered()?;
    let step = ddp.backward(|model| model.loss(x))?;
    ddp.step(&mut optimizer, rate, step.gradients)?;
    Ok(())
}

fn cast(ddp: Ddp<Net>, x: Tensor<2>) {
    ddp.precision().cast(x);
}

fn gradients(ddp: Ddp<Net>, step: Step) -> Any {
    step.gradients.norm();
    step.gradients.check_finite()?;
    step.gradients.get(&ddp.module().layer.weight);
    step.loss.tensor();
    step.gradients.clip(Clip::Value(0.5))?;
    Ok(())
}

fn clipped(step: Step) -> Any {
    let gradients = step.gradients.clip(Clip::Norm(1.0))?;
    gradients.norm();
    Ok(())
}

fn models(model: Net, world: World, packed: Tensor<3>, x: Tensor<2>) -> Any {
    DdpConfig::default().with_placement(Placement::zero3());
    DdpConfig::default().with_placement(Placement::zero2());
    DdpConfig::default().with_placement(Placement::zero3().among(ShardGroup::Host));
    bonfire::nn::self_attention(packed, AttentionMask::Causal);
    bonfire::nn::gelu(x);
    convert_sync_batch_norm(model, &world)?;
    Ok(())
}

fn configured_model(model: Net, world: World, config: DdpConfig) -> Any {
    Ddp::with_config(model, &world, config)?;
    Ok(())
}

fn several_devices(model: Linear, devices: Vec<Device>, device: Device, input: Tensor<2>) -> Any {
    let dp = DataParallel::new(model, devices).with_output_device(device).with_dim(1);
    let output = dp.forward(&input, |model, x| model.forward(x))?;
    Ok(())
}

fn convolution(layer: Conv2d, x: Tensor<4>) {
    bonfire::nn::conv2d(&layer, x);
}

fn data(world: World, len: usize, seed: u64, mut mean: WeightedMean, value: f64, samples: usize) {
    DistributedSampler::new(&world, len).with_shuffle(seed);
    let loader = Loader::new(&world, len, 8).with_remainder(Remainder::Drop);
    loader.with_last_batch(LastBatch::Drop);
    mean.add(value, samples);
}

fn images(folder: &Path, archive: &Path, path: &Path, part: CifarPart, config: DummyConfig) -> Any {
    let (share, seed, size) = (0.1, 7, 224);
    let source: Arc<dyn Pictures> = Arc::new(ImageFolder::open(folder)?);
    split_pictures(&source, share, seed)?;
    ImageFolder::in_tar(archive, folder)?;
    Cifar10::open(path, part)?;
    DummyPictures::new(config);
    Transform::random_resized_crop(size);
    Ok(())
}

fn weights(model: Net, world: World, mut ddp: Ddp<Net>, file: &Path, path: &Path) -> Any {
    load_weights(model, file, &world)?;
    save_weights(&mut ddp, "model.safetensors")?;
    Export::new(path).with_file_bytes_max(5_000_000_000);
    Ok(())
}

fn places(model: Net, devices: Vec<Device>, file: WeightsFile) -> Any {
    let budgets = Budgets::new([("0", "10GiB"), ("cpu", "30GB")])?;
    Inference::new(budgets.clone())
        .with_strategy(Strategy::BalancedLow0)
        .with_fallback_allocation();
    infer(&model, &Inference::new(budgets))?;
    let map = DeviceMap::new([("embed", "0"), ("blocks", "cpu"), ("head", "disk")])?;
    println!("{map}");
    let dispatch = Dispatch::new(map.clone(), devices.clone())?;
    dispatch.device("blocks.3");
    let model = {
        let (map, devices) = (map.clone(), devices.clone());
        Dispatch::new(map, devices)?.apply(model)?
    };
    Dispatch::new(map, devices)?.load(model, &file)?;
    Ok(())
}

fn journal(config: JournalConfig) {
    let config = config.with_new_folder("runs", "gpt");
    let config = config.with_folder("out");
    config.with_flops(ModelFlops::per_sample(6e9));
    ModelFlops::per_sample(6e9).with_peak(989e12);
}

fn trainers(world: World, config: Config, model: Net, data: Data<Tensor<2>>) -> Any {
    prepare(&world, &config, (model, data))?;
    Ok(())
}

fn configured(world: World, args: Args, model: Net, data: Data<Tensor<2>>) -> Any {
    prepare(&world, &args.config.load()?, (model, data))?;
    Ok(())
}

fn parts(model: Net, data: Data<Tensor<2>>) {
    Parts::new(model, data).with_flops_per_sample(6e9);
}

fn on_a_mesh(world: World, config: Config, layer: Linear, data: Data<Tensor<2>>) -> Any {
    // ANCHOR: trainer
    let mesh = world.mesh(config.mesh)?;
    let whole = TensorTable::of(&layer);
    let part = ColumnParallelLinear::from_linear(layer, mesh.sub(Axis::Tp))?;
    let parts = Parts::new(part, data).with_mesh(&mesh, whole);
    let mut trainer = prepare(&world, &config, parts)?;
    // ANCHOR_END: trainer
    trainer.next_batch()?;
    Ok(())
}

fn on_a_pipeline(
    world: World,
    config: Config,
    layers: Vec<Linear>,
    data: Data<Tensor<2>>,
    forward: impl Fn(&Vec<Linear>, &mut Pass<'_, Tensor<2>>) -> Tensor<2>,
) -> Any {
    let forward = &forward;
    // ANCHOR: stages
    let mesh = world.mesh(config.mesh)?;
    let whole = TensorTable::of(&layers);
    let costs = vec![1.0; layers.len()];
    let stages = Stages::new(costs, move |range| Ok::<_, Error>(layers[range].to_vec()));
    let parts = Parts::new(stages, data).with_mesh(&mesh, whole);
    let mut trainer = prepare(&world, &config, parts)?;
    while let Some(micro_batches) = trainer.next_batch()? {
        trainer.step(micro_batches, forward)?;
    }
    // ANCHOR_END: stages
    Ok(())
}

fn checkpoints_of_a_mesh(world: World, mesh: Mesh, layer: Linear, folder: &Path) -> Any {
    // ANCHOR: checkpoints
    let whole = TensorTable::of(&layer); // before it is partitioned
    let part = ColumnParallelLinear::from_linear(layer, mesh.sub(Axis::Tp))?;
    let mut ddp = Ddp::new(part, mesh.replicas())?;
    let checkpoints =
        Checkpoints::open(&world, folder, Keep::default())?.with_parts(whole, &mesh)?;
    // ANCHOR_END: checkpoints
    ddp.digest()?;
    Ok(())
}

fn loop_of(mut trainer: Trainer<Net, Tensor<2>>, batch: Tensor<2>, data: Data<Tensor<2>>) -> Any {
    let (loss, accuracy) = (1.0, 0.5);
    trainer.evaluate(&data, |model, batch| [loss, accuracy])?;
    trainer.save(None)?;
    let loss = batch.clone().mean();
    trainer.step(batch, |model, batch| loss)?;
    trainer.scaler();
    Ok(())
}

fn block_of(config: Config, block: &Linear, x: Tensor<2>) {
    trainer::recompute(&config).run(block, x, |block, x| block.forward(x));
}
