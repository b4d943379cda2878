//! Trainings of stages: with data, pipeline and tensor parallelism from one file.

use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

use bonfire_parallel::{Axes, Pass, Pipeline};
use bonfire_plan::pipeline::{Kind, Schedule, Shape, partition};
use bonfire_testkit::Watchdog;
use bonfire_train::Axis;

use super::*;
use model::{HIDDEN, Head, Stage, WEIGHTS, stages};

mod model;

const LIMIT: Duration = Duration::from_secs(240);
const SAMPLES: usize = 48;
const MESH: &str = "dp=2,pp=2,tp=2";

fn config_of_stages(words: &[&str]) -> Config {
    let base = [
        "seed=3",
        "epochs=2",
        "batch.micro=2",
        "batch.accumulation=4",
        "optimizer.lr=0.01",
        "clip.norm=0.5",
    ];
    let config = Config::default().with_words(base).unwrap();
    config.with_words(words).unwrap()
}

fn trainer(world: &World, config: &Config) -> Result<Trainer<Stages<Stage>, Vec<Batch>>> {
    let mesh = world.mesh(config.mesh)?;
    let (stages, whole) = stages(&mesh, &world.device());
    let parts = Parts::new(stages, data(world, SAMPLES)).with_mesh(&mesh, whole);
    prepare(world, config, parts)
}

/// What a rank did in a training.
#[derive(Debug)]
struct Trained {
    digest: String,
    steps: u64,
    /// Inputs that came from a stage of another rank.
    received: u64,
    /// Columns of a block's first matrix on this rank.
    columns: usize,
    /// The first values of all samples that it was given.
    samples: Vec<f32>,
    validation: f64,
}

fn to_the_end_of_stages(world: &World, config: &Config) -> Result<Trained> {
    let mut trainer = trainer(world, config)?;
    let (begun, received) = (trainer.steps(), Cell::new(0));
    let schedule = trainer.pipeline().schedule().clone();
    let pp = trainer.place.mesh().unwrap().sub(Axis::Pp).rank();
    let own = schedule.stages_on(pp);
    let mut samples = Vec::new();
    while let Some(micro_batches) = trainer.next_batch()? {
        for (x, _) in &micro_batches {
            let values: Vec<f32> = x.clone().into_data().try_to_vec().unwrap();
            samples.extend(values.into_iter().step_by(3));
        }
        trainer.step(micro_batches, |stage: &Stage, pass| {
            if !pass.is_first() && !own.contains(&(pass.stage() - 1)) {
                received.set(received.get() + 1);
            }
            stage.forward(pass)
        })?;
    }
    let device = world.device();
    let validation = Data::new(13, move |indices: &[usize]| batch(indices, &device));
    let validation = trainer.evaluate(&validation, Stage::forward)?;
    let stage = &trainer.pipeline().stages()[0];
    let [_, columns] = stage.blocks[0].up.weight.dims();
    let digest = trainer.pipeline().ddp().digest()?.to_string();
    let steps = trainer.steps() - begun;
    trainer.finish()?;
    Ok(Trained { digest, steps, received: received.get(), columns, samples, validation })
}

fn trained_by_stages(ranks: u32, config: &Config) -> Vec<Trained> {
    let name = format!("{} on {ranks} ranks", config.mesh);
    let _watchdog = Watchdog::start(&name, LIMIT);
    spawn(ranks, |world| to_the_end_of_stages(&world, config)).unwrap()
}

/// A training on two ranks, step by step.
pub(super) fn trained_by(config: &Config) -> String {
    let _watchdog = Watchdog::start("two ranks", LIMIT);
    let steps = spawn(2, |world| {
        let mut trainer = trainer(&world, config)?;
        let mut steps = Vec::new();
        while let Some(micro_batches) = trainer.next_batch()? {
            let done = trainer.step(micro_batches, Stage::forward)?;
            steps.push((done.step, done.loss.value()?));
        }
        let digest = trainer.pipeline().ddp().digest()?;
        trainer.finish()?;
        Ok::<_, Error>(format!("{steps:?} {digest}"))
    });
    // A mesh that does not train would change the text, too.
    steps.unwrap().concat()
}

/// The same training as a loop of its own, with the schedule's micro-batches.
fn own_loop_of_stages(kind: Kind, chunks: u32, head: Head) -> Vec<String> {
    let _watchdog = Watchdog::start("a loop of its own", LIMIT);
    let trained = spawn(8, |world| {
        let device = world.device().autodiff();
        let mesh = world.mesh(MESH)?;
        let (pp, tp) = (mesh.sub(Axis::Pp), mesh.sub(Axis::Tp));
        let schedule = Schedule::new(Shape {
            kind,
            ranks: pp.world_size(),
            chunks: chunks.try_into().unwrap(),
            micro_batches: 4.try_into().unwrap(),
        })?;
        let runs = partition(&WEIGHTS, schedule.stages() as usize)?;
        let numbers = schedule.stages_on(pp.rank()).into_iter();
        let stage = |number: u32| Stage::whole(&world.device()).part(&runs[number as usize], tp);
        let own = numbers.map(stage).collect::<Result<Vec<_>, _>>()?;
        let axes = Axes { stages: pp, data: mesh.data() };
        let mut pipeline = Pipeline::with_config(own, schedule, axes, DdpConfig::default())?;
        if let Head::Tied = head {
            pipeline = pipeline.with_tied(Head::entry)?;
        }
        let adamw = bonfire_optim::AdamWConfig::new().with_epsilon(1e-8);
        let mut optimizer = adamw.with_weight_decay(0.0).init();
        let mut loader = Loader::new(mesh.data(), SAMPLES, 2).with_shuffle(3);
        for _ in 0..2 {
            let batches: Vec<_> = loader.next_epoch().collect();
            for step in batches.chunks(4) {
                let micro_batches = step.iter().map(|indices| batch(indices, &device));
                let micro_batches: Vec<Batch> = micro_batches.collect();
                let forward = |stage: &Stage, pass: &mut Pass<'_, Batch>| head.forward(stage, pass);
                let done = pipeline.backward(&micro_batches, forward)?;
                let gradients = done.gradients.clip(Clip::Norm(0.5))?;
                pipeline.step(&mut optimizer, 0.01, gradients)?;
            }
        }
        Ok::<_, Error>(pipeline.ddp().digest()?.to_string())
    });
    trained.unwrap()
}

fn digests(trained: &[Trained]) -> Vec<&str> {
    trained.iter().map(|rank| &rank.digest[..]).collect()
}

/// Asserts that each axis of `MESH` did its part.
fn check_that_all_axes_took_part(trained: &[Trained]) {
    let steps = 2 * SAMPLES as u64 / 16;
    for (rank, found) in trained.iter().enumerate() {
        assert_eq!(found.steps, steps, "rank {rank}");
        assert_eq!(found.columns, HIDDEN / 2, "rank {rank} has a part of each block");
        // Ranks 4 to 7 have the second stage, which takes an input for each micro-batch.
        let received = if rank < 4 { 0 } else { 4 * steps };
        assert_eq!(found.received, received, "rank {rank}");
    }
    // Rank = 4 pp + 2 dp + tp.
    for first in [0, 1, 4, 5] {
        let (one, other) = (&trained[first], &trained[first + 2]);
        let [one_epoch, others] = [one, other].map(|rank| &rank.samples[..SAMPLES / 2]);
        assert!(one_epoch.iter().all(|x| !others.contains(x)), "dp divides samples");
        assert_eq!(one.digest, other.digest, "dp exchanges gradients");
    }
    for (one, other) in [(0, 1), (0, 4), (4, 5)] {
        assert_eq!(trained[one].samples, trained[other].samples);
        assert_ne!(trained[one].digest, trained[other].digest, "they have other parts");
    }
}

#[test]
fn one_file_with_dp_pp_and_tp_is_the_loop_that_one_would_write() {
    let folder = tempfile::tempdir().unwrap();
    let of_file = |name: &str, text: &str, words: &[&str]| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        Config::load(Some(&path), words).unwrap()
    };
    let toml = r#"
        seed = 3
        epochs = 2
        mesh = "dp=2,pp=2,tp=2"

        [batch]
        micro = 2
        accumulation = 4

        [pipeline]
        schedule = "1f1b"

        [optimizer]
        lr = 0.01

        [clip]
        norm = 0.5
    "#;
    let deepspeed = r#"{
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 0.5,
        "optimizer": { "type": "AdamW", "params": { "lr": 0.01 } },
        "pipeline": { "stages": 2 },
        "tensor_parallel": { "autotp_size": 2 }
    }"#;
    let expected = own_loop_of_stages(Kind::OneForwardOneBackward, 1, Head::Own);
    for config in [
        of_file("train.toml", toml, &[]),
        // DeepSpeed's programs have these two.
        of_file("ds_config.json", deepspeed, &["seed=3", "epochs=2"]),
    ] {
        let trained = trained_by_stages(8, &config);
        check_that_all_axes_took_part(&trained);
        assert_eq!(digests(&trained), expected, "{}", config.mesh);
    }
}

#[test]
fn every_schedule_of_a_file_is_the_loop_that_one_would_write() {
    for (kind, chunks) in
        [(Kind::GPipe, 1), (Kind::Interleaved, 2), (Kind::ZeroBubbleH1, 1), (Kind::ZeroBubbleV, 2)]
    {
        let schedule = format!("pipeline.schedule={kind}");
        let config = config_of_stages(&[&format!("mesh={MESH}"), &schedule]);
        let expected = own_loop_of_stages(kind, chunks, Head::Own);
        assert_eq!(digests(&trained_by_stages(8, &config)), expected, "{kind}");
    }
}

#[test]
fn a_tied_parameter_is_trained_as_in_the_loop_that_one_would_write() {
    let config = config_of_stages(&[&format!("mesh={MESH}")]);
    let _watchdog = Watchdog::start("tied stages", LIMIT);
    let trained = spawn(8, |world| {
        let mesh = world.mesh(config.mesh)?;
        let (stages, whole) = stages(&mesh, &world.device());
        let stages = stages.with_tied(Head::entry);
        let parts = Parts::new(stages, data(&world, SAMPLES)).with_mesh(&mesh, whole);
        let mut trainer = prepare(&world, &config, parts)?;
        while let Some(micro_batches) = trainer.next_batch()? {
            trainer.step(micro_batches, |stage, pass| Head::Tied.forward(stage, pass))?;
        }
        Ok::<_, Error>(trainer.pipeline().ddp().digest()?.to_string())
    });
    let kind = Kind::OneForwardOneBackward;
    let trained = trained.unwrap();
    assert_eq!(trained, own_loop_of_stages(kind, 1, Head::Tied));
    assert_ne!(trained, own_loop_of_stages(kind, 1, Head::Own), "the last stage uses it");
}

/// Clipping acts in every step, so a norm that counts an element twice, or a sample that is trained on twice, shows.
#[test]
fn stages_on_every_mesh_train_the_same_model() {
    let on = |ranks, words: &[&str]| {
        let words = [&["data.shuffle=false", "clip.norm=0.01"], words].concat();
        let trained = trained_by_stages(ranks, &config_of_stages(&words));
        trained[0].validation
    };
    let alone = on(1, &["mesh=dp=1", "batch.micro=4"]);
    for (ranks, words) in [
        (2, ["mesh=pp=2", "batch.micro=4"]),
        (4, ["mesh=pp=2,tp=2", "batch.micro=4"]),
        (4, ["mesh=dp=2,pp=2", "placement=zero2"]),
    ] {
        let loss = on(ranks, &words);
        let difference = (loss - alone).abs() / alone;
        assert!(difference < 1e-3, "{words:?}: {loss}, alone {alone}");
    }
}

#[test]
fn stages_go_on_from_a_checkpoint_and_so_does_the_whole_model() {
    let folder = tempfile::tempdir().unwrap();
    let folder = format!("checkpoints.folder={}", folder.path().display());
    let on = |words: &[&str]| {
        let mesh = format!("mesh={MESH}");
        let words = [&[&*mesh], words].concat();
        trained_by_stages(8, &config_of_stages(&words))
    };
    let straight = on(&["steps=5"]);
    assert_eq!(on(&["steps=3", &folder])[0].steps, 3);
    let resumed = on(&["steps=5", &folder]);
    assert_eq!(resumed[0].steps, 2, "steps that were done are not done again");
    assert_eq!(digests(&resumed), digests(&straight));
    let whole = spawn(1, |world| {
        let config = config_of_stages(&["steps=5", &folder]);
        let parts = (Stage::whole(&world.device()), data(&world, SAMPLES));
        let mut trainer = prepare(&world, &config, parts)?;
        assert_eq!(trainer.steps(), 5);
        let device = world.device();
        let validation = Data::new(13, move |indices: &[usize]| batch(indices, &device));
        let [loss] = trainer
            .evaluate(&validation, |model, (x, y)| [model.loss(x, y).into_scalar::<f64>()])?;
        Ok::<_, Error>(loss)
    });
    let (whole, stages) = (whole.unwrap()[0], straight[0].validation);
    assert!((whole - stages).abs() < 1e-5 * stages, "{whole}, {stages}");
}

#[test]
fn each_micro_batch_of_a_stream_has_the_number_of_its_forward_pass() {
    let folder = tempfile::tempdir().unwrap();
    let folder = format!("checkpoints.folder={}", folder.path().display());
    let seen = |steps: &str| {
        let _watchdog = Watchdog::start("a stream", LIMIT);
        let config = config_of_stages(&["mesh=pp=2", steps, &folder]);
        let seen = spawn(2, |world| {
            let mesh = world.mesh(config.mesh)?;
            let (stages, whole) = stages(&mesh, &world.device());
            let device = world.device().autodiff();
            let data = Data::stream(move |pass| batch(&[pass as usize, 1], &device));
            let parts = Parts::new(stages, data).with_mesh(&mesh, whole);
            let mut trainer = prepare(&world, &config, parts)?;
            let mut seen = Vec::new();
            while let Some(micro_batches) = trainer.next_batch()? {
                for (x, _) in &micro_batches {
                    seen.push(x.clone().into_data().try_to_vec::<f32>().unwrap()[0] * 16.0);
                }
                trainer.step(micro_batches, Stage::forward)?;
            }
            trainer.finish()?;
            Ok::<_, Error>(seen)
        });
        seen.unwrap().concat()
    };
    let passes = |passes: Range<u16>| passes.map(f32::from).collect::<Vec<_>>();
    assert_eq!(seen("steps=2"), [passes(0..8), passes(0..8)].concat());
    assert_eq!(seen("steps=3"), [passes(8..12), passes(8..12)].concat());
}

#[test]
fn stages_that_do_not_go_with_the_configuration_are_refused() {
    let refused = |words: &[&str]| {
        let _watchdog = Watchdog::start("a refusal", LIMIT);
        let config = config_of_stages(words);
        let outcome = spawn(4, |world| trainer(&world, &config).map(drop));
        format!("{:?}", outcome.unwrap_err())
    };
    for (words, says) in [
        (&["mesh=dp=2,pp=2", "batch.micro=5"][..], "data.drop_last=true"),
        (&["mesh=pp=4", "pipeline.stages_per_rank=2"], "1f1b has 1 stage"),
        (&["mesh=pp=4", "pipeline.schedule=interleaved"], "mesh=pp=4: "),
        (&["mesh=pp=2,cp=2"], "leave pp or cp out"),
        (&["mesh=dp=2,pp=2", "placement=zero3"], "take zero1 or zero2"),
        (&["mesh=dp=2,pp=2", "precision.compute=bf16"], "cast in the stages"),
        (&["mesh=pp=2,tp=2", "optimizer.kind=lamb"], "leave tp out"),
    ] {
        let error = refused(words);
        assert!(error.contains(says), "{words:?}: {error}");
    }
    let config = config_of_stages(&["mesh=pp=2,tp=2"]);
    let undivided = spawn(4, |world| {
        let mesh = world.mesh(config.mesh)?;
        let whole = Stage::whole(&world.device());
        let table = bonfire_checkpoint::record::TensorTable::of(&whole);
        let stages = Stages::new(WEIGHTS, move |_| Ok::<_, Error>(whole.clone()));
        let parts = Parts::new(stages, data(&world, SAMPLES)).with_mesh(&mesh, table);
        prepare(&world, &config, parts).map(drop)
    });
    let error = format!("{:?}", undivided.unwrap_err());
    assert!(error.contains("no layer of the model is divided"), "{error}");
    // What is left over is left out.
    let config = config_of_stages(&["mesh=dp=2,pp=2", "batch.micro=5", "data.drop_last=true"]);
    let trained = trained_by_stages(4, &config);
    assert!(trained.iter().all(|rank| rank.steps == 2), "{trained:?}");
}
