//! The epochs. Every rank runs them with the same options and the same folder.
//!
//! Nothing is written before the first epoch is done, or the training is stopped. An error of one rank, or of all, is
//! reported by one rank: see `bonfire::all_or_none`.

use anyhow::{Result, ensure};
use bonfire::config::{Config, ConfigErrors};
use bonfire::data::PictureBatch;
use bonfire::ddp::Loss;
use bonfire::report::{EventWriter, WeightedMean};
use bonfire::trainer::{Parts, prepare};
use bonfire::world::StopRequest;
use bonfire::{World, all_or_none, trainer};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Int, Tensor};
use vision::networks::resnet::ResNet;
use vision::weights::save_epoch;

use crate::data::Data;
use crate::model::start;
use crate::options::Options;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Epoch {
    loss: f64,
    accuracy: f64,
    learning_rate: f64,
}

/// Trains on all ranks of `world`, from the beginning or from an interrupted training in the same folder, to the end
/// or until the ranks are asked to stop. Then they have saved their state, and it returns the exit code.
pub fn train(world: &World, options: &Options, data: &Data) -> Result<Option<u8>> {
    let stop = StopRequest::watch();
    let (parts, validation) = all_or_none(world, parts(world, options, data))?;
    let mut trainer = prepare(world, &config(options)?, parts.with_stop(stop))?;
    let is_trained =
        trainer.epochs() >= options.epochs.get() as u64 && !trainer.evaluation_is_due();
    let (to_learn, to_judge) = data.counts();
    let batch = options.global_batch(world.world_size());
    // Pictures that do not fill a step are left out.
    let in_steps = to_learn - to_learn % batch.samples();
    let headline = options.rate_rule().headline(batch, in_steps, options.lr);
    trainer.note(&format!("{to_learn} pictures to learn from, {to_judge} held out; {headline}"));
    trainer.note(&if is_trained {
        let epochs = trainer.epochs();
        format!("{epochs} epochs are trained already; give more --epochs, or another --out")
    } else {
        format!("curves: tensorboard --logdir {}", options.out.display())
    });
    let schedule = options.schedule(world.world_size());
    let mut curves = None;
    // Of the epoch's steps so far, over all ranks.
    let mut mean: WeightedMean = trainer.state()?.unwrap_or_default();
    loop {
        if trainer.evaluation_is_due() {
            let Some([accuracy]) = trainer.evaluate_or_stop(&validation, accuracy)? else {
                break;
            };
            let epoch = trainer.epochs() - 1;
            let loss = mean.local().unwrap_or(f64::NAN);
            let learning_rate = schedule.rate(epoch);
            trainer.note(&format!(
                "[epoch {epoch}] mean loss {loss:.3}, accuracy {accuracy:.3}, learning rate {learning_rate:.6}"
            ));
            let outcome = Epoch { loss, accuracy, learning_rate };
            let reported =
                if world.is_main() { report(epoch, outcome, &mut curves, options) } else { Ok(()) };
            all_or_none(world, reported)?;
            save_epoch(world, trainer.ddp(), &options.out, epoch)?;
            mean = WeightedMean::new();
            trainer.set_state(&mean)?;
            trainer.save(Some(accuracy))?;
        }
        let Some(batch) = trainer.next_batch()? else {
            break;
        };
        let samples = batch.labels.dims()[0];
        let done = trainer.step(batch, loss)?;
        // If it is not finite, all ranks end here.
        mean.add(done.loss.over_ranks(world)?, samples);
        trainer.set_state(&mean)?;
    }
    let code = trainer.stop_code();
    trainer.finish()?;
    Ok(code)
}

/// The network with the training pictures, and the validation pictures.
fn parts(
    world: &World,
    options: &Options,
    data: &Data,
) -> Result<(Parts<ResNet, PictureBatch>, trainer::Data<PictureBatch>)> {
    let (count, step) = (data.counts().0, options.global_batch(world.world_size()).samples());
    ensure!(
        count >= step,
        "{count} pictures to learn from are fewer than one step of {step} takes; choose a smaller \
         --batch-size or fewer ranks"
    );
    let model = start(options, world)?;
    let model =
        if options.sync_bn { bonfire::nn::convert_sync_batch_norm(model, world)? } else { model };
    let schedule = options.schedule(world.world_size());
    let parts = Parts::new(model, data.training(options, world)?)
        .with_optimizer(optimizer())
        .with_epoch_schedule(move |epoch| schedule.rate(epoch));
    Ok((parts, data.validation(options, world)?))
}

fn optimizer() -> ModuleOptimizer {
    // Burn's own default dampens; PyTorch's does not.
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    SgdConfig::new()
        .with_momentum(Some(momentum))
        .with_weight_decay(Some(WeightDecayConfig::new(5e-3)))
        .init()
}

fn config(options: &Options) -> Result<Config, ConfigErrors> {
    let mut config = Config::default().with_words([
        "data.drop_last=true",
        "checkpoints.keep=1",
        "checkpoints.best=highest",
    ])?;
    config.seed = options.seed;
    config.epochs = options.epochs.get() as u64;
    config.batch.micro = Some(options.batch_size.get() as u64);
    config.data.workers = options.workers.get();
    config.checkpoints.folder = Some(options.out.join("checkpoints"));
    Ok(config)
}

fn loss(model: &ResNet, PictureBatch { pictures, labels }: PictureBatch) -> Loss {
    let samples = labels.dims()[0];
    let scores = model.forward(pictures);
    let loss = CrossEntropyLossConfig::new().init(&scores.device());
    Loss::mean_over(loss.forward(scores, labels), samples)
}

/// The share of a batch's pictures whose class has the highest score.
fn accuracy(model: &ResNet, PictureBatch { pictures, labels }: PictureBatch) -> [f64; 1] {
    let samples = labels.dims()[0];
    let best: Tensor<1, Int> = model.forward(pictures).argmax(1).squeeze_dim(1);
    let right = best.equal(labels).int().sum().into_scalar::<i64>();
    [right as f64 / samples as f64]
}

/// Adds a point to each curve; their file is made for the first.
fn report(
    epoch: u64,
    outcome: Epoch,
    curves: &mut Option<EventWriter>,
    options: &Options,
) -> Result<()> {
    let Epoch { loss, accuracy, learning_rate } = outcome;
    let curves = match curves {
        Some(curves) => curves,
        none => none.insert(EventWriter::resume(&options.out, epoch)?),
    };
    curves.scalar("loss", epoch, loss)?;
    curves.scalar("accuracy", epoch, accuracy)?;
    curves.scalar("learning_rate", epoch, learning_rate)?;
    curves.flush()?;
    Ok(())
}
