//! Bonfire's own configuration: defaults, then a file, then the environment, then words of the command line.

mod from_deepspeed;
mod layers;
mod refusals;
mod sections;

use std::collections::BTreeMap;
use std::path::Path;

use bonfire_plan::{MeshShape, Placement};
use serde::{Deserialize, Serialize};

use crate::batch::{BatchSizes, Batches};
use crate::deepspeed::{self, DeepSpeedFile, KEYS, Note, Program};
use crate::error::{ConfigError, ConfigErrors};
use crate::json::Json;
use crate::source::Source;

pub use sections::{
    BatchSection, Best, CheckpointSection, ClipSection, DataSection, DecayKind, DilocoSection,
    EvaluationSection, GradientSection, KeptIn, MuonScale, OffloadSection, OptimizerKind,
    OptimizerSection, PipelineSection, PrecisionSection, ReportSection, ScheduleSection,
};

/// The format of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// A file in TOML format.
    Toml,
    /// A file in JSON format.
    Json,
}

/// The settings of a training. Every field is a key, or a section of keys, of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Config {
    /// Seeds the order of the data, and what the program draws itself.
    pub seed: u64,
    /// The number of passes over the data.
    pub epochs: u64,
    /// Steps of the optimizer, instead of epochs.
    pub steps: Option<u64>,
    /// The distribution of parameters, gradients and the optimizer's state: `replicated`, `zero1`, `zero2`, `zero3`,
    /// `hybrid`, and so on.
    pub placement: Placement,
    /// The mesh of the ranks: `dp_replicate=2,dp_shard=-1` and so on.
    pub mesh: MeshShape,
    /// The schedule by which the ranks of `pp` run their stages.
    pub pipeline: PipelineSection,
    /// The number of samples in a step.
    pub batch: BatchSection,
    /// The distribution of samples to the ranks.
    pub data: DataSection,
    /// The optimizer, where the program brings none.
    pub optimizer: OptimizerSection,
    /// The learning rate, where the program brings none.
    pub schedule: ScheduleSection,
    /// The data type of forward and backward passes. Parameters and moments keep 32 bits.
    pub precision: PrecisionSection,
    /// Limits the size of gradients.
    pub clip: ClipSection,
    /// The route, the data type and the buckets in which gradients are communicated.
    pub gradients: GradientSection,
    /// Training over slow links, with few exchanges.
    pub diloco: DilocoSection,
    /// The state that is kept outside of device memory.
    pub offload: OffloadSection,
    /// When a training is evaluated.
    pub evaluation: EvaluationSection,
    /// When and where checkpoints are written.
    pub checkpoints: CheckpointSection,
    /// The title, the folder and the frequency of reports.
    pub report: ReportSection,
    /// The learning rates of a DeepSpeed file, in the place of `schedule`, until a later source sets a key of it.
    /// `optimizer.lr` is the highest of them, and another one multiplies them all.
    #[serde(skip)]
    deepspeed_schedule: Option<deepspeed::Schedule>,
    /// Keys of a DeepSpeed file that have no effect.
    #[serde(skip)]
    pub notes: Vec<Note>,
    #[serde(skip)]
    sources: BTreeMap<String, Source>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 0,
            epochs: 1,
            steps: None,
            placement: Placement::replicated(),
            mesh: MeshShape::default(),
            pipeline: PipelineSection::default(),
            batch: BatchSection::default(),
            data: DataSection::default(),
            optimizer: OptimizerSection::default(),
            schedule: ScheduleSection::default(),
            precision: PrecisionSection::default(),
            clip: ClipSection::default(),
            gradients: GradientSection::default(),
            diloco: DilocoSection::default(),
            offload: OffloadSection::default(),
            evaluation: EvaluationSection::default(),
            checkpoints: CheckpointSection::default(),
            report: ReportSection::default(),
            deepspeed_schedule: None,
            notes: Vec::new(),
            sources: BTreeMap::new(),
        }
    }
}

impl Config {
    /// The defaults, changed by a file if there is one, by the environment, and by `KEY=VALUE` words, in this order.
    ///
    /// A file that ends with `.toml` is TOML, any other is JSON: Bonfire's own, or DeepSpeed's, which is recognised by
    /// its keys. In the environment `BONFIRE__OPTIMIZER__LR` is `optimizer.lr`.
    ///
    /// # Errors
    /// All errors of the first of the three sources that has any.
    pub fn load<W: AsRef<str>>(
        file: Option<&Path>,
        words: impl IntoIterator<Item = W>,
    ) -> Result<Self, ConfigErrors> {
        Self::default().load_over(file, words)
    }

    /// As [`load`](Self::load), over a program's own defaults.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_over<W: AsRef<str>>(
        self,
        file: Option<&Path>,
        words: impl IntoIterator<Item = W>,
    ) -> Result<Self, ConfigErrors> {
        let config = match file {
            Some(file) => self.with_path(file)?,
            None => self,
        };
        config.with_environment(std::env::vars())?.with_words(words)
    }

    fn with_path(self, file: &Path) -> Result<Self, ConfigErrors> {
        let text = std::fs::read_to_string(file).map_err(|error| {
            ConfigErrors(vec![ConfigError::Unreadable {
                file: file.to_owned(),
                cause: error.to_string(),
            }])
        })?;
        let is_toml = file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml"));
        if is_toml {
            self.with_file(&text, Format::Toml)
        } else if is_deepspeeds(&text) {
            let file = DeepSpeedFile::parse(&text)?;
            self.with_deepspeed(&file.resolve(&Program::default())?)
        } else {
            self.with_file(&text, Format::Json)
        }
    }

    /// Applies the text of a file in Bonfire's own format.
    ///
    /// # Errors
    /// All errors of the file.
    pub fn with_file(self, text: &str, format: Format) -> Result<Self, ConfigErrors> {
        let json = match format {
            Format::Json => Json::parse(text),
            Format::Toml => toml::from_str::<Json>(text).map_err(|error| {
                let cause = error.to_string();
                ConfigErrors(vec![ConfigError::Syntax { cause }])
            }),
        };
        layers::with_file(self, json?)
    }

    /// Applies the environment variables that begin with `BONFIRE__`: `BONFIRE__OPTIMIZER__LR=1e-3`.
    ///
    /// # Errors
    /// All errors of the variables.
    pub fn with_environment(
        self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        let values = variables.into_iter().filter_map(|(name, value)| {
            let name = name.strip_prefix("BONFIRE__")?;
            Some((name.to_lowercase().replace("__", "."), value))
        });
        layers::with_texts(self, values.collect(), Source::Environment)
    }

    /// Applies words of the command line: `optimizer.lr=1e-3`, `placement=zero2`, `checkpoints.folder=runs/a`.
    ///
    /// # Errors
    /// All errors of the words.
    pub fn with_words<W: AsRef<str>>(
        self,
        words: impl IntoIterator<Item = W>,
    ) -> Result<Self, ConfigErrors> {
        let mut values = Vec::new();
        let mut errors = Vec::new();
        for word in words {
            match word.as_ref().split_once('=') {
                Some((key, value)) => values.push((key.to_owned(), value.to_owned())),
                None => errors.push(ConfigError::Missing {
                    path: word.as_ref().to_owned(),
                    advice: "write KEY=VALUE, such as optimizer.lr=1e-3".to_owned(),
                }),
            }
        }
        if errors.is_empty() {
            layers::with_texts(self, values, Source::CommandLine)
        } else {
            Err(ConfigErrors(errors))
        }
    }

    /// Returns all three batch sizes for `ranks` ranks.
    ///
    /// # Errors
    /// [`ConfigError::Batch`] if they do not multiply, [`ConfigError::Missing`] if none is set.
    pub fn batches(&self, ranks: u64) -> Result<Batches, ConfigErrors> {
        let BatchSection { total, micro, accumulation } = self.batch;
        let sizes = BatchSizes { train: total, micro, accumulation };
        sizes.resolve(ranks).map_err(|error| {
            ConfigErrors(vec![match error {
                ConfigError::Missing { .. } => ConfigError::Missing {
                    path: "batch.micro".to_owned(),
                    advice: "give it, or batch.total".to_owned(),
                },
                ConfigError::Batch { cause, .. } => {
                    ConfigError::Batch { path: "batch.total".to_owned(), cause }
                }
                other => other,
            }])
        })
    }

    /// Returns the learning rate by the step of the optimizer, counted from 0, of a training of `steps` steps: that of
    /// `schedule`, or of the scheduler of a DeepSpeed file.
    pub fn rates(&self, steps: u64) -> impl Fn(u64) -> f64 + Send + Sync + use<> {
        let own = self.schedule.to(self.optimizer.lr, steps);
        let theirs = self.deepspeed_schedule;
        move |step| match theirs {
            Some(schedule) => schedule.rate(step),
            None => own.rate(step),
        }
    }

    /// Returns the source of the value of `key`; [`Source::Default`] if nothing has set it.
    pub fn source(&self, key: &str) -> Source {
        self.sources.get(key).copied().unwrap_or(Source::Default)
    }

    /// Returns every key with its value as JSON and the source of the value.
    pub fn resolved(&self) -> Vec<deepspeed::Resolved> {
        let leaves = layers::leaves(&layers::tree(self));
        let resolved = leaves.into_iter().map(|(path, value)| deepspeed::Resolved {
            source: self.source(&path),
            value: value.to_string(),
            path,
        });
        resolved.collect()
    }
}

/// Returns true if the text of a JSON file is DeepSpeed's rather than Bonfire's own: it has a key that only DeepSpeed
/// has.
pub fn is_deepspeeds(text: &str) -> bool {
    let Ok(Json::Object(entries)) = Json::parse(text) else {
        return false;
    };
    let own = layers::tree(&Config::default());
    let is_theirs = |name: &String| {
        let in_theirs = |path: &str| path.split('.').next() == Some(name);
        own.get(name).is_none() && KEYS.iter().any(|key| in_theirs(key.path))
    };
    entries.iter().any(|(name, _)| is_theirs(name))
}

#[cfg(test)]
mod tests;
