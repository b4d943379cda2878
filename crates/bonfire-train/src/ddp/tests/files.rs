//! Parameters in files: the bits of memory.

use std::fs;
use std::path::Path;

use bonfire_optim::{AdamWConfig, Offload};

use super::*;
use crate::{Checkpoints, Keep, Milestone, Placement};

/// One layer that is trained and one that is frozen, each with a weight of 256 KiB.
#[derive(Module, Debug)]
struct Halves {
    trained: Linear,
    frozen: Linear,
}

const WIDTH: usize = 256;

impl Halves {
    fn new(device: &Device) -> Self {
        let layer = || LinearConfig::new(WIDTH, WIDTH).init(device);
        let Self { trained, frozen } = seeded(Self { trained: layer(), frozen: layer() }, 1);
        Self { trained, frozen: frozen.no_grad() }
    }

    fn loss(&self, step: usize, device: &Device) -> Tensor<1> {
        let x = Tensor::<2>::ones([2, WIDTH], device).mul_scalar(0.1 * (step + 1) as f32);
        let x = activation::tanh(self.trained.forward(x));
        self.frozen.forward(x).powi_scalar(2).mean()
    }
}

/// The files of this folder that are in memory.
fn mapped(folder: &Path) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let folder = folder.to_str().unwrap();
    maps.lines().filter(|line| line.contains(folder)).count()
}

/// Some steps from a checkpoint, if there is one, to the next.
fn steps(world: &World, placement: Placement, offload: Option<&Offload>, saved: &Path) -> Bits {
    let device = world.device();
    let config = small_buckets().with_placement(placement);
    let model = Halves::new(&device);
    let mut ddp = Ddp::with_config(model, world, config.with_offload(offload.cloned())).unwrap();
    let adamw = AdamWConfig::new().build().with_offload(offload.cloned());
    let mut optimizer = ModuleOptimizer::from(adamw);
    let checkpoints = Checkpoints::open(world, saved, Keep::last(1)).unwrap();
    let resumed = checkpoints.resume::<_, ()>(&mut ddp, &mut optimizer);
    let first = resumed.unwrap().map_or(0, |resumed| resumed.milestone.step);
    for step in first..first + 3 {
        take_step(&mut ddp, &mut optimizer, 0.01, |model| model.loss(step as usize, &device));
    }
    let milestone = Milestone { step: first + 3, metric: None };
    checkpoints.save(milestone, &mut ddp, &optimizer, &()).unwrap();
    bits(&ddp.whole().unwrap())
}

#[test]
fn parameters_in_files_train_to_the_same_bits() {
    for ranks in [1, 2, 3] {
        for placement in [Placement::replicated(), Placement::zero3()] {
            let with = |offload: Option<&Offload>| {
                let saved = tempfile::tempdir().unwrap();
                [(); 2].map(|()| {
                    one_of(on_ranks(ranks, |world| steps(&world, placement, offload, saved.path())))
                })
            };
            let folder = tempfile::tempdir().unwrap();
            let files = Offload::to_files(folder.path()).unwrap().with_parameters();
            assert!(with(Some(&files)) == with(None), "{placement} on {ranks} ranks");
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn every_large_parameter_is_in_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let files = Offload::to_files(folder.path()).unwrap().with_parameters();
    for placement in [Placement::replicated(), Placement::zero3()] {
        on_ranks(2, |world| {
            let device = world.device();
            let config = small_buckets().with_placement(placement);
            let model = Halves::new(&device);
            let mut ddp =
                Ddp::with_config(model, &world, config.with_offload(files.clone())).unwrap();
            let adamw = AdamWConfig::new().build().with_offload(files.clone());
            let mut optimizer = ModuleOptimizer::from(adamw);
            let found = || {
                world.group().barrier().unwrap();
                let mapped = mapped(folder.path());
                world.group().barrier().unwrap();
                mapped
            };
            // Two weights on each of two ranks; then two moments of one of them, too.
            assert_eq!(found(), 4, "{placement}");
            for step in 0..3 {
                take_step(&mut ddp, &mut optimizer, 0.01, |model| model.loss(step, &device));
                assert_eq!(found(), 8, "{placement}");
            }
        });
        assert_eq!(mapped(folder.path()), 0);
    }
}

#[test]
fn placements_that_cut_only_state_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let files = Offload::to_files(folder.path()).unwrap().with_parameters();
    for placement in [Placement::zero1(), Placement::zero2()] {
        let errors = on_ranks(2, |world| {
            let config = small_buckets().with_placement(placement);
            let model = Halves::new(&world.device());
            let ddp = Ddp::with_config(model, &world, config.with_offload(files.clone()));
            ddp.unwrap_err()
        });
        let expected = format!("{placement} cannot be used: parameters in files are for");
        assert_each_says(errors, &[&expected]);
    }
}
