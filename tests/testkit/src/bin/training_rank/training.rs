//! The training loop, as a program has it, with a misfortune in one of its places.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bonfire_collective::{InterruptWatch, ProcessGroup, Proposal, ReduceOp};
use bonfire_testkit::endings::checkpoint::Checkpoint;
use bonfire_testkit::endings::model::{self, Batch};
use bonfire_testkit::endings::{Misfortune, Scenario};

use super::BoxError;

const STEPS_PER_CHECKPOINT: u64 = 4;

/// How long the judge may take to say go.
const GO_WAIT: Duration = Duration::from_secs(60);

/// What computing takes, so that the process that watches has a core, too.
const STEP_TIME: Duration = Duration::from_micros(500);

pub(crate) struct Training<'a> {
    group: &'a ProcessGroup,
    scenario: Scenario,
    folder: PathBuf,
    weights: Vec<f32>,
}

impl<'a> Training<'a> {
    pub(crate) fn new(group: &'a ProcessGroup, scenario: Scenario, folder: PathBuf) -> Self {
        Self { group, scenario, folder, weights: model::start() }
    }

    pub(crate) fn run(&mut self) -> Result<(), BoxError> {
        let is_interrupted = Arc::new(AtomicBool::new(false));
        let noticed = Arc::clone(&is_interrupted);
        let _watch = InterruptWatch::start(move |_| noticed.store(true, Ordering::Relaxed))?;
        self.wait_to_go()?;
        let mut step = 0;
        loop {
            let mishap = self.mishap(step);
            let batch = self.next_batch(step, mishap)?;
            let agreed = self.group.agree(Proposal {
                stop: is_interrupted.load(Ordering::Relaxed)
                    || mishap == Some(Misfortune::EarlyStop),
                checkpoint: step.is_multiple_of(STEPS_PER_CHECKPOINT),
                out_of_data: batch.is_none(),
            })?;
            let is_done = match self.scenario.misfortune {
                Misfortune::OneBatchShadowed => agreed.with_data.is_none(),
                _ => agreed.out_of_data.is_some(),
            };
            let is_last = is_done || agreed.stop.is_some();
            if is_last || agreed.checkpoint.is_some() {
                self.save(step)?;
            }
            if is_last {
                println!("ended after {step} steps");
                return Ok(());
            }
            println!("step {step}");
            self.step(&batch.unwrap_or_else(Batch::empty), mishap)?;
            step += 1;
        }
    }

    fn wait_to_go(&self) -> Result<(), BoxError> {
        println!("here {}", std::process::id());
        let started = Instant::now();
        while !self.folder.join("go").exists() {
            if started.elapsed() > GO_WAIT {
                return Err("nobody says go".into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// What happens to this rank in this step.
    fn mishap(&self, step: u64) -> Option<Misfortune> {
        let is_mine = self.scenario.rank == self.group.rank().get() && self.scenario.step == step;
        is_mine.then_some(self.scenario.misfortune)
    }

    fn next_batch(&self, step: u64, mishap: Option<Misfortune>) -> Result<Option<Batch>, BoxError> {
        if mishap == Some(Misfortune::DatasetError) {
            return Err(format!("cannot read the samples of step {step}").into());
        }
        let rank = self.group.rank().get();
        let has_batch = step < self.scenario.batches_of(rank);
        Ok(has_batch.then(|| Batch::read(self.scenario.seed, rank, step)))
    }

    fn step(&mut self, batch: &Batch, mishap: Option<Misfortune>) -> Result<(), BoxError> {
        let gradient = batch.gradient(&self.weights);
        // The first half is sent while the second is computed, as buckets do.
        let (first, second) = gradient.split_at(gradient.len() / 2);
        let under_way = self
            .group
            .background(first.to_vec(), |group, data| group.all_reduce(data, ReduceOp::Sum));
        thread::sleep(STEP_TIME);
        match mishap {
            Some(Misfortune::Panic) => panic!("the model is not finite"),
            Some(Misfortune::ExitZero) => std::process::exit(0),
            _ => {}
        }
        let mut second = second.to_vec();
        self.group.all_reduce(&mut second, ReduceOp::Sum)?;
        let mut gradient = under_way.wait()?;
        gradient.append(&mut second);
        model::update(&mut self.weights, &gradient);
        Ok(())
    }

    /// Rank 0 saves; the others continue when it is done.
    fn save(&self, step: u64) -> Result<(), BoxError> {
        if self.group.rank().get() == 0 {
            let weights = self.weights.clone();
            Checkpoint { step, weights }.save(&self.folder)?;
            println!("saved {step}");
        }
        Ok(self.group.barrier()?)
    }
}
