//! Trainings over the data axes of a mesh, whose other axes have other parts of a model.

use std::num::NonZeroU32;

use bonfire_collective::{Rank, ReduceOp};
use bonfire_plan::{Axis, Cut, MeshShape, ShardGroup};

use super::placement::Uneven;
use super::*;
use crate::{Checkpoints, Keep, Mesh, Milestone, Placement};

fn mesh(world: &World, shape: &str) -> Mesh {
    world.mesh(shape).unwrap()
}

/// The numbers, in the whole world, of the ranks of a part of it.
fn members(part: &World, own: u32) -> Vec<u32> {
    part.group().all_gather(&[own]).unwrap()
}

#[test]
fn each_axis_is_a_world_of_the_ranks_along_it() {
    on_ranks(12, |world| {
        let own = world.rank().get();
        let mesh = mesh(&world, "dp_replicate=2,dp=3,tp=-1");
        let numbers = |ranks: Vec<Rank>| ranks.into_iter().map(Rank::get).collect::<Vec<_>>();
        for axis in Axis::ALL.iter().copied() {
            let sub = mesh.sub(axis);
            assert_eq!(members(sub, own), numbers(mesh.grid().along(world.rank(), axis)));
            let place = mesh.coordinates()[axis.index()];
            assert_eq!(sub.rank().get(), place, "{axis}");
        }
        assert_eq!(members(mesh.data(), own), numbers(mesh.grid().data(world.rank())));
        assert_eq!(members(mesh.replicas(), own), members(mesh.data(), own));
        assert_eq!(mesh.placement(Placement::zero1()).to_string(), "zero1@3");
        if own == 3 {
            let text = "dp_replicate=2,dp_shard=3,tp=2, rank 3 at dp_replicate 0, dp_shard 1, tp 1";
            assert_eq!(mesh.to_string(), text);
        }
    });
}

/// Their gradients are averaged, and they see the same samples.
#[test]
fn ranks_along_cp_have_the_same_parameters_and_batches() {
    on_ranks(8, |world| {
        let own = world.rank().get();
        let mesh = mesh(&world, "dp_replicate=2,cp=2,tp=2");
        let tp = own % 2;
        let replicas = [0, 2, 4, 6].map(|rank| rank + tp);
        assert_eq!(members(mesh.replicas(), own), replicas);
        assert_eq!(members(mesh.data(), own), [own % 4, own % 4 + 4]);
        assert_eq!(mesh.placement(Placement::zero1()).to_string(), "zero1@2");
    });
    on_ranks(4, |world| {
        let own = world.rank().get();
        let mesh = mesh(&world, "cp=4");
        assert_eq!(members(mesh.replicas(), own), [0, 1, 2, 3]);
        assert_eq!(members(mesh.data(), own), [own]);
    });
}

#[test]
fn a_mesh_that_does_not_fit_is_an_error_on_all_ranks_and_ends_nothing() {
    on_ranks(4, |world| {
        let shape: MeshShape = "dp=3,tp=2".parse().unwrap();
        let error = world.mesh(shape).unwrap_err().to_string();
        assert!(error.contains("needs 6 ranks, and there are 4"), "{error}");
        world.group().barrier().unwrap();
    });
}

/// The part of a model at a place on the axis `tp`, trained over the data axes: its parameters before and after.
fn trained_part(world: &World, part: u64, placement: Placement) -> [Bits; 2] {
    let config = small_buckets().with_placement(placement);
    let model = seeded(Uneven::new(&world.device()), part);
    let mut ddp = Ddp::with_config(model, world, config).unwrap();
    assert_cut(&ddp);
    let start = bits(&ddp.whole().unwrap());
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    for step in 0..3 {
        let indices = share(world, step, 2);
        take_step(&mut ddp, &mut optimizer, 0.01, |model| model.loss(&indices));
    }
    [start, bits(&ddp.whole().unwrap())]
}

/// What the ranks of `tp` have keeps apart, and each part trains as it does in a world of the data axes alone.
#[test]
fn every_placement_works_over_the_data_axes_and_leaves_the_others_alone() {
    let placements =
        [Placement::replicated(), Placement::zero1(), Placement::zero2(), Placement::zero3()];
    for placement in placements {
        let alone =
            [1, 2].map(|part| one_of(on_ranks(2, |world| trained_part(&world, part, placement))));
        assert!(alone[0] != alone[1]);
        let found = on_ranks(4, |world| {
            let mesh = mesh(&world, "dp=2,tp=2");
            let part = mesh.sub(Axis::Tp).rank().get();
            let trained = trained_part(mesh.data(), u64::from(part) + 1, placement);
            (part as usize, trained)
        });
        for (part, found) in found {
            assert!(found == alone[part], "{placement}, part {part}");
        }
    }
}

/// Hybrid sharding is a mesh with both data axes.
#[test]
fn shards_are_dealt_on_one_data_axis_and_copied_on_the_other() {
    let train = |world: &World, placement| trained_part(world, 1, placement);
    let two = ShardGroup::Ranks(NonZeroU32::new(2).unwrap());
    let copied = on_ranks(4, |world| train(&world, Placement::zero3().among(two)));
    let hybrid = on_ranks(4, |world| {
        let mesh = mesh(&world, "dp_replicate=2,dp_shard=2");
        train(mesh.data(), mesh.placement(Placement::zero3()))
    });
    assert!(copied == hybrid);
}

#[test]
fn each_part_has_its_own_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(4, |world| {
        let mesh = mesh(&world, "dp=2,tp=2");
        let (data, part) = (mesh.data(), mesh.sub(Axis::Tp).rank());
        let device = world.device();
        let folder = folder.path().join(part.to_string());
        let checkpoints = Checkpoints::open(data, folder, Keep::last(1)).unwrap();
        let mut optimizer = sgd();
        let model = Mlp::new(u64::from(part.get()), &device);
        let mut ddp = Ddp::new(model, data).unwrap();
        let milestone = Milestone { step: 1, metric: None };
        checkpoints.save(milestone, &mut ddp, &optimizer, &()).unwrap();
        let saved = bits(ddp.module());
        let mut other = Ddp::new(Mlp::new(9, &device), data).unwrap();
        let resumed = checkpoints.resume::<_, ()>(&mut other, &mut optimizer);
        assert!(resumed.unwrap().is_some());
        assert!(bits(other.module()) == saved);
    });
}

/// A failure of a layer on one axis is the failure of every rank, and is what `backward` returns.
#[test]
fn a_failure_on_one_axis_ends_the_others() {
    let errors = on_ranks(4, |world| {
        let mesh = mesh(&world, "dp=2,tp=2");
        let failing = world.rank() == Rank::new(3);
        // A rank may still be here when the failing one is past it.
        let mut ddp = match Ddp::new(Mlp::new(1, &world.device()), mesh.data()) {
            Ok(ddp) => ddp,
            Err(error) => return (failing, error),
        };
        let tp = mesh.sub(Axis::Tp);
        let error = ddp.backward(|model| {
            let loss = model.loss(&[0, 1]);
            if failing {
                tp.fail(TrainError::NoSamples);
            }
            let mut sum = [1.0];
            if let Err(error) = tp.group().all_reduce(&mut sum, ReduceOp::Sum) {
                tp.fail(error);
            }
            loss
        });
        // Its own world has ended, too.
        assert!(world.group().barrier().is_err());
        (failing, error.unwrap_err())
    });
    for (failing, error) in errors {
        if failing {
            assert!(matches!(error, TrainError::NoSamples), "{error}")
        } else {
            let error = error.to_string();
            assert!(error.contains("rank 3") || error.contains("rank 1"), "{error}");
            assert!(error.contains("no rank had a sample"), "{error}");
        }
    }
}

/// Both ranks of `tp` have the same values, so the norm differs by the part that each has of the first weight.
#[test]
fn a_norm_counts_the_noted_parts_of_all_ranks_and_the_rest_once() {
    on_ranks(4, |world| {
        let mesh = mesh(&world, "dp=2,tp=2");
        let model = Mlp::new(1, &world.device());
        let (dim, sections) = (1, 1);
        mesh.sub(Axis::Tp).note_cut(model.first.weight.id, Cut { dim, sections });
        let norm = |ddp: &mut Ddp<Mlp>| {
            let indices = share(mesh.data(), 0, 2);
            let done = ddp.backward(|model| model.loss(&indices)).unwrap();
            let part = done.gradients.get(&ddp.module().first.weight).unwrap();
            let part: f64 = part.square().sum().into_scalar();
            let norm = done.gradients.norm().unwrap().unwrap();
            (norm.into_scalar::<f64>().powi(2), part)
        };
        let (found, part) = norm(&mut Ddp::new(model.clone(), mesh.replicas()).unwrap());
        // A world of the same ranks that belongs to no mesh.
        let color = mesh.sub(Axis::Tp).rank().get();
        let alone = world.split(Some(color), 0).unwrap().unwrap();
        let (once, _) = norm(&mut Ddp::new(model, &alone).unwrap());
        assert!(part > 0.0);
        assert!((found - once - part).abs() < 1e-5 * found, "{found} {once}");
    });
}
