//! The command line: sizes of the model, and a configuration.
//!
//! Each setting of the training is one key of a [`Config`], which checks it. A preset has the values that nothing sets.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use bonfire::config::{Config, ConfigArgs, Format};
use bonfire::plan::Bytes;
use clap::{Args, ValueEnum};

use crate::model::GptConfig;

/// Micro-batches of a step with `pp`, if nothing sets them.
const MICRO_BATCHES: u64 = 8;

/// What both presets have in common.
const PRESET: &str = r#"
    seed = 1337
    [optimizer]
    betas = [0.9, 0.99]
    weight_decay = 0.1
    no_decay = ["gamma"]
    [schedule]
    decay = "cosine"
    final_factor = 0.1
    [clip]
    norm = 1.0
    [checkpoints]
    every = 100
    [report]
    every = 20
    folder = "runs"
"#;

/// What can be set on the command line.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Text and model", allow_negative_numbers = true)]
pub struct TrainArgs {
    /// A UTF-8 text file to learn [default: this repository's own text]
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,

    /// Where the values of options that are not given come from
    #[arg(long, value_enum, default_value_t)]
    pub preset: Preset,

    /// Transformer blocks
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = size)]
    pub layers: usize,

    /// Attention heads in each block; must divide the width
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = size)]
    pub heads: usize,

    /// Width of the residual stream
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = size)]
    pub width: usize,

    /// Characters in a window, the furthest the model looks back
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = size)]
    pub context: usize,

    /// Keep only the inputs of the transformer blocks, and compute the rest again in the backward pass: less memory,
    /// more time, the same parameters
    #[arg(long)]
    pub checkpoint_blocks: bool,

    #[command(flatten)]
    pub keys: Keys,

    /// Largest norm of all gradients; 0 turns clipping off [default: 1]
    #[arg(long, value_name = "NORM", help_heading = "Training")]
    pub clip: Option<f64>,

    /// Equal parts of --batch whose gradients are added up; with pp they follow each other through the stages [default:
    /// 1, with pp 8]
    #[arg(long, value_name = "M", help_heading = "Training", value_parser = clap::value_parser!(u64).range(1..))]
    pub micro_batches: Option<u64>,

    /// The order in which ranks of pp work: gpipe, 1f1b, interleaved, zb_h1 or zbv, or auto, the fastest by the time
    /// that passes of this model take, with layers assigned by what each takes [default: 1f1b]
    #[arg(long, value_name = "NAME", help_heading = "Training")]
    pub schedule: Option<String>,

    /// What is not in the device's memory: none, the optimizer's state, or parameters, too (from a GPU with --placement
    /// zero3). From a GPU it goes to host memory, or to files in --offload-folder
    #[arg(long, help_heading = "Training", default_value = "none", value_parser = ["none", "optimizer", "parameters"])]
    pub offload: String,

    /// Folder whose disk takes the files, which are gone with the training
    #[arg(long, value_name = "FOLDER", default_value = "memory", help_heading = "Training")]
    pub offload_folder: String,

    /// CPU threads of each rank [default: the cores of the host, divided among its ranks]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Training")]
    pub threads: Option<u16>,

    #[command(flatten)]
    pub config: ConfigArgs,

    /// Show what memory each rank takes in each placement, and train nothing
    #[arg(long, help_heading = "Planning")]
    pub plan: bool,

    /// What each rank may take, such as 500M or 80GiB: the plan says what fits
    #[arg(long, value_name = "BYTES", help_heading = "Planning")]
    pub memory: Option<Bytes>,

    /// Validation windows in an evaluation, divided among the ranks
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one, help_heading = "Reporting")]
    pub eval_windows: usize,

    /// Characters of sample text at the end; 0 for none
    #[arg(long, value_name = "N", default_value_t = 400, help_heading = "Reporting")]
    pub sample: usize,

    /// Sampling temperature: below 1 safer text, above 1 wilder
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = positive, help_heading = "Reporting")]
    pub temperature: f64,
}

/// Declares options that set one key of the configuration each.
macro_rules! keys {
    ($($(#[$help:meta])+ $option:ident: $value:literal => $key:literal;)+) => {
        /// Options that set one key of the configuration each.
        #[derive(Debug, Clone, Default, Args)]
        #[command(next_help_heading = "Training", allow_negative_numbers = true)]
        pub struct Keys {
            $($(#[$help])+ #[arg(long, value_name = $value)] pub $option: Option<String>,)+
        }

        impl Keys {
            fn words(&self) -> impl Iterator<Item = String> {
                let all = [$(($key, &self.$option)),+].into_iter();
                all.filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?)))
            }
        }
    };
}

keys! {
    /// Windows in a step on EACH rank of dp; all of them together work on ranks x N [default: 6; nanogpt-cpu: 12]
    #[arg(value_parser = |text: &str| size(text).map(|windows| windows.to_string()))]
    batch: "N" => "batch.micro";
    /// Training steps [default: 600; nanogpt-cpu: 2000]
    steps: "N" => "steps";
    /// Highest learning rate [default: 0.001]
    learning_rate: "RATE" => "optimizer.lr";
    /// Steps over which the learning rate rises [default: 60; nanogpt-cpu: 100]
    warmup: "N" => "schedule.warmup_steps";
    /// adamw, sgd, lion (at a tenth of the learning rate) or muon (which needs whole matrices) [default: adamw]
    optimizer: "NAME" => "optimizer.kind";
    /// Decides the initial parameters, the windows drawn and the sample [default: 1337]
    seed: "N" => "seed";
    /// The way of gradients from rank to rank: auto (from device to device where that can be), host, device or nccl
    gradient_route: "NAME" => "gradients.route";
    /// The type of passes: f32, bf16 or f16 (with a loss scale); parameters stay f32 [default: f32]
    precision: "TYPE" => "precision.compute";
    /// What each rank holds: replicated (everything), zero1 (its rows of the optimizer's state), zero2 (of the
    /// gradients, too), zero3 (of the parameters, too), zero1-whole and zero2-whole (for Muon), hybrid; with @host, @N
    placement: "NAME" => "placement";
    /// How the ranks share the work: those of pp have the layers one behind the other, those of dp other windows, those
    /// of cp other characters of the same windows, those of tp parts of the same layers; -1 stands for the ranks left
    mesh: "pp=N,dp=N,cp=N,tp=N" => "mesh";
    /// Steps that each rank of dp_replicate takes alone between two exchanges of parameters (DiLoCo), for slow links;
    /// without --mesh all ranks are of dp_replicate [default: gradients are averaged in every step]
    local_steps: "N" => "diloco.local_steps";
    /// With --local-steps: the type in which parameters are sent, f32, bf16 or int8
    outer_gradients: "TYPE" => "diloco.outer_gradients";
    /// With --local-steps: the number of parts in which parameters are sent, one after the other
    fragments: "N" => "diloco.fragments";
    /// Folder of checkpoints: the training continues from the newest one there, on any mesh, and saves there
    checkpoints: "FOLDER" => "checkpoints.folder";
    /// Steps between two checkpoints; the end of the training is saved, too [default: 100]
    checkpoint_interval: "N" => "checkpoints.every";
    /// Steps between two evaluations [default: 100; nanogpt-cpu: 250]
    eval_interval: "N" => "evaluation.every";
    /// Steps between two progress lines [default: 20]
    log_interval: "N" => "report.every";
    /// FLOP/s that the device of each rank can do, such as 989e12: the report then has model FLOPs utilisation
    peak_flops: "FLOPS" => "report.peak_flops";
    /// Folder for the report, log.jsonl and TensorBoard's events; what an earlier run has left there is kept beside
    /// them [default: a new one, runs/TIME-gpt]
    report_dir: "FOLDER" => "report.folder";
}

/// A named set of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Preset {
    /// The sizes of nanoGPT's CPU setting, trained for a minute or two
    #[default]
    Quick,
    /// nanoGPT's CPU setting: 2000 steps; batch 12 is meant for one rank, so give 2 ranks --batch 6
    NanogptCpu,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub args: TrainArgs,
    pub config: Config,
}

impl TrainArgs {
    pub fn model(&self, vocabulary: usize) -> GptConfig {
        let Self { context, layers, heads, width, checkpoint_blocks, .. } = *self;
        GptConfig { vocabulary, context, layers, heads, width, checkpoint_blocks }
    }

    /// True if a trial finds the fastest schedule.
    pub fn tries_schedules(&self) -> bool {
        self.schedule.as_deref() == Some("auto")
    }

    /// The values of the preset, and those that follow from options.
    fn defaults(&self) -> Result<Config> {
        let (steps, warmup, evaluation) = match self.preset {
            Preset::Quick => (600, 60, 100),
            Preset::NanogptCpu => (2000, 100, 250),
        };
        let mut config = Config::default().with_file(PRESET, Format::Toml)?;
        config.steps = Some(steps);
        config.schedule.warmup_steps = warmup;
        config.evaluation.every = Some(evaluation);
        config.optimizer.momentum = (self.keys.optimizer.as_deref() == Some("sgd")).then_some(0.9);
        config.clip.norm = config.clip.norm.filter(|_| self.clip != Some(0.0));
        config.report.run_name = self.keys.report_dir.is_none().then(|| "gpt".to_owned());
        if self.keys.local_steps.is_some() {
            config.mesh = "dp_replicate=-1".parse()?;
        }
        Ok(config)
    }

    /// The options that are keys of the configuration.
    fn words(&self) -> Vec<String> {
        let clip = self.clip.filter(|norm| *norm != 0.0).map(|norm| format!("clip.norm={norm}"));
        let schedule = self.schedule.as_deref().filter(|name| *name != "auto");
        let schedule = schedule.map(|name| format!("pipeline.schedule={}", name.replace('-', "_")));
        let offload = format!("offload.{}={}", self.offload, self.offload_folder);
        let offload = (self.offload != "none").then_some(offload);
        self.keys.words().chain(clip).chain(schedule).chain(offload).collect()
    }
}

impl TryFrom<TrainArgs> for Settings {
    type Error = anyhow::Error;

    fn try_from(args: TrainArgs) -> Result<Self> {
        let TrainArgs { width, heads, .. } = args;
        ensure!(
            width % heads == 0,
            "--width {width} cannot be divided among --heads {heads}; choose a width that is a multiple of the heads"
        );
        let mut given = args.config.clone();
        given.words.splice(0..0, args.words());
        let mut config = given.load_over(args.defaults()?)?;
        let usual = if config.mesh.to_string().contains("pp=") { MICRO_BATCHES } else { 1 };
        let batch = &mut config.batch;
        if batch.total.is_none() && batch.micro.is_none() {
            batch.micro = Some(if args.preset == Preset::NanogptCpu { 12 } else { 6 });
        }
        if let (Some(windows), None) = (batch.micro, batch.accumulation) {
            let parts = args.micro_batches.unwrap_or(usual);
            ensure!(
                windows.is_multiple_of(parts),
                "--batch {windows} cannot be cut into {parts} equal micro-batches; choose a multiple of --micro-batches"
            );
            (batch.micro, batch.accumulation) = (Some(windows / parts), Some(parts));
        }
        Ok(Self { args, config })
    }
}

fn at_least_one(text: &str) -> Result<usize, &'static str> {
    text.parse().ok().filter(|number| *number > 0).ok_or("must be a whole number of at least 1")
}

/// Reads a size of a tensor. Products of several that are far larger cannot be counted, and no memory has them.
fn size(text: &str) -> Result<usize, &'static str> {
    let size = at_least_one(text).ok().filter(|size| *size <= 1 << 16);
    size.ok_or("must be a whole number from 1 to 65536")
}

fn positive(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0 && number.is_finite());
    number.ok_or("must be a number above 0")
}

#[cfg(test)]
mod tests;
