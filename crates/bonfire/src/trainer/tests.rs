use bonfire_config::OptimizerKind;
use bonfire_data::Loader;
use bonfire_plan::{Bytes, WorldSize};
use bonfire_train::{DdpConfig, DeviceKind, Placement};
use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{DType, Device, Tensor};

use super::*;
use crate::{Error, SpawnOptions, spawn, spawn_with};

mod deepspeed;
mod diloco;
mod endings;
mod evaluation;
mod keys;
mod meshes;
mod offload;
mod pipelines;

type Batch = (Tensor<2>, Tensor<2>);

/// Points on a line in three dimensions.
fn batch(indices: &[usize], device: &Device) -> Batch {
    let point = |&index: &usize| [index as f32 / 16.0, (index % 5) as f32, 1.0];
    let x: Vec<f32> = indices.iter().flat_map(point).collect();
    let x = Tensor::<1>::from_floats(x.as_slice(), device).reshape([indices.len(), 3]);
    let y = x.clone().sum_dim(1) * 0.5;
    (x, y)
}

fn loss(model: &Linear, (x, y): Batch) -> Loss {
    let samples = x.dims()[0];
    let said = model.forward(x.cast(model.weight.dtype()));
    Loss::mean_over((said.cast(y.dtype()) - y).powi_scalar(2).mean(), samples)
}

/// The same in every run, and large enough to be cut into rows.
fn model(device: &Device) -> Linear {
    model_of(700, device)
}

fn model_of(columns: usize, device: &Device) -> Linear {
    let values: Vec<f32> = (0..3 * columns).map(|place| (place as f32).sin()).collect();
    let weight = Tensor::<1>::from_floats(values.as_slice(), device).reshape([3, columns]);
    Linear { weight: Param::from_tensor(weight), bias: None }
}

fn data(world: &World, len: usize) -> Data<Batch> {
    let device = world.device().autodiff();
    Data::new(len, move |indices| batch(indices, &device))
}

fn config(words: &[&str]) -> Config {
    let base = [
        "seed=3",
        "batch.micro=4",
        "batch.accumulation=2",
        "optimizer.lr=0.01",
        "clip.norm=1.0",
        "schedule.decay=cosine",
        "schedule.warmup_steps=2",
    ];
    let config = Config::default().with_words(base).unwrap();
    config.with_words(words).unwrap()
}

/// Trains to the end, and says what came of it: the parameters, the steps of this run, and the last loss.
fn trained(ranks: u32, words: &[&str]) -> Result<Vec<(String, u64, f64)>> {
    trained_on(DeviceKind::Auto, ranks, words)
}

fn trained_on(device: DeviceKind, ranks: u32, words: &[&str]) -> Result<Vec<(String, u64, f64)>> {
    let options = SpawnOptions::new(WorldSize::new(ranks)?).with_device(device);
    spawn_with(&options, |world| to_the_end(&world, words, model(&world.device()), || ()))
}

/// Looks at every step with `look`.
fn to_the_end(
    world: &World,
    words: &[&str],
    model: Linear,
    look: impl Fn(),
) -> Result<(String, u64, f64)> {
    let mut trainer = prepare(world, &config(words), (model, data(world, 43)))?;
    let (mut steps, mut last) = (0, f64::NAN);
    while let Some(batch) = trainer.next_batch()? {
        let done = trainer.step(batch, loss)?;
        steps += u64::from(done.step.is_some());
        last = done.loss.value()?;
        look();
    }
    let digest = trainer.ddp().digest()?.to_string();
    trainer.finish()?;
    Ok((digest, steps, last))
}

/// The same training as a loop of its own.
fn own_loop(ranks: u32, placement: Placement) -> Result<Vec<String>> {
    spawn(ranks, |world| {
        let device = world.device().autodiff();
        let config = DdpConfig::default().with_placement(placement);
        let mut ddp = Ddp::with_config(model(&world.device()), &world, config)?;
        let mut optimizer =
            bonfire_optim::AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.0).init();
        let mut loader = Loader::new(&world, 43, 4).with_shuffle(3);
        let per_epoch = loader.batches_per_epoch().div_ceil(2);
        let schedule = bonfire_optim::Schedule::constant(0.01).with_warmup(2);
        let schedule = schedule.with_decay(bonfire_optim::Decay::Cosine {
            steps: 2 * per_epoch as u64 - 2,
            final_factor: 0.0,
        });
        let mut step = 0;
        for _ in 0..2 {
            let batches: Vec<_> = loader.next_epoch().collect();
            for group in batches.chunks(2) {
                let (last, before) = group.split_last().unwrap();
                for indices in before {
                    ddp.no_sync(|model| loss(model, batch(indices, &device)))?;
                }
                let done = ddp.backward(|model| loss(model, batch(last, &device)))?;
                let gradients = done.gradients.clip(Clip::Norm(1.0))?;
                ddp.step(&mut optimizer, schedule.rate(step), gradients)?;
                step += 1;
            }
        }
        Ok::<_, Error>(ddp.digest()?.to_string())
    })
}

#[test]
fn a_trainer_is_the_loop_that_one_would_write() {
    for ranks in 1..=3 {
        for placement in [Placement::replicated(), Placement::zero2()] {
            let placed = format!("placement={placement}");
            let trained = trained(ranks, &["epochs=2", &placed]).unwrap();
            let own = own_loop(ranks, placement).unwrap();
            for (trained, own) in trained.into_iter().zip(own) {
                assert_eq!(trained.0, own, "{ranks} ranks, {placement}");
            }
        }
    }
}

#[test]
fn a_mesh_says_among_whom_shards_are_divided() {
    let placed = |mesh: &str| {
        let placements = spawn(4, |world| {
            let words = ["placement=zero2", &format!("mesh={mesh}")];
            let model = model(&world.device());
            let trainer = prepare(&world, &config(&words), (model, data(&world, 43)))?;
            let report = trainer.finish()?;
            let placement = report.facts.iter().find(|(name, _)| name == "placement");
            Ok::<_, Error>(placement.map(|(_, placement)| placement.clone()))
        });
        placements.unwrap().remove(0).unwrap()
    };
    assert_eq!(placed("dp_replicate=2,dp_shard=-1"), "zero2@2");
    assert_eq!(placed("dp=4"), "zero2");
}

#[test]
fn a_mesh_of_other_ranks_is_refused() {
    let error = trained(2, &["epochs=1", "mesh=dp=3"]);
    // With what the rank that failed says.
    let error = format!("{:?}", error.unwrap_err());
    let says = "the mesh dp_shard=3 needs 3 ranks, and there are 2";
    assert!(error.contains(says), "{error}");
}

#[test]
fn it_learns_with_every_optimizer() {
    for optimizer in OptimizerKind::ALL {
        let rates = match optimizer.name() {
            "sgd" => &[20.0][..],
            "muon" => &[0.2],
            "adamw" | "adam" | "lion" | "lamb" => &[0.02],
            // One of these suits rules of every scale.
            _ => &[0.02, 0.2, 20.0],
        };
        let kind = format!("optimizer.kind={optimizer}");
        let first = trained(2, &[&kind, "steps=1"]).unwrap()[0].2;
        let learns = |rate: &f64| {
            let rate = format!("optimizer.lr={rate}");
            trained(2, &[&kind, "steps=60", &rate]).unwrap()[0].2 < 0.7 * first
        };
        assert!(rates.iter().any(learns), "{optimizer} from {first}");
    }
}

#[test]
fn it_goes_on_where_it_was() {
    let whole = trained(2, &["steps=9"]).unwrap();
    for background in ["false", "true"] {
        let folder = tempfile::tempdir().unwrap();
        let folder = format!("checkpoints.folder={}", folder.path().display());
        let background = format!("checkpoints.background={background}");
        let words = [folder.as_str(), &background, "schedule.decay=constant"];
        let straight = trained(2, &["steps=9", "schedule.decay=constant"]).unwrap();
        // In the middle of an epoch of 6 batches, which is 3 steps.
        let run = |steps| trained(2, &[&words[..], &[steps]].concat()).unwrap();
        assert_eq!(run("steps=4")[0].1, 4);
        let resumed = run("steps=9");
        assert_eq!(resumed[0].1, 5, "steps that were done are not done again");
        assert_eq!(resumed[0].0, straight[0].0);
        assert_ne!(resumed[0].0, whole[0].0);
    }
}

#[test]
fn an_evaluation_counts_each_sample_once() {
    for ranks in 1..=4 {
        let means = spawn(ranks, |world| {
            let model = model(&world.device());
            let mut trainer = prepare(&world, &config(&[]), (model, data(&world, 16)))?;
            let indices = Data::new(11, |indices| indices.to_vec());
            trainer.evaluate(&indices, |_, indices| {
                let sum: usize = indices.iter().sum();
                [sum as f64 / indices.len() as f64, 1.0]
            })
        });
        assert_eq!(means.unwrap(), vec![[5.0, 1.0]; ranks as usize]);
    }
}

#[test]
fn an_evaluation_computes_in_the_type_of_passes_in_every_placement() {
    for placement in ["replicated", "zero1", "zero2", "zero3"] {
        let types = spawn(2, |world| {
            let words = ["precision.compute=bf16", &format!("placement={placement}")];
            let parts = (model(&world.device()), data(&world, 16));
            let mut trainer = prepare(&world, &config(&words), parts)?;
            let others = Data::new(4, |indices| indices.to_vec());
            trainer.evaluate(&others, |model, _| {
                let is_lowered = model.weight.val().dtype() == DType::BF16;
                [f64::from(u8::from(is_lowered))]
            })
        });
        assert_eq!(types.unwrap(), [[1.0]; 2], "{placement}");
    }
}

#[test]
fn a_step_whose_gradients_overflow_is_skipped() {
    let words = ["precision.compute=f16", "precision.initial_scale=1e12", "precision.hysteresis=1"];
    let done = trained(2, &[&words[..], &["steps=3", "report.every=1"]].concat()).unwrap();
    assert_eq!(done[0].1, 3);
    assert!(done[0].2.is_finite());
}

/// Trains with samples whose loss has no finite gradient in one batch; says how many steps were skipped, and whether the
/// parameters are numbers.
fn with_one_bad_batch(words: &[&str]) -> (usize, bool) {
    let all = spawn(2, |world| {
        let device = world.device().autodiff();
        let data = Data::stream(move |pass| {
            let (x, y) = batch(&[1, 2], &device);
            (x.mul_scalar(if pass == 2 { f32::INFINITY } else { 1.0 }), y)
        });
        let base = ["steps=5", "batch.accumulation=1", "report.every=100"];
        let words = [&base[..], words].concat();
        let mut trainer = prepare(&world, &config(&words), (model(&world.device()), data))?;
        let mut skipped = 0;
        while let Some(batch) = trainer.next_batch()? {
            skipped += usize::from(trainer.step(batch, loss)?.step.is_none());
        }
        let sum: f32 = trainer.ddp().whole()?.weight.val().sum().into_scalar();
        Ok::<_, Error>((skipped, sum.is_finite()))
    });
    all.unwrap().remove(0)
}

#[test]
fn a_step_in_bf16_with_nan_gradients_is_skipped_where_it_is_asked_for() {
    for precision in ["precision.compute=bf16", "precision.compute=f32"] {
        let words = [precision, "precision.skip_overflow=true"];
        assert_eq!(with_one_bad_batch(&words), (1, true), "{precision}");
    }
}

#[test]
fn a_training_whose_gradients_always_overflow_ends() {
    let words = ["precision.compute=f16", "precision.loss_scale=1e30", "epochs=1000"];
    let error = format!("{:?}", trained(2, &words).unwrap_err());
    assert!(error.contains("100 steps in a row"), "{error}");
}

#[test]
fn a_small_last_batch_of_a_step_counts_by_its_samples() {
    let digest = |forward: fn(&Linear, Batch) -> Loss| {
        let digests = spawn(1, |world| {
            let config = config(&["epochs=2"]);
            // Batches of 4 and of 1.
            let parts = (model(&world.device()), data(&world, 5));
            let mut trainer = prepare(&world, &config, parts)?;
            while let Some(batch) = trainer.next_batch()? {
                trainer.step(batch, forward)?;
            }
            Ok::<_, Error>(trainer.ddp().digest()?.to_string())
        });
        digests.unwrap().remove(0)
    };
    let plain = |model: &Linear, batch| Loss::from(loss(model, batch).tensor());
    assert_eq!(digest(plain), digest(loss));
}

/// The rows of Burn's matrices are inputs, and Burn's own Muon takes them for outputs.
#[test]
fn muons_original_steps_are_longer_where_there_are_more_outputs() {
    use burn::optim::{AdjustLrFn, MuonConfig, Optimizer};
    let device = Device::default();
    let values: Vec<f32> = (0..64).map(|place| (place as f32 * 0.7).sin()).collect();
    let gradient = Tensor::<1>::from_floats(values.as_slice(), &device).reshape([4, 16]);
    let weight = Tensor::<2>::ones([4, 16], &device);
    let mut section = Config::default().optimizer;
    section.weight_decay = 0.5;
    let ours = optimizer::OriginalMuon::new(&section, section.weight_decay);
    let (stepped, _) = ours.step(0.1, weight.clone(), gradient.clone(), None);
    // As PyTorch has the matrix: Burn's own rule is right there.
    let theirs = MuonConfig::new()
        .with_adjust_lr_fn(AdjustLrFn::Original)
        .with_weight_decay(Some(burn::optim::decay::WeightDecayConfig::new(0.5)))
        .build();
    let (expected, _) = theirs.step(0.1, weight.transpose(), gradient.transpose(), None);
    let difference = (stepped - expected.transpose()).abs().max();
    let difference: f32 = difference.into_scalar();
    assert!(difference < 1e-5, "{difference}");
}

#[test]
fn data_that_cannot_be_is_an_error() {
    let error_of = |words: &[&str], data: fn(&World) -> Data<Batch>| {
        let outcome = spawn(2, |world| {
            let model = model(&world.device());
            let mut trainer = prepare(&world, &config(words), (model, data(&world)))?;
            while let Some(batch) = trainer.next_batch()? {
                trainer.step(batch, loss)?;
            }
            trainer.finish().map(drop)
        });
        format!("{:?}", outcome.unwrap_err())
    };
    let error = error_of(&["data.drop_last=true"], |world| data(world, 5));
    assert!(error.contains("5 samples make no batch of 4"), "{error}");
    let error = error_of(&["batch.micro=3", "batch.total=8"], |world| data(world, 16));
    assert!(error.contains("batch.total: 8"), "{error}");
    let passes = |world: &World| {
        let rank = world.rank().get();
        let device = world.device().autodiff();
        Data::try_stream(move |pass| match (pass, rank) {
            (5, 1) => Err("torn"),
            _ => Ok(batch(&[pass as usize], &device)),
        })
    };
    let error = error_of(&[], passes);
    assert!(error.contains("needs `steps`"), "{error}");
    let error = error_of(&["steps=9"], passes);
    assert_eq!(error, "rank 1 failed: torn");
}

#[test]
fn a_resumed_training_goes_on_in_its_folder_and_a_new_one_keeps_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let run = |checkpoints: &str, steps: &str| {
        let report = format!("report.folder={}", path("run"));
        let checkpoints = format!("checkpoints.folder={}", path(checkpoints));
        trained(2, &[&report, &checkpoints, steps, "report.every=1"]).unwrap();
        let report = bonfire_report::Report::read(path("run")).unwrap();
        let steps: Vec<u64> = report.curve("loss").iter().map(|point| point.step).collect();
        (steps, report)
    };
    assert_eq!(run("a", "steps=2").0, [1, 2]);
    let (steps, report) = run("a", "steps=4");
    assert_eq!(steps, [1, 2, 3, 4]);
    let mut rows = report.configuration.iter();
    let (_, rate) = rows.find(|(key, _)| key == "optimizer.lr").unwrap();
    assert!(rate.starts_with("0.01 ("), "{rate}");
    assert_eq!(run("b", "steps=1").0, [1]);
    let earlier = bonfire_report::Report::read(folder.path().join("run/earlier-1")).unwrap();
    assert_eq!(earlier.curve("loss").len(), 4);
}

/// The steps that are left are those of the ranks that continue, and its earlier steps stay as many as they were.
#[test]
fn a_schedule_ends_with_a_training_that_continues_on_other_ranks() {
    // 16 of 43 samples of the second epoch are past, and 8 for each rank are a step.
    for (ranks, all) in [(1, 8), (2, 6), (3, 6), (4, 5)] {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let report = format!("report.folder={}", path("run"));
        let checkpoints = format!("checkpoints.folder={}", path("checkpoints"));
        let run = |ranks, end: &str| {
            trained(ranks, &[&report, &checkpoints, "report.every=1", end]).unwrap()[0].1
        };
        assert_eq!(run(2, "steps=4"), 4);
        assert_eq!(run(ranks, "epochs=2"), all - 4, "{ranks} ranks");
        let decay = bonfire_optim::Decay::Cosine { steps: all - 2, final_factor: 0.0 };
        let schedule = bonfire_optim::Schedule::constant(0.01).with_warmup(2).with_decay(decay);
        let report = bonfire_report::Report::read(path("run")).unwrap();
        let last = report.curve("learning_rate").last().unwrap();
        assert_eq!(last.step, all, "{ranks} ranks");
        let expected = schedule.rate(all - 1);
        assert!((last.value - expected).abs() < 1e-9, "{ranks} ranks: {} {expected}", last.value);
    }
}

/// The configuration knows the device, the program its model.
#[test]
fn a_report_has_the_utilisation_where_program_and_configuration_tell() {
    let report = |words: &[&str], flops: Option<f64>| {
        let reports = spawn(2, |world| {
            let mut parts = Parts::new(model(&world.device()), data(&world, 43));
            if let Some(flops) = flops {
                parts = parts.with_flops_per_sample(flops);
            }
            prepare(&world, &config(words), parts)?.finish()
        });
        reports.map(|mut reports| reports.remove(0).to_string())
    };
    let peak = ["report.peak_flops=989e12"];
    let whole = report(&peak, Some(12_600.0)).unwrap();
    assert!(whole.contains(" % of 989.0 TFLOP/s\n"), "{whole}");
    let achieved = report(&[], Some(12_600.0)).unwrap();
    assert!(achieved.contains("model FLOP/s per rank"), "{achieved}");
    assert!(!achieved.contains("utilisation"), "{achieved}");
    assert!(!report(&[], None).unwrap().contains("FLOP"));
    let error = format!("{:?}", report(&peak, None).unwrap_err());
    assert!(error.contains("Parts::with_flops_per_sample"), "{error}");
}

/// What is planned is the parameters' doing alone where a pass takes nothing.
#[test]
fn a_report_has_what_was_planned_where_activations_are_known() {
    let planned = |words: &[&str], activations: Option<u64>| {
        let reports = spawn(2, |world| {
            let mut parts = Parts::new(model(&world.device()), data(&world, 43));
            if let Some(bytes) = activations {
                parts = parts.with_activations(Bytes::new(bytes));
            }
            let mut trainer = prepare(&world, &config(words), parts)?;
            if words.contains(&"placement=zero3") {
                trainer.evaluate(&data(&world, 8), |_, _| [0.0])?;
            }
            trainer.finish()
        });
        reports.unwrap().remove(0).memory.planned
    };
    assert_eq!(planned(&[], None), None);
    for words in [&[][..], &["placement=zero3"]] {
        let small = planned(words, Some(0)).unwrap();
        let large = planned(words, Some(1 << 34)).unwrap();
        // What the process of this test has besides is not the same at all times.
        let difference = (large - small).abs_diff(1 << 34);
        assert!(difference < 1 << 33, "{small} {large}");
    }
}
