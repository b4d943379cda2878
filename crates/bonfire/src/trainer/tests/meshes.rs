//! Trainings on meshes whose ranks have parts of the model or of the samples.

use bonfire_checkpoint::record::TensorTable;
use bonfire_parallel::{ColumnParallelLinear, RowParallelLinear};
use bonfire_train::{Axis, Mesh};

use super::*;

#[derive(burn::module::Module, Debug)]
struct Mlp {
    up: ColumnParallelLinear,
    down: RowParallelLinear,
}

pub(super) fn linear([inputs, outputs]: [usize; 2], device: &Device) -> Linear {
    let values = (0..inputs * outputs).map(|place| (place as f32).sin() / 8.0);
    let values: Vec<f32> = values.collect();
    let weight = Tensor::<1>::from_floats(values.as_slice(), device);
    Linear {
        weight: Param::from_tensor(weight.reshape([inputs, outputs])),
        bias: Some(Param::from_tensor(Tensor::zeros([outputs], device))),
    }
}

impl Mlp {
    /// The same in every run, on one rank.
    fn whole(device: &Device) -> Self {
        Self { up: linear([3, 512], device).into(), down: linear([512, 4], device).into() }
    }

    fn divided(self, tp: &World) -> Self {
        Self {
            up: ColumnParallelLinear::from_linear(self.up.to_linear().unwrap(), tp).unwrap(),
            down: RowParallelLinear::from_linear(self.down.to_linear().unwrap(), tp).unwrap(),
        }
    }

    /// Ranks of `cp` have some of the samples each, as if they were tokens.
    fn loss(&self, (x, y): Batch, cp: &World) -> Loss {
        let own = |all: Tensor<2>| {
            let ranks = cp.world_size().len();
            all.chunk(ranks, 0)[cp.rank().index()].clone()
        };
        let (x, y) = (own(x), own(y));
        let samples = x.dims()[0];
        let said = self.down.forward(self.up.forward(x).tanh());
        Loss::mean_over((said - y).powi_scalar(2).mean(), samples)
    }

    fn part(mesh: &Mesh, device: &Device) -> (Self, TensorTable) {
        let whole = Self::whole(device);
        let of = TensorTable::of(&whole);
        (whole.divided(mesh.sub(Axis::Tp)), of)
    }
}

fn mesh_config(mesh: &str, words: &[&str]) -> Config {
    let mesh = format!("mesh={mesh}");
    config(&[&[mesh.as_str(), "clip.norm=0.01", "schedule.decay=constant"], words].concat())
}

/// The digest of each rank's part after a training, the last loss that is reported, and an evaluation.
fn trained_on(mesh: &str, words: &[&str]) -> Vec<(String, u64, f64)> {
    let ranks = mesh.split(',').map(|axis| axis.split_once('=').unwrap().1);
    let ranks: u32 = ranks.map(|size| size.parse::<u32>().unwrap()).product();
    let trained = spawn(ranks, |world| {
        let config = mesh_config(mesh, words);
        let mesh = world.mesh(config.mesh)?;
        let (part, whole) = Mlp::part(&mesh, &world.device());
        let parts = Parts::new(part, data(&world, 40)).with_mesh(&mesh, whole);
        let mut trainer = prepare(&world, &config, parts)?;
        let begun = trainer.steps();
        let cp = mesh.sub(Axis::Cp);
        while let Some(batch) = trainer.next_batch()? {
            trainer.step(batch, |model: &Mlp, batch| model.loss(batch, cp))?;
        }
        let device = world.device();
        let validation = Data::new(12, move |indices: &[usize]| batch(indices, &device));
        let [loss, ones] = trainer
            .evaluate(&validation, |model, batch| [model.loss(batch, cp).value().unwrap(), 1.0])?;
        assert_eq!(ones, 1.0);
        let digest = trainer.ddp().digest()?.to_string();
        let steps = trainer.steps() - begun;
        trainer.finish()?;
        Ok::<_, Error>((digest, steps, loss))
    });
    trained.unwrap()
}

/// The same training as a loop of its own.
fn own_loop_on(mesh: &str, ranks: u32) -> Vec<String> {
    let trained = spawn(ranks, |world| {
        let device = world.device().autodiff();
        let mesh = world.mesh(mesh)?;
        let (part, _) = Mlp::part(&mesh, &world.device());
        let mut ddp = Ddp::new(part, mesh.replicas())?;
        let adamw = bonfire_optim::AdamWConfig::new().with_epsilon(1e-8);
        let mut optimizer = adamw.with_weight_decay(0.0).init();
        let mut loader = Loader::new(mesh.data(), 40, 4).with_shuffle(3);
        let schedule = bonfire_optim::Schedule::constant(0.01).with_warmup(2);
        let batches: Vec<_> = loader.next_epoch().collect();
        let cp = mesh.sub(Axis::Cp);
        for (step, group) in (0..).zip(batches.chunks(2)) {
            let (last, before) = group.split_last().unwrap();
            for indices in before {
                ddp.no_sync(|model| model.loss(batch(indices, &device), cp))?;
            }
            let done = ddp.backward(|model| model.loss(batch(last, &device), cp))?;
            let gradients = done.gradients.clip(Clip::Norm(0.01))?;
            ddp.step(&mut optimizer, schedule.rate(step), gradients)?;
        }
        Ok::<_, Error>(ddp.digest()?.to_string())
    });
    trained.unwrap()
}

#[test]
fn a_trainer_on_a_mesh_is_the_loop_that_one_would_write() {
    for (mesh, ranks) in [("dp=2,tp=2", 4), ("tp=2", 2), ("dp=2,cp=2", 4)] {
        let trained = trained_on(mesh, &["epochs=1"]);
        let trained: Vec<_> = trained.into_iter().map(|(digest, ..)| digest).collect();
        assert_eq!(trained, own_loop_on(mesh, ranks), "{mesh}");
    }
}

/// Clipping acts in every step, so a norm that counts an element twice shows.
#[test]
fn every_mesh_trains_the_same_model() {
    let on = |mesh, micro: &str| {
        trained_on(mesh, &["steps=12", "data.shuffle=false", micro])
            .into_iter()
            .map(|(_, _, loss)| loss)
    };
    let alone = on("dp=1", "batch.micro=8").next().unwrap();
    for (mesh, micro) in [
        ("tp=2", "batch.micro=8"),
        ("dp=2,tp=2", "batch.micro=4"),
        ("cp=2", "batch.micro=8"),
        ("cp=2,tp=2", "batch.micro=8"),
    ] {
        for loss in on(mesh, micro) {
            let difference = (loss - alone).abs() / alone;
            assert!(difference < 1e-3, "{mesh}: {loss}, alone {alone}");
        }
    }
}

#[test]
fn a_training_goes_on_from_a_checkpoint_of_another_mesh() {
    let folder = tempfile::tempdir().unwrap();
    let folder = format!("checkpoints.folder={}", folder.path().display());
    let straight = trained_on("dp=2,tp=2", &["steps=8"]);
    assert_eq!(trained_on("dp=2,tp=2", &["steps=3", &folder])[0].1, 3);
    let resumed = trained_on("dp=2,tp=2", &["steps=8", &folder]);
    assert_eq!(resumed[0].1, 5, "steps that were done are not done again");
    assert_eq!(resumed[3].0, straight[3].0);
    // Nothing is left to do, so this is the same model.
    let alone = trained_on("dp=1", &["steps=8", &folder]);
    assert_eq!(alone[0].1, 0);
    let difference = (alone[0].2 - straight[0].2).abs() / straight[0].2;
    assert!(difference < 1e-5, "{} {}", alone[0].2, straight[0].2);
}

#[test]
fn a_step_that_overflows_on_one_part_is_skipped_on_all() {
    let words = ["precision.compute=f16", "precision.initial_scale=1e12", "precision.hysteresis=1"];
    let done = trained_on_f16(&[&words[..], &["steps=3"]].concat());
    assert!(done.iter().all(|steps| *steps == 3), "{done:?}");
}

fn trained_on_f16(words: &[&str]) -> Vec<u64> {
    let steps = spawn(2, |world| {
        let config = mesh_config("tp=2", words);
        let mesh = world.mesh(config.mesh)?;
        let (part, whole) = Mlp::part(&mesh, &world.device());
        let parts = Parts::new(part, data(&world, 40)).with_mesh(&mesh, whole);
        let mut trainer = prepare(&world, &config, parts)?;
        while let Some((x, y)) = trainer.next_batch()? {
            let cp = mesh.sub(Axis::Cp);
            let half = |x: Tensor<2>| x.cast(burn::tensor::DType::F16);
            trainer.step((x, y), |model: &Mlp, (x, y)| model.loss((half(x), half(y)), cp))?;
        }
        let steps = trainer.steps();
        trainer.finish()?;
        Ok::<_, Error>(steps)
    });
    steps.unwrap()
}

#[test]
fn parts_that_do_not_go_with_the_mesh_are_refused() {
    let refused = |mesh: &str, words: &[&str], of: Option<&str>| {
        let outcome = spawn(2, |world| {
            let config = mesh_config(mesh, words);
            let laid_out = world.mesh(of.unwrap_or("dp=2"))?;
            let (part, whole) = Mlp::part(&laid_out, &world.device());
            let mut parts = Parts::new(part, data(&world, 40));
            if of.is_some() {
                parts = parts.with_mesh(&laid_out, whole);
            }
            prepare(&world, &config, parts).map(drop)
        });
        format!("{:?}", outcome.unwrap_err())
    };
    for (error, says) in [
        (refused("tp=2", &[], None), "hand it over with Parts::with_mesh"),
        (refused("cp=2", &[], None), "hand it over with Parts::with_mesh"),
        (refused("tp=2", &[], Some("dp=2")), "make the mesh of config.mesh"),
        (refused("pp=2", &[], Some("pp=2")), "hand over Stages in place of the model"),
        (refused("tp=2", &["optimizer.kind=lamb"], Some("tp=2")), "leave tp out"),
    ] {
        assert!(error.contains(says), "{error}");
    }
}
