//! The command line. The defaults are those of the tutorials' flowers program.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use bonfire::collective::WorldSize;
use bonfire::optim::{Decay, GlobalBatch, RateRule, Schedule};
use clap::{Args, ValueEnum};
use vision::networks::resnet::Depth;

/// What can be set.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Fine-tuning", allow_negative_numbers = true)]
pub struct Options {
    /// A folder with one sub-folder of pictures for each class
    #[arg(long, visible_alias = "data-path", value_name = "FOLDER")]
    pub data: PathBuf,

    /// Classes that the folder is expected to have
    #[arg(long, value_name = "N", default_value = "5", value_parser = count)]
    pub num_classes: NonZeroUsize,

    /// The share of each class that is held out to validate
    #[arg(long, value_name = "F", default_value_t = 0.2, value_parser = share)]
    pub held_out: f64,

    /// The network
    #[arg(long, value_enum, default_value = "resnet34")]
    pub arch: Arch,

    /// The side of the pictures that the network sees
    #[arg(long, value_name = "PIXELS", default_value = "224", value_parser = count)]
    pub size: NonZeroUsize,

    /// A file of pretrained parameters (.pth, .pt or .safetensors), of which those are taken that fit
    /// [default: none, the network starts from random ones]
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,

    /// Train the last layer only
    #[arg(long)]
    pub freeze_layers: bool,

    /// Normalise the batches of all ranks together, instead of each rank's own
    #[arg(long)]
    pub sync_bn: bool,

    /// Epochs
    #[arg(long, value_name = "N", default_value = "30", value_parser = count)]
    pub epochs: NonZeroUsize,

    /// Pictures in a step on EACH rank
    #[arg(long, value_name = "N", default_value = "16", value_parser = count)]
    pub batch_size: NonZeroUsize,

    /// The first learning rate
    #[arg(long, value_name = "RATE", default_value_t = 0.001, value_parser = positive)]
    pub lr: f64,

    /// The last learning rate as a fraction of the first
    #[arg(long, value_name = "F", default_value_t = 0.1, value_parser = share_or_end)]
    pub lrf: f64,

    /// Multiply the learning rate with the number of ranks
    #[arg(long)]
    pub scale_lr: bool,

    /// Threads of each rank that decode pictures
    #[arg(long, value_name = "N", default_value = "2", value_parser = count)]
    pub workers: NonZeroUsize,

    /// Decides the first parameters, the order and the transforms of pictures, and which are held out
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// The folder for checkpoints and TensorBoard's events; a training that was interrupted there
    /// goes on
    #[arg(long, value_name = "FOLDER", default_value = "runs")]
    pub out: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Arch {
    /// 18 layers, for pictures of 224 pixels
    Resnet18,
    /// 34 layers, for pictures of 224 pixels
    Resnet34,
    /// 50 layers, for pictures of 224 pixels
    Resnet50,
    /// 8 layers, for pictures of 32 pixels
    Resnet8,
    /// 20 layers, for pictures of 32 pixels
    Resnet20,
}

impl Arch {
    pub fn depth(self) -> Depth {
        match self {
            Self::Resnet18 => Depth::ResNet18,
            Self::Resnet34 => Depth::ResNet34,
            Self::Resnet50 => Depth::ResNet50,
            Self::Resnet8 => Depth::ResNet8,
            Self::Resnet20 => Depth::ResNet20,
        }
    }
}

impl Options {
    /// Returns learning rates by epoch: down half a cosine to `lrf` of the first.
    pub fn schedule(&self, world_size: WorldSize) -> Schedule {
        let rate = self.lr * self.rate_rule().factor(self.global_batch(world_size));
        Schedule::constant(rate)
            .with_decay(Decay::Cosine { steps: self.epochs.get() as u64, final_factor: self.lrf })
    }

    /// Returns the rule by which the learning rate follows the number of ranks.
    pub fn rate_rule(&self) -> RateRule {
        if self.scale_lr {
            // One rank's batch is the reference, so the factor is the number of ranks.
            RateRule::Linear { reference: self.batch_size }
        } else {
            RateRule::None
        }
    }

    pub fn global_batch(&self, world_size: WorldSize) -> GlobalBatch {
        GlobalBatch { world_size, batch_size: self.batch_size, accumulation: NonZeroUsize::MIN }
    }
}

/// Reads a size or a count. Products of several that are far larger cannot be counted, and no memory has them.
fn count(text: &str) -> Result<NonZeroUsize, &'static str> {
    let count = text.parse().ok().filter(|count: &NonZeroUsize| count.get() <= 1 << 16);
    count.ok_or("must be a whole number from 1 to 65536")
}

fn number(text: &str, wanted: &str, holds: impl Fn(f64) -> bool) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if holds(value) => Ok(value),
        _ => Err(format!("must be {wanted}")),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let holds = |value: f64| value > 0.0 && value.is_finite();
    number(text, "a number above 0", holds)
}

fn share(text: &str) -> Result<f64, String> {
    number(text, "a number between 0 and 1", |value| value > 0.0 && value < 1.0)
}

fn share_or_end(text: &str) -> Result<f64, String> {
    number(text, "a number from 0 to 1", |value| (0.0..=1.0).contains(&value))
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(line: &str) -> Options {
        let words = ["finetune"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap().options
    }

    #[test]
    fn the_rate_falls_as_in_the_tutorial() {
        let ranks = |count| WorldSize::new(count).unwrap();
        let plain = options("--data x").schedule(ranks(4));
        for epoch in 0..=30 {
            let cosine = (1.0 + (PI * epoch as f64 / 30.0).cos()) / 2.0;
            let expected = 0.001 * (cosine * (1.0 - 0.1) + 0.1);
            assert!((plain.rate(epoch) - expected).abs() < 1e-15, "epoch {epoch}");
        }
        let scaled = options("--data x --scale-lr --batch-size 7").schedule(ranks(4));
        assert!((scaled.rate(0) - 0.004).abs() < 1e-15);
    }

    #[test]
    fn a_size_that_nobody_can_allocate_does_not_panic() {
        for option in ["--num-classes", "--size", "--epochs", "--batch-size", "--workers"] {
            Line::try_parse_from(["finetune", "--data", "x", option, "65536"]).unwrap();
            for size in ["65537", "18446744073709551615", "18446744073709551616"] {
                let words = ["finetune", "--data", "x", option, size];
                let error = Line::try_parse_from(words).unwrap_err();
                assert_eq!(error.exit_code(), 2, "{words:?}");
                let message = error.to_string();
                assert!(message.contains(option) && message.contains("65536"), "{message}");
            }
        }
    }

    #[test]
    fn values_without_sense_are_refused() {
        for wrong in ["--held-out 1", "--lr 0", "--lrf 1.5", "--epochs 0", "--num-classes 0"] {
            let line = format!("finetune --data x {wrong}");
            assert!(Line::try_parse_from(line.split_whitespace()).is_err(), "{wrong}");
        }
    }
}
