//! A training goes on from its checkpoint in another placement.

use std::ops::Range;
use std::path::Path;

use super::*;
use crate::{Checkpoints, Keep, Milestone};

/// Goes on from the checkpoint in a folder, if there is one, and saves at the end.
fn resumed(world: &World, placement: Placement, folder: &Path, fresh: &Fresh, steps: Range<usize>) {
    let checkpoints = Checkpoints::open(world, folder, Keep::last(1)).unwrap();
    let (model, mut optimizer) = fresh.clone();
    let mut ddp = Ddp::with_config(model, world, placed(placement)).unwrap();
    assert_cut(&ddp);
    let resumed = checkpoints.resume::<_, ()>(&mut ddp, &mut optimizer);
    assert_eq!(resumed.unwrap().is_some(), steps.start > 0);
    let milestone = Milestone { step: steps.end as u64, metric: None };
    for step in steps {
        let indices = share(world, step, 2);
        take_step(&mut ddp, &mut optimizer, 0.01, |model| model.loss(&indices));
    }
    checkpoints.save(milestone, &mut ddp, &optimizer, &()).unwrap();
}

/// A training that has not begun.
type Fresh = (Uneven, ModuleOptimizer);

/// The tensors in the files of a checkpoint, in the order of their names.
fn saved(folder: &Path, step: u64) -> Vec<(String, Vec<u8>)> {
    let folder = folder.join(format!("step-{step:09}"));
    let files = ["model.bpk", "optimizer.bpk"].map(|name| {
        let reader = burn_pack::Reader::from_file(folder.join(name)).unwrap();
        reader.into_tensors().unwrap()
    });
    let tensors = files.into_iter().flatten().map(|tensor| {
        let bytes = tensor.to_bytes().unwrap().to_vec();
        (format!("{} {:?}", tensor.name, tensor.shape), bytes)
    });
    let mut tensors: Vec<_> = tensors.collect();
    tensors.sort();
    tensors
}

#[test]
fn a_training_goes_on_in_any_placement_on_any_number_of_ranks() {
    let placements = [Placement::replicated(), Placement::zero1(), Placement::zero3()];
    goes_on_in_any_of(placements, &optimizer(), &[2, 1, 3, 4]);
    let [zero1, zero2] = WHOLE;
    let placements = [Placement::replicated(), zero1, zero2];
    goes_on_in_any_of(placements, &whole_optimizer(), &[2, 1, 3, 4]);
    let two = ShardGroup::Ranks(NonZeroU32::new(2).unwrap());
    let placements = [Placement::zero1(), Placement::zero3(), zero2];
    let placements = placements.map(|placement| placement.among(two));
    goes_on_in_any_of(placements, &optimizer(), &[4, 2]);
}

/// Compares trainings that are saved in one of these placements on so many ranks, and go on in another.
fn goes_on_in_any_of(placements: [Placement; 3], optimizer: &ModuleOptimizer, ranks: &[u32]) {
    let fresh = (Uneven::new(&Device::flex()), optimizer.clone());
    for first in bonfire_testkit::some(ranks, 2) {
        let checkpoints = placements.map(|placement| {
            let folder = tempfile::tempdir().unwrap();
            on_ranks(*first, |world| {
                resumed(&world, placement, folder.path(), &fresh, 0..3);
            });
            (placement, folder)
        });
        let [start, others @ ..] = &checkpoints;
        for (placement, folder) in others {
            let (end, start) = (saved(folder.path(), 3), saved(start.1.path(), 3));
            let what = format!("{placement} on {first} ranks");
            assert_eq!(different(&end, &start), [""; 0], "{what}");
        }
        for second in bonfire_testkit::some(ranks, 2) {
            let mut reference = None;
            for (from, folder) in &checkpoints {
                for to in placements {
                    let copy = tempfile::tempdir().unwrap();
                    copy_folder(folder.path(), copy.path());
                    on_ranks(*second, |world| {
                        resumed(&world, to, copy.path(), &fresh, 3..13);
                    });
                    let end = saved(copy.path(), 13);
                    let reference = reference.get_or_insert_with(|| end.clone());
                    let what = format!("{from} on {first} ranks, then {to} on {second}");
                    assert_eq!(different(&end, reference), [""; 0], "{what}");
                }
            }
        }
    }
}

/// Which tensors are not those that they should be.
fn different<'a>(tensors: &'a [(String, Vec<u8>)], expected: &[(String, Vec<u8>)]) -> Vec<&'a str> {
    let names = |tensors: &[(String, Vec<u8>)]| -> Vec<String> {
        tensors.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names(tensors), names(expected));
    let pairs = tensors.iter().zip(expected);
    let different = pairs.filter(|(tensor, expected)| tensor != expected);
    different.map(|((name, _), _)| name.as_str()).collect()
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
