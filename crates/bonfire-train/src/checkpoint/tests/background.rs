//! Checkpoints that are written while the training goes on.

use std::collections::BTreeMap;
use std::path::Path;

use bonfire_plan::{Placement, ShardGroup};
use bonfire_testkit::SmallDisk;
use std::num::NonZeroU32;

use super::*;
use crate::DdpConfig;

/// One step on a few samples.
fn step(ddp: &mut Ddp<Net>, optimizer: &mut ModuleOptimizer, number: u64) {
    let device = Device::flex().autodiff();
    let indices = [number as usize, 5, 7];
    let done = ddp.backward(|model| model.loss(&indices, &device)).unwrap();
    ddp.step(optimizer, 0.01, done.gradients).unwrap();
}

fn at(step: u64) -> Milestone {
    Milestone { step, metric: None }
}

/// All files of a checkpoint but its manifest, which has the time.
fn files(checkpoint: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(checkpoint).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, fs::read(path).unwrap())
    });
    entries.filter(|(name, _)| name != "manifest.json").collect()
}

#[test]
fn what_is_saved_is_the_step_in_which_it_was_asked_for() {
    let two = ShardGroup::Ranks(NonZeroU32::new(2).unwrap());
    let placements = [
        Placement::default(),
        Placement::zero1(),
        Placement::zero3(),
        Placement::zero1().of_whole_parameters(),
        Placement::zero3().among(two),
    ];
    for placement in placements {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        on_ranks(4, |world| {
            let open = |name| Checkpoints::open(&world, path(name), Keep::last(2)).unwrap();
            let (at_once, later) = (open("at-once"), open("later"));
            let config = DdpConfig::default().with_placement(placement);
            let model = Net::new(5000, &world.device());
            let mut ddp = Ddp::with_config(model, &world, config).unwrap();
            let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
            for number in 1..=6 {
                step(&mut ddp, &mut optimizer, number);
                if number % 3 == 0 {
                    at_once.save(at(number), &mut ddp, &optimizer, &number).unwrap();
                    later.save_in_background(at(number), &mut ddp, &optimizer, &number).unwrap();
                }
            }
            // The last one is being written.
            for number in 7..10 {
                step(&mut ddp, &mut optimizer, number);
            }
            later.wait().unwrap();
            later.wait().unwrap();
        });
        for step in ["step-000000003", "step-000000006"] {
            let expected = files(&path("at-once").join(step));
            assert_eq!(expected.len(), 3);
            assert!(files(&path("later").join(step)) == expected, "{placement}: {step}");
        }
    }
}

#[test]
fn dropping_the_checkpoints_waits_for_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    let resumed = on_ranks(2, |world| {
        let mut ddp = Ddp::new(Net::new(2000, &world.device()), &world).unwrap();
        let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
        step(&mut ddp, &mut optimizer, 1);
        let checkpoints = open(&world, &folder, Keep::default());
        checkpoints.save_in_background(at(1), &mut ddp, &optimizer, &8).unwrap();
        drop(checkpoints);
        let checkpoints = open(&world, &folder, Keep::default());
        let resumed = checkpoints.resume::<_, u64>(&mut ddp, &mut optimizer);
        resumed.unwrap().unwrap().state
    });
    assert_eq!(resumed, [8, 8]);
}

#[test]
fn a_full_disk_is_told_on_all_ranks_and_the_training_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(folder.path(), 64 << 10) else {
        println!("skipped: this user cannot mount a small file system");
        return;
    };
    let results = on_ranks(2, |world| {
        let checkpoints = open(&world, &folder, Keep::last(5));
        let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
        let mut ddp = Ddp::new(Net::new(500, &world.device()), &world).unwrap();
        let failed = (1..9).find_map(|number| {
            checkpoints.save_in_background(at(number), &mut ddp, &optimizer, &number).unwrap();
            step(&mut ddp, &mut optimizer, number);
            let error = checkpoints.wait().err()?;
            Some((number, error.to_string()))
        });
        step(&mut ddp, &mut optimizer, 9);
        let resumed = checkpoints.resume::<_, u64>(&mut ddp, &mut optimizer);
        (failed.unwrap(), resumed.unwrap().unwrap().state)
    });
    for ((step, error), resumed) in results {
        assert!(error.contains("No space left"), "{error}");
        assert_eq!(resumed, step - 1);
    }
}
