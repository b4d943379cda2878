//! The epochs. Every rank runs them with the same options and the same folder.

use anyhow::{Result, ensure};
use bonfire::{
    Best, Checkpoints, Ddp, EventWriter, Keep, Loss, Milestone, PictureBatch, Prefetch, Prefetched,
    Schedule, Training, WeightedMean, World,
};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Int, Tensor};
use vision::config::{Config, OptimSection};
use vision::optimizer::sgd;
use vision::resnet::ResNet;

use crate::data::{Data, Share};
use crate::model::start;
use crate::options::Options;

/// What an epoch came to, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Epoch {
    loss: f64,
    accuracy: f64,
    learning_rate: f64,
}

/// Trains on all ranks of `world`, from the beginning or from where an interrupted training in the
/// same folder was.
pub fn train(world: &World, options: &Options, data: &Data) -> Result<()> {
    let mut training = data.training(options, world);
    let (to_learn, to_judge) = data.counts();
    let batch = options.global_batch(world.world_size());
    ensure!(
        training.loader.batches_per_epoch() > 0,
        "{to_learn} pictures to learn from are fewer than one step of {} takes; choose a smaller \
         --batch-size or fewer ranks",
        batch.samples()
    );
    let fresh = Training {
        model: start(options, world)?,
        optimizer: optimizer(),
        state: (),
    };
    let keep = Keep {
        last: 1,
        best: Some(Best::Highest),
    };
    let checkpoints = Checkpoints::open(world, options.out.join("checkpoints"), keep)?;
    let (resumed, milestone) = checkpoints.resume(fresh)?;
    let first = milestone.map_or(0, |milestone| milestone.step);
    if world.is_main() && first >= options.epochs.get() as u64 {
        println!("{first} epochs are trained already; give more --epochs, or another --out");
    }
    training.loader = training.loader.starting_at(first);
    let mut ddp = Ddp::new(resumed.model, world)?;
    let mut optimizer = resumed.optimizer;
    let schedule = options.schedule(world.world_size());
    let mut curves = match world.is_main() {
        true => {
            let headline = options.rate_rule().headline(batch, to_learn, options.lr);
            println!("{to_learn} pictures to learn from, {to_judge} held out; {headline}");
            println!("curves: tensorboard --logdir {}", options.out.display());
            Some(EventWriter::resume(&options.out, first)?)
        }
        false => None,
    };
    let mut validation = data.validation(options, world);
    for epoch in first..options.epochs.get() as u64 {
        let learning_rate = rate(&schedule, epoch);
        let loss = learn(
            &mut ddp,
            &mut optimizer,
            learning_rate,
            &mut training,
            options,
        )?;
        let model = ddp.module().valid();
        let outcome = Epoch {
            loss,
            accuracy: accuracy(&model, &mut validation, options, world)?,
            learning_rate,
        };
        if let Some(curves) = &mut curves {
            report(epoch, outcome, curves)?;
        }
        let milestone = Milestone {
            step: epoch + 1,
            metric: Some(outcome.accuracy),
        };
        checkpoints.save(milestone, ddp.module(), &optimizer, &())?;
    }
    Ok(())
}

fn rate(schedule: &Schedule, epoch: u64) -> f64 {
    schedule.rate(usize::try_from(epoch).unwrap_or(usize::MAX))
}

/// The tutorials' optimizer.
fn optimizer() -> ModuleOptimizer {
    sgd(&OptimSection {
        momentum: 0.9,
        dampening: 0.0,
        nesterov: false,
        weight_decay: 5e-3,
        ..Config::default().optim
    })
}

/// One epoch; the mean loss over all ranks. Stops all ranks at a loss that is not finite.
fn learn(
    ddp: &mut Ddp<ResNet>,
    optimizer: &mut ModuleOptimizer,
    learning_rate: f64,
    share: &mut Share,
    options: &Options,
) -> Result<f64> {
    let mut mean = WeightedMean::new();
    for prepared in prepared(share, options)? {
        let PictureBatch { pictures, labels } = prepared?.batch;
        let samples = pictures.dims()[0];
        let gradients = ddp.backward(|model| {
            let scores = model.forward(pictures);
            let loss = CrossEntropyLossConfig::new().init(&scores.device());
            Loss::mean_over(loss.forward(scores, labels), samples)
        })?;
        mean.add(ddp.global_loss()?, samples);
        ddp.step(optimizer, learning_rate, gradients);
    }
    // Of losses that are over all ranks already.
    Ok(mean.local().unwrap_or(f64::NAN))
}

/// The share of all held-out pictures, each counted once, whose class has the highest score.
fn accuracy(model: &ResNet, share: &mut Share, options: &Options, world: &World) -> Result<f64> {
    let mut mean = WeightedMean::new();
    for prepared in prepared(share, options)? {
        let PictureBatch { pictures, labels } = prepared?.batch;
        let samples = pictures.dims()[0];
        let best: Tensor<1, Int> = model.forward(pictures).argmax(1).squeeze_dim(1);
        let right = best.equal(labels).int().sum().into_scalar::<i64>();
        mean.add(right as f64 / samples as f64, samples);
    }
    Ok(mean.over_ranks(world.group())?.unwrap_or(f64::NAN))
}

/// The batches of the next epoch, made on threads.
fn prepared(share: &mut Share, options: &Options) -> Result<Prefetched<PictureBatch>> {
    let workers = options.workers.get();
    let config = Prefetch {
        workers,
        depth: 2 * workers,
        ..Prefetch::default()
    };
    let (batches, epoch) = (share.batches.clone(), share.loader.epoch());
    let prepare = move |indices: &[usize]| batches.batch(epoch, indices);
    Ok(share.loader.next_epoch().prefetch(config, prepare)?)
}

fn report(epoch: u64, outcome: Epoch, curves: &mut EventWriter) -> Result<()> {
    let Epoch {
        loss,
        accuracy,
        learning_rate,
    } = outcome;
    println!(
        "[epoch {epoch}] mean loss {loss:.3}, accuracy {accuracy:.3}, learning rate {learning_rate:.6}"
    );
    curves.scalar("loss", epoch, loss)?;
    curves.scalar("accuracy", epoch, accuracy)?;
    curves.scalar("learning_rate", epoch, learning_rate)?;
    curves.flush()?;
    Ok(())
}
