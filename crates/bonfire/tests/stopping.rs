//! A training that is asked to stop, in a process of its own: the signal reaches all of it.

#![cfg(all(unix, feature = "flex"))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use bonfire::config::Config;
use bonfire::trainer::{Data, prepare};
use bonfire::{Error, spawn};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;

fn interrupt_this_process() {
    let process = std::process::id().to_string();
    assert!(Command::new("kill").args(["-INT", &process]).status().unwrap().success());
}

#[test]
fn an_evaluation_stops_and_is_due_when_the_training_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = format!("checkpoints.folder={}", folder.path().display());
    let words = ["batch.micro=1", "epochs=2", &checkpoints];
    let config = Config::default().with_words(words).unwrap();
    let run = |stops: bool| {
        let ends = spawn(2, |world| {
            let model = LinearConfig::new(1, 1).init(&world.device());
            let device = world.device().autodiff();
            let data = Data::new(4, move |_| Tensor::<2>::ones([1, 1], &device));
            let mut trainer = prepare(&world, &config, (model, data))?;
            let was_due = trainer.evaluation_is_due();
            while !trainer.evaluation_is_due() {
                let batch = trainer.next_batch()?.unwrap();
                trainer.step(batch, |model: &Linear, x| model.forward(x).mean())?;
            }
            let epochs = trainer.epochs();
            // Far too long to end by itself.
            let validation = Data::new(if stops { 100_000 } else { 4 }, |_| ());
            let is_asked = std::cell::Cell::new(!stops || !world.is_main());
            let scored = trainer.evaluate_or_stop(&validation, |_, ()| {
                if !is_asked.replace(true) {
                    interrupt_this_process();
                }
                sleep(Duration::from_millis(10));
                [0.5]
            })?;
            let (code, is_due) = (trainer.stop_code(), trainer.evaluation_is_due());
            trainer.finish()?;
            Ok::<_, Error>((was_due, epochs, scored, code, is_due))
        });
        ends.unwrap()
    };
    // The exit code is that of the rank that watches for signals; the other's says that it is not its own.
    let first = run(true);
    assert!(first.iter().any(|end| end.3 == Some(130)), "{first:?}");
    for end in first {
        assert!(matches!(end, (false, 1, None, Some(130 | 75), true)), "{end:?}");
    }
    assert_eq!(run(false), [(true, 1, Some([0.5]), None, false); 2]);
}
