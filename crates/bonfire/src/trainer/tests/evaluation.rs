//! When a training is evaluated.

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
    // Three steps in all, of which two are skipped.
    let skips = ["precision.compute=f16", "precision.initial_scale=1e12", "precision.hysteresis=1"];
    assert_eq!(due(&[&skips[..], &["steps=2", "evaluation.every=1"]].concat()), [1, 2]);
}
