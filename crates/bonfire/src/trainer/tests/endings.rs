//! What a training leaves: its checkpoints and its report.

use std::path::Path;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig};

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != ".lock").collect();
    names.sort();
    names
}

/// Its data is no number from some pass on.
fn diverging(folder: &Path, words: &[&str], from: u64) -> Result<Vec<u64>> {
    let folder = format!("checkpoints.folder={}", folder.display());
    spawn(2, |world| {
        let device = world.device().autodiff();
        let data = Data::stream(move |pass| {
            let (x, y) = batch(&[pass as usize, 1, 2, 3], &device);
            if pass < from { (x, y) } else { (x * f32::NAN, y) }
        });
        let words = [&[&*folder, "steps=8", "report.every=100"], words].concat();
        let mut trainer = prepare(&world, &config(&words), (model(&world.device()), data))?;
        let first = trainer.steps();
        let weights: Vec<f32> =
            trainer.ddp().whole()?.weight.val().into_data().try_to_vec().unwrap();
        assert!(weights.iter().all(|weight| weight.is_finite()));
        while let Some(batch) = trainer.next_batch()? {
            trainer.step(batch, loss)?;
        }
        trainer.finish()?;
        Ok::<_, Error>(first)
    })
}

#[test]
fn a_training_that_has_diverged_is_not_saved_and_the_last_good_checkpoint_stays() {
    for placement in ["placement=replicated", "placement=zero3"] {
        for background in ["checkpoints.background=false", "checkpoints.background=true"] {
            let place = tempfile::tempdir().unwrap();
            let folder = place.path().join("c");
            let words = [placement, background, "checkpoints.every=1", "checkpoints.keep=1"];
            // Two passes are a step.
            let error = format!("{:?}", diverging(&folder, &words, 10).unwrap_err());
            assert!(error.contains("parameter weight is not finite on rank"), "{error}");
            assert_eq!(names(&folder), ["step-000000005"]);
            // At the end alone, too, and with what was there before.
            let words = [placement, background];
            diverging(&folder, &words, 10).unwrap_err();
            assert_eq!(names(&folder), ["step-000000005"]);
            assert_eq!(diverging(&folder, &words, u64::MAX).unwrap(), [5, 5]);
            assert_eq!(names(&folder), ["step-000000005", "step-000000008"]);
        }
    }
}

#[test]
fn the_best_checkpoint_stays_though_its_step_was_saved_before_it_was_evaluated() {
    for (best, kept) in [("lowest", 4), ("highest", 6)] {
        let place = tempfile::tempdir().unwrap();
        let words = [
            &format!("checkpoints.folder={}", place.path().display()),
            &format!("checkpoints.best={best}"),
            "checkpoints.every=2",
            "checkpoints.keep=1",
            "steps=10",
        ];
        spawn(2, |world| {
            let model = model(&world.device());
            let mut trainer = prepare(&world, &config(&words), (model, data(&world, 43)))?;
            while let Some(batch) = trainer.next_batch()? {
                match trainer.step(batch, loss)?.step {
                    Some(2 | 8) => trainer.save(Some(0.5))?,
                    Some(4) => trainer.save(Some(0.1))?,
                    Some(6) => trainer.save(Some(0.9))?,
                    _ => {}
                }
            }
            trainer.finish().map(drop)
        })
        .unwrap();
        let kept = format!("step-{kept:09}");
        assert_eq!(names(place.path()), [&kept, "step-000000010"]);
    }
}

#[test]
fn a_training_that_does_not_resume_keeps_its_own_checkpoints() {
    let place = tempfile::tempdir().unwrap();
    let folder = format!("checkpoints.folder={}", place.path().display());
    trained(2, &[&folder, "checkpoints.every=2", "steps=9"]).unwrap();
    let words = [&*folder, "checkpoints.every=2", "checkpoints.keep=2"];
    let again = [&words[..], &["checkpoints.resume=false", "steps=5"]].concat();
    assert_eq!(trained(2, &again).unwrap()[0].1, 5);
    assert_eq!(names(place.path()), ["earlier-1", "step-000000004", "step-000000005"]);
    let earlier = names(&place.path().join("earlier-1"));
    assert_eq!(earlier, ["step-000000008", "step-000000009"]);
    let resumed = trained(2, &[&words[..], &["steps=7"]].concat()).unwrap();
    assert_eq!(resumed[0].1, 2);
}

#[test]
fn a_step_that_is_skipped_is_not_in_curves_and_report() {
    let place = tempfile::tempdir().unwrap();
    let words = [
        "precision.compute=f16",
        "precision.initial_scale=1e12",
        "precision.hysteresis=1",
        "steps=3",
        "report.every=1",
        &format!("report.folder={}", place.path().display()),
    ];
    trained(2, &words).unwrap();
    let report = bonfire_report::Report::read(place.path()).unwrap();
    let curve = report.curve("loss").iter();
    let steps: Vec<u64> = curve.map(|point| point.step).collect();
    assert_eq!((steps, report.steps), (vec![1, 2, 3], 3));
}

#[derive(Module, Debug)]
struct Normed {
    norm: BatchNorm,
}

/// Running statistics of ranks differ until the step is whole.
#[test]
fn a_program_may_leave_its_loop_in_the_middle_of_an_accumulation() {
    let digests = spawn(2, |world| {
        let norm = BatchNormConfig::new(3).init(&world.device());
        let parts = (Normed { norm }, data(&world, 43));
        let mut trainer = prepare(&world, &config(&["steps=9"]), parts)?;
        for _ in 0..3 {
            let batch = trainer.next_batch()?.unwrap();
            trainer.step(batch, |model: &Normed, (x, y): Batch| {
                let wide = model.norm.forward(x.unsqueeze_dim::<3>(2));
                (wide.mean_dim(1).squeeze_dim::<2>(2) - y.mean_dim(1)).powi_scalar(2).mean()
            })?;
        }
        let report = trainer.finish()?;
        Ok::<_, Error>(report.facts)
    });
    assert!(digests.unwrap()[0].iter().any(|(name, _)| name == "parameters"));
}
