//! Trainings that end in the middle, compared with one that does not.

use std::fs;

use bonfire_checkpoint::Best;
use bonfire_collective::GroupOptions;
use bonfire_data::{Loader, SamplerState};
use bonfire_optim::ScalerConfig;
use bonfire_testkit::{SmallDisk, assert_each_says, local};
use burn::module::Param;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use serde::Deserialize;

use super::*;
use crate::world::tests::{on_ranks, world};
use crate::{Ddp, Loss, LossScaler};

mod background;

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    second: Linear,
}

impl Net {
    /// The same values every time.
    fn new(hidden: usize, device: &Device) -> Self {
        let layer = |inputs, outputs| {
            let mut layer: Linear = LinearConfig::new(inputs, outputs).init(device);
            let count = (inputs * outputs) as i64;
            let values = Tensor::<1, Int>::arange(0..count, device).float() / count as f32;
            layer.weight = Param::from_tensor(values.reshape([inputs, outputs]));
            layer.bias = Some(Param::from_tensor(Tensor::zeros([outputs], device)));
            layer
        };
        Self { first: layer(1, hidden), second: layer(hidden, 1) }
    }

    fn loss(&self, indices: &[usize], device: &Device) -> Loss {
        let points: Vec<f32> = indices.iter().map(|index| *index as f32 / 64.0).collect();
        let x = Tensor::<1>::from_floats(points.as_slice(), device).unsqueeze_dim::<2>(1);
        let hidden = self.first.forward(x.clone()).tanh();
        let error = self.second.forward(hidden) - x.sin();
        Loss::mean_over(error.powi_scalar(2).mean(), indices.len())
    }
}

/// What the program keeps for itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    sampler: Option<SamplerState>,
    scaler: LossScaler,
    /// Not to be had back from a short decimal number.
    odd: f64,
}

impl State {
    fn new() -> Self {
        let config = ScalerConfig::default().with_window(3);
        Self {
            sampler: None,
            scaler: LossScaler::new(config),
            odd: f64::from_bits(0x3fd5_5555_5555_5557),
        }
    }
}

/// Six batches of two in an epoch on two ranks.
const SAMPLES: usize = 21;

/// Trains up to `steps` steps from the last checkpoint on, saving each `every` steps. Gives all
/// parameters, the samples seen and the state.
fn train(
    world: &World,
    checkpoints: Option<&Checkpoints>,
    steps: u64,
    every: u64,
) -> (Vec<u8>, Vec<usize>, State) {
    let device = world.device().autodiff();
    let mut ddp = Ddp::new(Net::new(4, &device), world).unwrap();
    let mut optimizer = AdamWConfig::new().init();
    let resumed =
        checkpoints.and_then(|checkpoints| checkpoints.resume(&mut ddp, &mut optimizer).unwrap());
    let (first, mut state) = match resumed {
        Some(resumed) => (resumed.milestone.step, resumed.state),
        None => (0, State::new()),
    };
    let mut loader = Loader::new(world, SAMPLES, 2).with_shuffle(3);
    if let Some(position) = &state.sampler {
        loader = loader.resuming(position).unwrap();
    }
    let mut seen = Vec::new();
    let mut batches = loader.next_epoch();
    for step in first..steps {
        let indices = batches.next().unwrap_or_else(|| {
            batches = loader.next_epoch();
            batches.next().unwrap()
        });
        let loss = |model: &Net| state.scaler.scale(model.loss(&indices, &device));
        let gradients = ddp.backward(loss).unwrap().gradients;
        if let Some(gradients) = state.scaler.unscale(gradients).unwrap() {
            ddp.step(&mut optimizer, 0.01, gradients).unwrap();
        }
        seen.extend(indices);
        state.sampler = Some(batches.state());
        let milestone = Milestone { step: step + 1, metric: None };
        if let Some(checkpoints) = checkpoints.filter(|_| (step + 1) % every == 0) {
            checkpoints.save(milestone, &mut ddp, &optimizer, &state).unwrap();
        }
    }
    let mut bytes = values(ddp.module());
    bytes.extend(optimizer.to_record().len().to_le_bytes());
    (bytes, seen, state)
}

/// The bits of all parameters.
fn values(model: &Net) -> Vec<u8> {
    let tensors = [&model.first, &model.second].map(|layer| {
        let bias = layer.bias.as_ref().unwrap().val().into_data();
        [layer.weight.val().into_data(), bias]
    });
    let bytes = tensors.into_iter().flatten();
    bytes.flat_map(|data| data.as_bytes().to_vec()).collect()
}

fn open(world: &World, folder: &tempfile::TempDir, keep: Keep) -> Checkpoints {
    Checkpoints::open(world, folder.path().join("runs/a"), keep).unwrap()
}

fn names(folder: &tempfile::TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path().join("runs/a")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != ".lock").collect();
    names.sort();
    names
}

#[test]
fn a_run_that_ends_in_the_middle_of_an_epoch_goes_on_bit_for_bit() {
    let whole = on_ranks(2, |world| train(&world, None, 30, 1)).remove(0);
    for end in [1, 4, 5, 6, 7, 25] {
        let folder = tempfile::tempdir().unwrap();
        let run = |steps| {
            on_ranks(2, |world| {
                let checkpoints = open(&world, &folder, Keep::default());
                train(&world, Some(&checkpoints), steps, 1)
            })
            .remove(0)
        };
        let (_, mut seen, _) = run(end);
        let (parameters, later, state) = run(30);
        seen.extend(later);
        assert!(parameters == whole.0, "ended at {end}");
        assert_eq!((seen, state), (whole.1.clone(), whole.2.clone()));
    }
}

#[test]
fn four_ranks_go_on_as_two_and_one_as_three() {
    for (before, after) in [(4, 2), (1, 3)] {
        let folder = tempfile::tempdir().unwrap();
        let run = |ranks, steps| {
            on_ranks(ranks, |world| {
                let checkpoints = open(&world, &folder, Keep::default());
                train(&world, Some(&checkpoints), steps, 1)
            })
        };
        let first = run(before, 2);
        let seen_before: Vec<usize> = first.iter().flat_map(|run| run.1.clone()).collect();
        let left = SAMPLES - seen_before.len();
        let steps = left.div_ceil(2 * after as usize) as u64;
        let second = run(after, 2 + steps);
        assert!(second.iter().all(|run| run.0 == second[0].0), "replicas differ");
        let mut seen = seen_before;
        // Dealt in turn; what follows the last sample is padding.
        let later = (0..left).map(|position| {
            let (rank, index) = (position % after as usize, position / after as usize);
            second[rank].1[index]
        });
        seen.extend(later);
        seen.sort_unstable();
        assert_eq!(seen, (0..SAMPLES).collect::<Vec<_>>(), "{before} to {after}");
    }
}

#[test]
fn the_last_and_the_best_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, |world| {
        let keep = Keep::last(2).and_best(Best::Highest);
        let checkpoints = open(&world, &folder, keep);
        let mut ddp = Ddp::new(Net::new(2, &world.device()), &world).unwrap();
        let optimizer: ModuleOptimizer = AdamWConfig::new().init();
        let metrics = [0.1, 0.9, f64::NAN, 0.9, 0.5, 0.4];
        for (step, metric) in (1..).zip(metrics) {
            let milestone = Milestone { step, metric: Some(metric) };
            checkpoints.save(milestone, &mut ddp, &optimizer, &()).unwrap();
        }
    });
    let kept = ["step-000000002", "step-000000005", "step-000000006"];
    assert_eq!(names(&folder), kept);
}

#[test]
fn a_step_that_is_saved_again_replaces_the_older_one() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(1, |world| {
        let checkpoints = open(&world, &folder, Keep::default());
        let model = Net::new(2, &world.device());
        let mut ddp = Ddp::new(model, &world).unwrap();
        let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
        let milestone = Milestone { step: 5, metric: None };
        for state in [1, 2] {
            checkpoints.save(milestone, &mut ddp, &optimizer, &state).unwrap();
        }
        let resumed = checkpoints.resume(&mut ddp, &mut optimizer).unwrap();
        assert_eq!(resumed, Some(Resumed { milestone, state: 2 }));
    });
    assert_eq!(names(&folder), ["step-000000005.1"]);
}

/// What comes back for a model of this size and this optimizer.
fn resumed<S: serde::de::DeserializeOwned>(
    world: &World,
    checkpoints: &Checkpoints,
    hidden: usize,
    mut optimizer: ModuleOptimizer,
) -> Result<Option<Resumed<S>>, TrainError> {
    let mut ddp = Ddp::new(Net::new(hidden, &world.device()), world).unwrap();
    checkpoints.resume(&mut ddp, &mut optimizer)
}

/// Saves the steps 1 to 3 and changes the last.
fn damaged(damage: impl Fn(&std::path::Path) + Sync) -> Vec<Option<u64>> {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, |world| {
        let checkpoints = open(&world, &folder, Keep::default());
        train(&world, Some(&checkpoints), 3, 1);
    });
    damage(&folder.path().join("runs/a/step-000000003"));
    on_ranks(2, |world| {
        let checkpoints = open(&world, &folder, Keep::default());
        let resumed = resumed::<State>(&world, &checkpoints, 4, AdamWConfig::new().init());
        resumed.unwrap().map(|resumed| resumed.milestone.step)
    })
}

#[test]
fn a_damaged_checkpoint_gives_way_to_the_one_before() {
    let cut = |path: &std::path::Path| {
        let path = path.join(MODEL);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    };
    let flipped = |path: &std::path::Path| {
        let path = path.join(OPTIMIZER);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, &bytes).unwrap();
    };
    let gone = |path: &std::path::Path| fs::remove_file(path.join(STATE)).unwrap();
    let no_manifest = |path: &std::path::Path| fs::write(path.join("manifest.json"), "{").unwrap();
    assert_eq!(damaged(|_| ()), [Some(3); 2]);
    assert_eq!(damaged(cut), [Some(2); 2]);
    assert_eq!(damaged(flipped), [Some(2); 2]);
    assert_eq!(damaged(gone), [Some(2); 2]);
    assert_eq!(damaged(no_manifest), [Some(2); 2]);
}

#[test]
fn without_a_whole_checkpoint_all_ranks_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("runs/a/step-000000009");
    fs::create_dir_all(&broken).unwrap();
    let errors = on_ranks(2, |world| {
        let checkpoints = open(&world, &folder, Keep::default());
        let resumed = resumed::<()>(&world, &checkpoints, 4, AdamWConfig::new().init());
        resumed.unwrap_err()
    });
    assert_each_says(errors, &["none of the 1 checkpoints", "manifest.json"]);
    assert!(broken.exists(), "nothing is lost");
}

#[test]
fn what_was_half_done_is_removed_and_the_rest_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let half = folder.path().join("runs/a/.unfinished-step-000000004");
    let other = folder.path().join("runs/a/notes");
    fs::create_dir_all(&half).unwrap();
    fs::create_dir_all(&other).unwrap();
    on_ranks(1, |world| {
        let checkpoints = open(&world, &folder, Keep::default());
        train(&world, Some(&checkpoints), 1, 1);
    });
    assert_eq!(names(&folder), ["notes", "step-000000001"]);
}

#[test]
fn a_checkpoint_of_something_else_is_an_error_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let errors = on_ranks(2, |world| {
        let checkpoints = open(&world, &folder, Keep::default());
        train(&world, Some(&checkpoints), 1, 1);
        let adamw = || AdamWConfig::new().init();
        let sgd = burn::optim::SgdConfig::new().init();
        [
            resumed::<State>(&world, &checkpoints, 5, adamw()).unwrap_err(),
            resumed::<State>(&world, &checkpoints, 4, sgd).unwrap_err(),
            resumed::<String>(&world, &checkpoints, 4, adamw()).unwrap_err(),
        ]
        .map(|error| error.to_string())
    });
    for [model, optimizer, state] in errors {
        assert!(model.contains("of another model") && model.contains("first.weight"), "{model}");
        assert!(optimizer.contains("of another optimizer"), "{optimizer}");
        assert!(state.contains("of another program state"), "{state}");
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error_on_all_ranks() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let errors = on_ranks(2, |world| {
        let folder = file.path().join("runs");
        Checkpoints::open(&world, folder, Keep::default()).unwrap_err()
    });
    assert_each_says(errors, &["cannot write to", "rank 0"]);
}

/// What a slow disk is to those who do not write.
struct Slow;

impl Serialize for Slow {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        std::thread::sleep(std::time::Duration::from_secs(3));
        serializer.serialize_unit()
    }
}

#[test]
fn ranks_wait_for_a_slow_disk_longer_than_for_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let options = GroupOptions::default().with_timeout(std::time::Duration::from_secs(2));
    let saved = local(2, options, |group| {
        let world = world(group);
        let device = world.device().autodiff();
        let checkpoints = Checkpoints::open(&world, folder.path(), Keep::default()).unwrap();
        let milestone = Milestone { step: 1, metric: None };
        let optimizer = AdamWConfig::new().init();
        let mut ddp = Ddp::new(Net::new(4, &device), &world).unwrap();
        checkpoints.save(milestone, &mut ddp, &optimizer, &Slow)
    });
    assert!(saved.iter().all(Result::is_ok), "{saved:?}");
}

#[test]
fn a_rank_that_saves_alone_is_an_error_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let saved = |world: &World, checkpoints: &Checkpoints, ddp: &mut Ddp<Net>| {
        let milestone = Milestone { step: 1, metric: None };
        let optimizer = AdamWConfig::new().init();
        match world.rank().get() {
            0 => checkpoints.save(milestone, ddp, &optimizer, &()),
            _ => ddp.backward(|model| model.loss(&[1], &world.device().autodiff())).map(drop),
        }
    };
    let errors = on_ranks(2, |world| {
        let checkpoints = open(&world, &folder, Keep::default());
        let mut ddp = Ddp::new(Net::new(4, &world.device()), &world).unwrap();
        saved(&world, &checkpoints, &mut ddp).unwrap_err()
    });
    assert_each_says(errors, &["ranks disagree", "all_gather", "checkpoint/tests.rs"]);
}

#[test]
fn a_full_disk_is_an_error_on_all_ranks_and_the_last_checkpoint_stays() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(folder.path(), 64 << 10) else {
        println!("skipped: this user cannot mount a small file system");
        return;
    };
    let results = on_ranks(2, |world| {
        let checkpoints = open(&world, &folder, Keep::last(5));
        let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
        let mut ddp = Ddp::new(Net::new(500, &world.device()), &world).unwrap();
        let failed = (1..9).find_map(|step| {
            let milestone = Milestone { step, metric: None };
            let saved = checkpoints.save(milestone, &mut ddp, &optimizer, &step);
            saved.err().map(|error| (step, error.to_string()))
        });
        let resumed = checkpoints.resume::<_, u64>(&mut ddp, &mut optimizer);
        (failed.unwrap(), resumed.unwrap().unwrap().state)
    });
    for ((step, error), resumed) in results {
        assert!(error.contains("No space left"), "{error}");
        assert!(error.contains("room for one more than are kept"), "{error}");
        assert_eq!(resumed, step - 1);
        let whole: Vec<String> = (1..step).map(|step| format!("step-{step:09}")).collect();
        assert_eq!(names(&folder), whole, "what failed takes no room");
    }
}
