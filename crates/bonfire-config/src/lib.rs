//! The configuration of a training, read strictly.
//!
//! [`Config`] is Bonfire's own: a file of TOML or JSON, changed by variables of the environment, then by `KEY=VALUE`
//! words of the command line. [`deepspeed`] reads DeepSpeed's JSON, which [`Config`] takes, too. A key that does not
//! exist is an error with the nearest one that does, and every value knows its source.
//!
//! ```
//! # mod bonfire { pub mod config { pub use bonfire_config::*; } }
//! use bonfire::config::{Config, Format, Source};
//!
//! let file = r#"
//!     epochs = 3
//!     placement = "zero2"
//!
//!     [batch]
//!     micro = 8
//!
//!     [optimizer]
//!     lr = 3e-4
//! "#;
//! let config = Config::default()
//!     .with_file(file, Format::Toml)?
//!     .with_words(["optimizer.lr=1e-3", "batch.accumulation=4"])?;
//! assert_eq!(config.optimizer.lr, 1e-3);
//! assert_eq!(config.source("optimizer.lr"), Source::CommandLine);
//! assert_eq!(config.batches(2)?.train, 64);
//!
//! let error = Config::default().with_words(["optimiser.lr=1"]).unwrap_err();
//! assert_eq!(error.to_string(), "optimiser.lr: there is no such key; optimizer.lr is the nearest");
//! # Ok::<(), bonfire_config::ConfigErrors>(())
//! ```

#![forbid(unsafe_code)]

mod batch;
mod config;
pub mod deepspeed;
mod error;
mod json;
mod settings;
mod source;

pub use batch::{BatchSizes, Batches};
pub use config::{
    BatchSection, Best, CheckpointSection, ClipSection, Config, DataSection, DecayKind,
    DilocoSection, EvaluationSection, Format, GradientSection, KeptIn, MuonScale, OffloadSection,
    OptimizerKind, OptimizerSection, PipelineSection, PrecisionSection, ReportSection,
    ScheduleSection, is_deepspeeds,
};
pub use error::{ConfigError, ConfigErrors};
pub use settings::{OffloadTo, OuterGradients, Precision, Route, Wire};
pub use source::Source;
