//! `bonfire plan`: what memory each rank of a training takes, from the shapes in a file of parameters.

mod shapes;

use std::cmp::Reverse;
use std::path::PathBuf;
use std::process::ExitCode;

use bonfire_config::{Config, OffloadTo, OptimizerKind};
use bonfire_plan::buckets::Caps;
use bonfire_plan::memory::{Evaluation, MemoryTable, Parameter, Training};
use bonfire_plan::{Axis, Bytes, Placement, WorldSize};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Plan memory: what each rank holds of a model, in each placement, and what fits.
///
/// FILE is a safetensors file, the index of several (.json), or a folder with either. Only shapes are read, and every
/// parameter counts as trained. What a model keeps of activations is not in any file: give it, as the plan of the program
/// measures it (see `bonfire::plan`), or count without.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// The parameters
    file: PathBuf,
    /// The configuration of the training: TOML, JSON, or DeepSpeed's JSON
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What comes after the file of configuration, such as batch.accumulation=4
    #[arg(value_name = "KEY=VALUE")]
    words: Vec<String>,
    /// Ranks that train together
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(1..=1 << 14))]
    ranks: u32,
    /// How many of them are on each host, for placements within hosts [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ranks_per_host: Option<u32>,
    /// What each rank may take, such as 24G or 80GiB
    #[arg(long, value_name = "BYTES")]
    memory: Option<Bytes>,
    /// The optimizer [default: that of the configuration, or adamw]
    #[arg(long, value_parser = moments_by_name())]
    optimizer: Option<u32>,
    /// What a forward and a backward pass of one micro-batch keep and need
    #[arg(long, value_name = "BYTES", default_value = "0")]
    activations: Bytes,
    /// What a process takes without a model
    #[arg(long, value_name = "BYTES", default_value = "0")]
    program: Bytes,
    /// Placements besides the four presets and that of the configuration, such as zero3@host or zero2-whole
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    placements: Vec<Placement>,
    /// Ranks take the whole model where parameters are sharded, for evaluations
    #[arg(long)]
    whole: bool,
}

/// Takes the name of an optimizer for its moments: of one that keeps as many for every parameter, as shapes do not say
/// which matrices are embedding tables; SGD with momentum is another.
fn moments_by_name() -> impl TypedValueParser<Value = u32> {
    let even = OptimizerKind::ALL.into_iter().filter(|kind| kind.matrix_moments().is_none());
    let mut all: Vec<_> = even.map(|kind| (kind.name(), kind.moments(None))).collect();
    all.push(("momentum", OptimizerKind::Sgd.moments(Some(0.9))));
    all.sort_by_key(|(_, moments)| Reverse(*moments));
    let values = all.clone().into_iter().map(|(name, moments)| {
        let kept = ["Nothing", "One moment", "Two moments"].get(moments as usize);
        PossibleValue::new(name).help(*kept.unwrap_or(&"More than two moments"))
    });
    PossibleValuesParser::new(values).map(move |given| {
        let found = all.iter().find(|(name, _)| *name == given);
        found.expect("a possible value is one of them").1
    })
}

/// Prints the table. Fails if no placement fits.
pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let table = table(args)?;
    let mut text = table.to_string();
    if args.activations == Bytes::default() {
        text += "without activations: give them with --activations\n";
    }
    crate::print(&text)?;
    let fits = table.fitting().next().is_some();
    Ok(if fits { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table(args: &PlanArgs) -> anyhow::Result<MemoryTable> {
    let config = Config::load(args.config.as_deref(), &args.words)?;
    // Muon keeps one moment of some matrices, and which these are is not in the file.
    let moments = args.optimizer.unwrap_or(match config.offload.optimizer {
        OffloadTo::Files(_) => 0,
        _ => config.optimizer.kind.moments(config.optimizer.momentum),
    });
    let parameters = shapes::read(&args.file)?.into_iter();
    let parameters = parameters.map(|(name, shape, dtype)| Parameter {
        name,
        shape,
        dtype,
        moments: dtype.is_float().then_some(moments),
    });
    let ranks = WorldSize::new(args.ranks)?;
    let grid = config.mesh.over(ranks)?;
    anyhow::ensure!(
        [Axis::Pp, Axis::Cp, Axis::Tp].iter().all(|axis| grid.size(*axis) == 1),
        "mesh={grid}: the shapes in a file do not say which rank has which part of them; leave pp, cp and tp out, or plan \
         in the program as the book's page on planning memory says"
    );
    let mut training = Training::new(parameters.collect(), ranks);
    training.ranks_per_host = match args.ranks_per_host {
        Some(ranks) => WorldSize::new(ranks)?,
        None => ranks,
    };
    if let Some(bytes_max) = config.gradients.bucket_bytes {
        let first_bytes_max = Caps::default().first_bytes_max.min(bytes_max);
        training.caps = Caps { first_bytes_max, bytes_max };
    }
    training.micro_batches = config.batch.accumulation.unwrap_or(1);
    training.activations = args.activations.into();
    training.program = args.program;
    if args.whole {
        training.evaluation = Evaluation::Whole;
    }
    let mut placements = Placement::presets().to_vec();
    for placement in args.placements.iter().chain([&config.placement]) {
        if !placements.contains(placement) {
            placements.push(*placement);
        }
    }
    Ok(training.table(placements, args.memory))
}
