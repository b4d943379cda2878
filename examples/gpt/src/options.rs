//! The command line: every size and rate, checked once.
//!
//! [`TrainArgs`] has the typed options; [`Settings`] has their meaning: a preset's values for missing options, sizes
//! above zero, heads that divide the width. Only `Settings` goes further.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;

use bonfire::ddp::{GradientRoute, Placement};
use bonfire::diloco::{DilocoConfig, OuterGradients};
use bonfire::optim::{Decay, Schedule};
use bonfire::parallel::schedule::Kind;
use bonfire::plan::Bytes;
use bonfire::report::{JournalConfig, ModelFlops};
use bonfire::world::MeshShape;
use clap::{Args, ValueEnum};

use crate::model::GptConfig;

const MICRO_BATCHES: NonZeroU32 = NonZeroU32::new(8).expect("8 is not 0");

/// What can be set on the command line. Sizes and rates not given come from the preset.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Text and model", allow_negative_numbers = true)]
pub struct TrainArgs {
    /// A UTF-8 text file to learn [default: this repository's own text]
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,

    /// Where the values of options that are not given come from
    #[arg(long, value_enum, default_value_t)]
    pub preset: Preset,

    /// Transformer blocks [default: 4]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub layers: Option<usize>,

    /// Attention heads in each block; must divide the width [default: 4]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub heads: Option<usize>,

    /// Width of the residual stream [default: 128]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub width: Option<usize>,

    /// Characters in a window, the furthest the model looks back [default: 64]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub context: Option<usize>,

    /// Windows in a step on EACH rank of dp; all of them together work on ranks x N
    /// [default: 6; nanogpt-cpu: 12]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "Training")]
    pub batch: Option<usize>,

    /// Training steps [default: 600; nanogpt-cpu: 2000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Training")]
    pub steps: Option<u64>,

    /// Highest learning rate [default: 0.001]
    #[arg(long, value_name = "RATE", value_parser = positive, help_heading = "Training")]
    pub learning_rate: Option<f64>,

    /// Last learning rate as a fraction of the highest [default: 0.1]
    #[arg(long, value_name = "F", value_parser = fraction, help_heading = "Training")]
    pub final_factor: Option<f64>,

    /// Steps over which the learning rate rises [default: 60; nanogpt-cpu: 100]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub warmup: Option<u64>,

    /// What turns gradients into changes of the parameters; Lion wants a learning rate of about a tenth
    #[arg(long, value_enum, default_value_t, help_heading = "Training")]
    pub optimizer: OptimizerKind,

    /// Decay of the first moment: AdamW's and Lion's first beta, SGD's momentum [default: 0.9]
    #[arg(long, value_name = "F", value_parser = decay, help_heading = "Training")]
    pub beta1: Option<f64>,

    /// Decay of the second moment: AdamW's and Lion's second beta [default: 0.99]
    #[arg(long, value_name = "F", value_parser = decay, help_heading = "Training")]
    pub beta2: Option<f64>,

    /// Weight decay, on matrices only; SGD's is an L2 penalty [default: 0.1]
    #[arg(long, value_name = "F", value_parser = not_negative, help_heading = "Training")]
    pub weight_decay: Option<f64>,

    /// Largest norm of the whole gradient; 0 turns clipping off [default: 1]
    #[arg(long, value_name = "NORM", value_parser = not_negative, help_heading = "Training")]
    pub clip: Option<f64>,

    /// Decides the initial parameters, the windows drawn and the sample [default: 1337]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub seed: Option<u64>,

    /// CPU threads of each rank [default: the cores of the host, divided among its ranks]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "Training")]
    pub threads: Option<usize>,

    /// Keep only the inputs of the transformer blocks, and compute the rest again in the backward pass: less
    /// memory, more time, the same parameters
    #[arg(long, help_heading = "Training")]
    pub checkpoint_blocks: bool,

    /// The way of gradients from rank to rank: auto (from device to device where that can be), host, device or
    /// nccl
    #[arg(long, value_name = "auto|host|device|nccl", default_value_t, help_heading = "Training")]
    pub gradient_route: GradientRoute,

    /// What each rank holds: replicated (everything), zero1 (its rows of the optimizer's state), zero2 (of the
    /// gradients, too) or zero3 (of the parameters, too); zero1-whole and zero2-whole deal whole parameters instead of
    /// rows, for Muon. With @host behind it within each host, with @N among each N ranks; hybrid is zero3@host
    #[arg(
        long,
        value_name = "replicated|zero1|zero2|zero3|hybrid|...",
        default_value_t,
        help_heading = "Training"
    )]
    pub placement: Placement,

    /// How the ranks share the work: those of pp have the layers one behind the other, those of dp other windows, those
    /// of cp other characters of the same windows, those of tp parts of the same layers and the same windows; -1 stands
    /// for the ranks that are left
    #[arg(long, value_name = "pp=N,dp=N,cp=N,tp=N", default_value_t, help_heading = "Training")]
    pub mesh: MeshShape,

    /// The order in which ranks of pp work: gpipe, 1f1b, interleaved, zb_h1 or zbv, or auto, the fastest by the time that
    /// passes of this model take, with layers assigned by what each takes [default: 1f1b]
    #[arg(long = "schedule", value_name = "NAME", help_heading = "Training")]
    pub pipeline_schedule: Option<Order>,

    /// Equal parts of --batch that follow each other through the stages of pp [default: 8]
    #[arg(long, value_name = "M", help_heading = "Training")]
    pub micro_batches: Option<NonZeroU32>,

    /// Steps that a rank takes alone between two exchanges of parameters (DiLoCo), for slow links [default: gradients
    /// travel in every step]. The ranks of dp_replicate take them each for itself, those of dp_shard together; without
    /// --mesh all ranks are of dp_replicate
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub local_steps: Option<NonZeroU64>,

    /// With --local-steps: the type in which parameters travel
    #[arg(long, value_name = "f32|bf16|int8", requires = "local_steps", help_heading = "Training")]
    pub outer_gradients: Option<OuterGradients>,

    /// With --local-steps: into how many parts the parameters are divided, which travel one after the other
    #[arg(long, value_name = "N", requires = "local_steps", help_heading = "Training")]
    pub fragments: Option<NonZeroUsize>,

    /// What is not in the device's memory, so that a larger model fits: none, the optimizer's state (from a GPU it goes
    /// to host memory, or to --offload-folder, and is stepped on the CPU), or parameters, too (from a GPU with
    /// --placement zero3). Burn's own optimizers and Muon keep theirs
    #[arg(long, value_enum, default_value_t, help_heading = "Training")]
    pub offload: OffloadKind,

    /// Folder whose disk takes the files; they have no names and are gone with the training [default on the CPU: that
    /// of temporary files]
    #[arg(long, value_name = "FOLDER", help_heading = "Training")]
    pub offload_folder: Option<PathBuf>,

    /// Folder of checkpoints: the training goes on from the last one there, on any mesh, and saves there
    #[arg(long, value_name = "FOLDER", help_heading = "Training")]
    pub checkpoints: Option<PathBuf>,

    /// Steps between two checkpoints; the end of the training is saved, too [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), requires = "checkpoints", help_heading = "Training")]
    pub checkpoint_interval: Option<u64>,

    /// Show what memory each rank takes in each placement, and train nothing
    #[arg(long, help_heading = "Planning")]
    pub plan: bool,

    /// What each rank may take, such as 500M or 80GiB: the plan says what fits
    #[arg(long, value_name = "BYTES", help_heading = "Planning")]
    pub memory: Option<Bytes>,

    /// Steps between two evaluations [default: 100; nanogpt-cpu: 250]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Reporting")]
    pub eval_interval: Option<u64>,

    /// Validation windows in an evaluation, divided among the ranks [default: 256]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "Reporting")]
    pub eval_windows: Option<usize>,

    /// Steps between two progress lines [default: 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Reporting")]
    pub log_interval: Option<u64>,

    /// Characters of sample text at the end; 0 for none [default: 400]
    #[arg(long, value_name = "N", help_heading = "Reporting")]
    pub sample: Option<usize>,

    /// Sampling temperature: below 1 safer text, above 1 wilder [default: 0.8]
    #[arg(long, value_name = "T", value_parser = positive, help_heading = "Reporting")]
    pub temperature: Option<f64>,

    /// FLOP/s that the device of each rank can do, such as 989e12: the report then has model FLOPs utilisation
    #[arg(long, value_name = "FLOPS", value_parser = positive, help_heading = "Reporting")]
    pub peak_flops: Option<f64>,

    /// Folder for report.txt, report.json, report.html with the curves, log.jsonl and TensorBoard's events; what an
    /// earlier run has left there is kept beside them [default: a new one, runs/TIME-gpt]
    #[arg(long, value_name = "FOLDER", help_heading = "Reporting")]
    pub report_dir: Option<PathBuf>,
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

/// An optimizer by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum OptimizerKind {
    /// AdamW in one pass over memory; the bits are those of Burn's
    #[default]
    Adamw,
    /// Burn's own AdamW
    BurnAdamw,
    /// Stochastic gradient descent with momentum
    Sgd,
    /// Lion: the sign of the momentum, and nothing else to keep
    Lion,
    /// Burn's Muon for the matrices of the blocks, AdamW for the rest; it needs whole matrices, so of the placements
    /// with shards it goes with zero1-whole and zero2-whole
    Muon,
}

/// What can be elsewhere than in the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum OffloadKind {
    /// Nothing
    #[default]
    None,
    /// The optimizer's state
    Optimizer,
    /// Parameters and the optimizer's state
    Parameters,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The text; `None` is this repository's own.
    pub data: Option<PathBuf>,
    /// The model's sizes, except the vocabulary's, which the text decides.
    pub model: ModelSizes,
    pub batch: usize,
    /// Learning rates; knows the number of steps.
    pub schedule: Schedule,
    pub steps: u64,
    pub optimizer: OptimizerSettings,
    pub offload: OffloadKind,
    pub offload_folder: Option<PathBuf>,
    pub checkpoint_blocks: bool,
    pub gradient_route: GradientRoute,
    pub placement: Placement,
    pub mesh: MeshShape,
    pub diloco: Option<DilocoConfig>,
    pub checkpoints: Option<PathBuf>,
    pub checkpoint_interval: u64,
    pub pipeline: PipelineSettings,
    pub seed: u64,
    pub reporting: Reporting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelSizes {
    pub layers: usize,
    /// Heads in each; divides the width.
    pub heads: usize,
    pub width: usize,
    pub context: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerSettings {
    pub kind: OptimizerKind,
    pub beta1: f32,
    pub beta2: f32,
    pub weight_decay: f32,
    /// Largest norm of the whole gradient, if it is bounded.
    pub clip: Option<f32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Named(Kind),
    Fastest,
}

impl FromStr for Order {
    type Err = <Kind as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Fastest),
            name => name.parse().map(Self::Named),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipelineSettings {
    pub order: Order,
    pub micro_batches: NonZeroU32,
}

impl Settings {
    pub fn micro_batch(&self) -> usize {
        self.batch / self.pipeline.micro_batches.get() as usize
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Reporting {
    pub eval_interval: u64,
    pub eval_windows: usize,
    pub log_interval: u64,
    pub sample: usize,
    pub temperature: f64,
    pub peak_flops: Option<f64>,
    /// Folder of the run; a new one if `None`.
    pub report_dir: Option<PathBuf>,
}

impl Reporting {
    pub const RUNS: &str = "runs";

    /// Makes a journal in the folder of the run, for a model with `flops_per_token`.
    pub fn journal(&self, config: JournalConfig, flops_per_token: f64) -> JournalConfig {
        let flops = ModelFlops::per_sample(flops_per_token);
        let config = config.with_flops(match self.peak_flops {
            Some(peak) => flops.with_peak(peak),
            None => flops,
        });
        match &self.report_dir {
            Some(folder) => config.with_folder(folder),
            None => config.with_new_folder(Self::RUNS, "gpt"),
        }
    }
}

impl fmt::Display for OptimizerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, beta1, beta2, weight_decay, clip } = self;
        let kind = kind.to_possible_value();
        let kind = kind.as_ref().map_or("", |kind| kind.get_name());
        write!(f, "{kind}, betas {beta1} and {beta2}, weight decay {weight_decay}")?;
        match clip {
            Some(norm) => write!(f, ", gradient norm at most {norm}"),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    #[error(
        "--width {width} cannot be divided among --heads {heads}; choose a width that is a \
         multiple of the heads"
    )]
    HeadsDoNotDivideWidth { width: usize, heads: usize },
    /// Burn's optimizers keep their state in memory.
    #[error("--offload needs an optimizer of one pass; choose --optimizer adamw, sgd or lion")]
    NoFiles,
    #[error("--offload-folder is for --offload optimizer or parameters; give both or neither")]
    FolderForNothing,
}

impl ModelSizes {
    pub fn config(self, vocabulary: usize) -> GptConfig {
        let Self { layers, heads, width, context } = self;
        GptConfig { vocabulary, context, layers, heads, width }
    }
}

impl TryFrom<TrainArgs> for Settings {
    type Error = OptionsError;

    fn try_from(args: TrainArgs) -> Result<Self, OptionsError> {
        let nanogpt = args.preset == Preset::NanogptCpu;
        let preset = |quick, nanogpt_cpu| if nanogpt { nanogpt_cpu } else { quick };
        let model = ModelSizes {
            layers: args.layers.unwrap_or(4),
            heads: args.heads.unwrap_or(4),
            width: args.width.unwrap_or(128),
            context: args.context.unwrap_or(64),
        };
        let ModelSizes { width, heads, .. } = model;
        if width % heads != 0 {
            return Err(OptionsError::HeadsDoNotDivideWidth { width, heads });
        }
        let offload_folder = offload_folder(&args)?;
        let diloco = diloco(&args);
        let mesh = match (diloco, args.mesh == MeshShape::default()) {
            (Some(_), true) => "dp_replicate=-1".parse().expect("an axis"),
            _ => args.mesh,
        };
        let clip = args.clip.unwrap_or(1.0) as f32;
        let steps = args.steps.unwrap_or(preset(600, 2000));
        let warmup = args.warmup.unwrap_or(preset(60, 100));
        Ok(Self {
            data: args.data,
            model,
            batch: args.batch.unwrap_or(if nanogpt { 12 } else { 6 }),
            schedule: Schedule::constant(args.learning_rate.unwrap_or(1e-3))
                .with_warmup(warmup)
                .with_decay(Decay::Cosine {
                    steps: steps.saturating_sub(warmup),
                    final_factor: args.final_factor.unwrap_or(0.1),
                }),
            steps,
            optimizer: OptimizerSettings {
                kind: args.optimizer,
                beta1: args.beta1.unwrap_or(0.9) as f32,
                beta2: args.beta2.unwrap_or(0.99) as f32,
                weight_decay: args.weight_decay.unwrap_or(0.1) as f32,
                clip: (clip > 0.0).then_some(clip),
            },
            offload: args.offload,
            offload_folder,
            checkpoint_blocks: args.checkpoint_blocks,
            gradient_route: args.gradient_route,
            placement: args.placement,
            mesh,
            diloco,
            checkpoints: args.checkpoints,
            checkpoint_interval: args.checkpoint_interval.unwrap_or(100),
            pipeline: PipelineSettings {
                order: args.pipeline_schedule.unwrap_or(Order::Named(Kind::OneForwardOneBackward)),
                micro_batches: args.micro_batches.unwrap_or(MICRO_BATCHES),
            },
            seed: args.seed.unwrap_or(1337),
            reporting: Reporting {
                eval_interval: args.eval_interval.unwrap_or(preset(100, 250)),
                eval_windows: args.eval_windows.unwrap_or(256),
                log_interval: args.log_interval.unwrap_or(20),
                sample: args.sample.unwrap_or(400),
                temperature: args.temperature.unwrap_or(0.8),
                peak_flops: args.peak_flops,
                report_dir: args.report_dir,
            },
        })
    }
}

fn diloco(args: &TrainArgs) -> Option<DilocoConfig> {
    let config = DilocoConfig::default().with_local_steps(args.local_steps?);
    let config = match args.fragments {
        Some(fragments) => config.with_fragments(fragments),
        None => config,
    };
    Some(match args.outer_gradients {
        Some(kind) => config.with_outer_gradients(kind),
        None => config,
    })
}

fn offload_folder(args: &TrainArgs) -> Result<Option<PathBuf>, OptionsError> {
    let burns = [OptimizerKind::BurnAdamw, OptimizerKind::Muon];
    match (args.offload, &args.offload_folder) {
        (OffloadKind::None, None) => Ok(None),
        (OffloadKind::None, Some(_)) => Err(OptionsError::FolderForNothing),
        _ if burns.contains(&args.optimizer) => Err(OptionsError::NoFiles),
        (_, folder) => Ok(folder.clone()),
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_string()),
        Ok(size) => Ok(size),
        Err(error) => Err(format!("{error}")),
    }
}

fn number(text: &str, wanted: &str, holds: impl Fn(f64) -> bool) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if holds(value) => Ok(value),
        _ => Err(format!("must be {wanted}")),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, "a number above 0", |value| value > 0.0 && value.is_finite())
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, "a number not below 0", |value| value >= 0.0 && value.is_finite())
}

fn fraction(text: &str) -> Result<f64, String> {
    number(text, "a number from 0 to 1", |value| (0.0..=1.0).contains(&value))
}

fn decay(text: &str) -> Result<f64, String> {
    number(text, "a number from 0 to below 1", |value| (0.0..1.0).contains(&value))
}

#[cfg(test)]
mod tests;
