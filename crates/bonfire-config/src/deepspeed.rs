//! DeepSpeed's JSON configuration, read strictly.
//!
//! DeepSpeed itself takes unknown keys at the top for granted, and lets an unresolved `"auto"` become the
//! default. Here every key is known ([`KEYS`]): it is used, it has no effect and the notes say so once, or it is
//! refused with a reason. All errors of a file are reported at once, each with its path and the nearest name.
//!
//! ```
//! use bonfire_config::Precision;
//! use bonfire_config::deepspeed::{DeepSpeedFile, Program, Rule};
//!
//! let file = DeepSpeedFile::parse(
//!     r#"{
//!         "train_micro_batch_size_per_gpu": 4,
//!         "optimizer": { "type": "Adam", "params": { "lr": "auto" } },
//!         "bf16": { "enabled": true },
//!         "zero_optimization": { "stage": 2, "overlap_comm": true }
//!     }"#,
//! )?;
//! let mut program = Program::default();
//! program.learning_rate = Some(3e-4);
//! let config = file.resolve(&program)?;
//! let optimizer = config.optimizer.unwrap();
//! assert_eq!(optimizer.lr, 3e-4);
//! // DeepSpeed's Adam is AdamW.
//! assert!(matches!(optimizer.rule, Rule::Adam { decoupled: true, .. }));
//! assert_eq!(config.precision, Precision::Bf16);
//! assert_eq!(config.zero.stage, 2);
//! assert_eq!(config.batch.resolve(8)?.train, 32);
//! assert_eq!(config.notes.len(), 1);
//!
//! let error = DeepSpeedFile::parse(r#"{ "zero_optimization": { "stag": 2 } }"#).unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "zero_optimization.stag: there is no such key; zero_optimization.stage is the nearest"
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod keys;
mod lookup;
mod program;
mod read;
mod schedule;

use crate::error::ConfigErrors;
use crate::json::Json;

pub use config::{DeepSpeedConfig, LossScale, Optimizer, Resolved, Rule, Zero};
pub use keys::{KEYS, Key, Kind, Treatment};
pub use program::Program;
pub use read::Note;
pub use schedule::{OneCycle, Schedule, Warmup, WarmupShape};

/// A DeepSpeed file with valid keys and values; some may still be `"auto"`.
#[derive(Clone, Debug, PartialEq)]
pub struct DeepSpeedFile(read::Values);

impl DeepSpeedFile {
    /// Parses and checks the text of a file.
    ///
    /// # Errors
    /// All errors of the file.
    pub fn parse(text: &str) -> Result<Self, ConfigErrors> {
        let (values, mut errors) = read::read(Json::parse(text)?);
        if errors.is_empty() {
            return Ok(Self(values));
        }
        errors.extend(program::contradictions(&values, &errors));
        Err(ConfigErrors(errors))
    }

    /// Resolves each `"auto"` with the program's values.
    ///
    /// # Errors
    /// Each `"auto"` without a value from the program, each value that differs from the program's, and each conflict.
    pub fn resolve(&self, program: &Program) -> Result<DeepSpeedConfig, ConfigErrors> {
        program::resolve(&self.0, program)
    }
}
