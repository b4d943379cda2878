//! Epochs, evaluations, and the program's own state.

use std::time::Duration;

use super::*;

/// Returns the optimizer steps after which an evaluation is due, 0 for before the first of this run.
fn due(words: &[&str]) -> Vec<u64> {
    let all = spawn(2, |world| {
        // 6 batches and 3 steps in an epoch.
        let parts = (model(&world.device()), data(&world, 43));
        let mut trainer = prepare(&world, &config(words), parts)?;
        let mut due = Vec::new();
        loop {
            if trainer.evaluation_is_due() {
                due.push(trainer.steps());
            }
            let Some(batch) = trainer.next_batch()? else {
                break;
            };
            trainer.step(batch, loss)?;
        }
        trainer.finish()?;
        Ok::<_, Error>(due)
    });
    all.unwrap().remove(1)
}

#[test]
fn an_evaluation_is_due_every_so_often_and_at_the_end() {
    assert_eq!(due(&["epochs=2"]), [3, 6]);
    assert_eq!(due(&["steps=7"]), [3, 6, 7]);
    assert_eq!(due(&["steps=7", "evaluation.every=2"]), [2, 4, 6, 7]);
    assert_eq!(due(&["epochs=2", "evaluation.every=4"]), [4, 6]);
    // The first steps are skipped.
    let skips = ["precision.compute=f16", "precision.initial_scale=1e12", "precision.hysteresis=1"];
    assert_eq!(due(&[&skips[..], &["steps=2", "evaluation.every=1"]].concat()), [1, 2]);
}

#[test]
fn random_transforms_and_rates_follow_the_epoch_on_any_number_of_ranks() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).display().to_string();
    let words = [
        "report.every=1",
        &format!("report.folder={}", path("run")),
        &format!("checkpoints.folder={}", path("checkpoints")),
    ];
    // Epochs of 8 steps on one rank, and of 4 on two; 56 samples are left of the last.
    for (ranks, steps, epochs) in [(1, "steps=17", 2), (2, "steps=20", 2), (2, "steps=21", 3)] {
        let seen = spawn(ranks, |world| {
            let device = world.device().autodiff();
            let data = Data::try_by_epoch(64, move |epoch, indices| {
                Ok::<_, Error>((epoch, batch(indices, &device)))
            });
            let parts = Parts::new(model(&world.device()), data)
                .with_epoch_schedule(|epoch| 1.0 / (1 + epoch) as f64);
            let words = [&words[..], &[steps]].concat();
            let mut trainer = prepare(&world, &config(&words), parts)?;
            while let Some((epoch, batch)) = trainer.next_batch()? {
                assert_eq!(epoch, trainer.epochs());
                trainer.step((epoch, batch), |model: &Linear, (_, batch)| loss(model, batch))?;
            }
            let epochs = trainer.epochs();
            trainer.finish()?;
            Ok::<_, Error>(epochs)
        });
        assert_eq!(seen.unwrap(), vec![epochs; ranks as usize]);
    }
    let report = bonfire_report::Report::read(path("run")).unwrap();
    let rates: Vec<f64> = report.curve("learning_rate").iter().map(|point| point.value).collect();
    assert_eq!(rates, [[1.0; 8].as_slice(), &[0.5; 8], &[1.0 / 3.0; 5]].concat());
}

#[test]
fn an_epoch_without_a_step_left_on_other_ranks_is_evaluated() {
    let place = tempfile::tempdir().unwrap();
    let folder = format!("checkpoints.folder={}", place.path().display());
    let run = |ranks, epochs: &str, steps: usize| {
        let ends = spawn(ranks, |world| {
            let words = [&*folder, epochs, "batch.accumulation=1", "data.drop_last=true"];
            let parts = (model(&world.device()), data(&world, 12));
            let mut trainer = prepare(&world, &config(&words), parts)?;
            let is_due = trainer.evaluation_is_due();
            for _ in 0..steps {
                let batch = trainer.next_batch()?.unwrap();
                trainer.step(batch, loss)?;
            }
            let epochs = trainer.epochs();
            trainer.finish()?;
            Ok::<_, Error>((is_due, epochs))
        });
        ends.unwrap()[0]
    };
    // Of three batches two, and the samples of the third are too few for two ranks.
    assert_eq!(run(1, "epochs=2", 2), (false, 0));
    assert_eq!(run(2, "epochs=2", 0), (true, 1));
}

#[test]
fn the_batches_that_are_left_are_those_of_the_epoch_also_after_a_resume() {
    let place = tempfile::tempdir().unwrap();
    let folder = format!("checkpoints.folder={}", place.path().display());
    let left = |steps: &str| {
        let left = spawn(2, |world| {
            let parts = (model(&world.device()), data(&world, 43));
            let mut trainer = prepare(&world, &config(&[&*folder, steps]), parts)?;
            let mut left = vec![trainer.batches_left()];
            while let Some(batch) = trainer.next_batch()? {
                left.push(trainer.batches_left());
                trainer.step(batch, loss)?;
            }
            trainer.finish()?;
            Ok::<_, Error>(left)
        });
        left.unwrap().remove(1)
    };
    // 6 batches and 3 steps in an epoch.
    assert_eq!(left("steps=5"), [0, 5, 4, 3, 2, 1, 0, 5, 4, 3, 2]);
    assert_eq!(left("steps=6"), [0, 1, 0]);
}

#[test]
fn figures_come_where_the_program_asks_for_them() {
    let place = tempfile::tempdir().unwrap();
    let folder = format!("report.folder={}", place.path().display());
    spawn(2, |world| {
        let words = [&*folder, "epochs=2", "report.every=1000"];
        let mut trainer =
            prepare(&world, &config(&words), (model(&world.device()), data(&world, 43)))?;
        assert_eq!(trainer.figures()?, None);
        while let Some(batch) = trainer.next_batch()? {
            if let Some(step @ (2 | 5)) = trainer.step(batch, loss)?.step {
                let figures = trainer.figures()?.unwrap();
                assert_eq!((figures.step, figures.ranks), (step, 2));
                assert_eq!(trainer.figures()?, None);
            }
        }
        trainer.finish().map(drop)
    })
    .unwrap();
    let report = bonfire_report::Report::read(place.path()).unwrap();
    for tag in ["loss", "learning_rate"] {
        let steps: Vec<u64> = report.curve(tag).iter().map(|point| point.step).collect();
        assert_eq!(steps, [2, 5], "{tag}");
    }
}

#[test]
fn a_program_evaluates_by_itself_and_its_pass_is_timed() {
    const PAUSE: Duration = Duration::from_millis(30);
    let reports = spawn(2, |world| {
        let words = ["epochs=2", "placement=zero3"];
        let parts = (model(&world.device()), data(&world, 43));
        let mut trainer = prepare(&world, &config(&words), parts)?;
        while !trainer.evaluation_is_due() {
            let batch = trainer.next_batch()?.unwrap();
            trainer.step(batch, loss)?;
        }
        let failed = trainer.evaluate_with::<(), BoxError>(|_, _| Err("no pictures".into()));
        assert_eq!(failed.unwrap_err().to_string(), "no pictures");
        assert!(trainer.evaluation_is_due());
        let dims = trainer.evaluate_with(|model, stop| {
            std::thread::sleep(PAUSE);
            Ok::<_, Error>((!stop.is_made()).then(|| model.weight.dims()))
        })?;
        // The complete model, of which each rank trains some rows.
        assert_eq!(dims, Some([3, 700]));
        assert!(!trainer.evaluation_is_due() && trainer.stop_code().is_none());
        while !trainer.evaluation_is_due() {
            let batch = trainer.next_batch()?.unwrap();
            trainer.step(batch, loss)?;
        }
        let stopped: Option<()> = trainer.evaluate_with(|_, _| Ok::<_, Error>(None))?;
        assert!(stopped.is_none() && trainer.evaluation_is_due());
        assert!(trainer.stop_code().is_some());
        trainer.finish()
    });
    for report in reports.unwrap() {
        assert!(report.ranks.iter().all(|split| split.evaluation >= PAUSE), "{report}");
    }
}

#[test]
fn a_program_has_its_state_again_when_it_resumes() {
    let place = tempfile::tempdir().unwrap();
    let folder = format!("checkpoints.folder={}", place.path().display());
    let run = |steps: &str, state: Option<(f64, String)>| {
        let states = spawn(2, |world| {
            let words = [&*folder, steps, "checkpoints.every=1"];
            let parts = (model(&world.device()), data(&world, 43));
            let mut trainer = prepare(&world, &config(&words), parts)?;
            let found: Option<(f64, String)> = trainer.state()?;
            while let Some(batch) = trainer.next_batch()? {
                trainer.step(batch, loss)?;
            }
            if let Some(state) = &state {
                trainer.set_state(state)?;
                let error = trainer.state::<bool>().unwrap_err().to_string();
                assert!(error.contains("another type"), "{error}");
            }
            trainer.finish()?;
            Ok::<_, Error>(found)
        });
        states.unwrap().remove(1)
    };
    assert_eq!(run("steps=1", None), None);
    let state = Some((f64::INFINITY, "best".to_owned()));
    // The step is saved already, without it.
    assert_eq!(run("steps=1", state.clone()), None);
    assert_eq!(run("steps=2", None), state);
}

#[test]
fn a_training_of_another_seed_is_not_continued() {
    let place = tempfile::tempdir().unwrap();
    let folder = format!("checkpoints.folder={}", place.path().display());
    let run = |seed: &str| {
        spawn(2, |world| {
            let device = world.device().autodiff();
            let data = Data::stream(move |pass| batch(&[pass as usize], &device));
            let words = [&*folder, seed, "steps=1"];
            let mut trainer = prepare(&world, &config(&words), (model(&world.device()), data))?;
            while let Some(batch) = trainer.next_batch()? {
                trainer.step(batch, loss)?;
            }
            trainer.finish().map(drop)
        })
    };
    run("seed=5").unwrap();
    run("seed=5").unwrap();
    let error = format!("{:?}", run("seed=6").unwrap_err());
    assert!(error.contains("a training with seed=5, and this one has seed=6"), "{error}");
}
