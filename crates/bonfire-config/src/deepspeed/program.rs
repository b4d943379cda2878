//! The program's values for the `"auto"` of a file.

use super::config::{DeepSpeedConfig, Resolved};
use super::keys::Treatment;
use super::lookup::Lookup;
use super::read::{Values, parsed};
use crate::Source;
use crate::error::{ConfigError, ConfigErrors};
use crate::json::Json;
use crate::settings::{OffloadTo, Precision};

/// The program's values. For a field that is `None` the file decides.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Program {
    /// Samples of a forward pass, on one rank.
    pub micro_batch: Option<u64>,
    /// Forward passes of a step.
    pub accumulation: Option<u64>,
    /// The optimizer's rate, which is also the highest of a warm-up.
    pub learning_rate: Option<f64>,
    /// Decay rates of the optimizer's moments.
    pub betas: Option<(f64, f64)>,
    /// The optimizer's `eps`, added to a root.
    pub eps: Option<f64>,
    /// The optimizer's weight decay factor.
    pub weight_decay: Option<f64>,
    /// The largest norm of all gradients; 1.0 for an `"auto"` if the program gives none.
    pub max_grad_norm: Option<f64>,
    /// The number of warm-up steps.
    pub warmup_steps: Option<u64>,
    /// The number of all steps.
    pub total_steps: Option<u64>,
    /// The width of the model, from which the sizes of buckets follow. It is never guessed.
    pub hidden_size: Option<u64>,
    /// The data type of forward and backward passes. Parameters and moments keep 32 bits.
    pub precision: Option<Precision>,
    /// The stage of ZeRO, from 0 to 3.
    pub zero_stage: Option<u8>,
    /// The ranks among which the layers are cut into stages. An `"auto"` without it leaves the number to `mesh`.
    pub pipeline_stages: Option<u64>,
    /// The place of the optimizer's state.
    pub offload_optimizer: Option<OffloadTo>,
    /// The place of the parameters.
    pub offload_param: Option<OffloadTo>,
}

impl Program {
    /// The program's value for a key, and the name of the missing value.
    ///
    /// # Panics
    /// If the stage is above 3.
    fn says(&self, path: &str) -> (Option<Json>, &'static str) {
        let whole = |number: Option<u64>| number.map(|number| Json::Number(number as f64));
        let number = |number: Option<f64>| number.map(Json::Number);
        let is = |dtype| self.precision.map(|own| Json::Bool(own == dtype));
        let text = |text: &str| Json::Text(text.to_owned());
        let device = |to: &OffloadTo| match to {
            OffloadTo::None => text("none"),
            OffloadTo::Memory => text("cpu"),
            OffloadTo::Files(_) => text("nvme"),
        };
        let folder = |to: &Option<OffloadTo>| match to {
            Some(OffloadTo::Files(folder)) => Some(text(&folder.to_string_lossy())),
            _ => None,
        };
        assert!(self.zero_stage <= Some(3), "there is no such stage: {:?}", self.zero_stage);
        match path {
            "train_micro_batch_size_per_gpu" => (whole(self.micro_batch), "the micro-batch"),
            "gradient_accumulation_steps" => {
                (whole(self.accumulation), "the forward passes of a step")
            }
            "gradient_clipping" => {
                (number(Some(self.max_grad_norm.unwrap_or(1.0))), "the largest norm")
            }
            "optimizer.params.lr" | "scheduler.params.warmup_max_lr" => {
                (number(self.learning_rate), "the learning rate")
            }
            "optimizer.params.betas" => (
                self.betas
                    .map(|(one, other)| Json::List(vec![Json::Number(one), Json::Number(other)])),
                "the betas",
            ),
            "optimizer.params.eps" => (number(self.eps), "the epsilon"),
            "optimizer.params.weight_decay" => (number(self.weight_decay), "the weight decay"),
            "scheduler.params.warmup_min_lr" => (number(Some(0.0)), "nothing"),
            "scheduler.params.warmup_num_steps" => {
                (whole(self.warmup_steps), "the steps of the warm-up")
            }
            "scheduler.params.total_num_steps" => (whole(self.total_steps), "the number of steps"),
            "fp16.enabled" => (is(Precision::F16), "the precision"),
            "bf16.enabled" => (is(Precision::Bf16), "the precision"),
            "zero_optimization.reduce_bucket_size" => {
                (number(self.hidden_size.map(|size| (size as f64).powi(2))), "the hidden size")
            }
            "zero_optimization.stage" => (whole(self.zero_stage.map(u64::from)), "the stage"),
            "pipeline.stages" => (whole(self.pipeline_stages), "the number of stages"),
            "zero_optimization.offload_optimizer.device" => {
                (self.offload_optimizer.as_ref().map(device), "where the optimizer's state is")
            }
            "zero_optimization.offload_param.device" => {
                (self.offload_param.as_ref().map(device), "where parameters are")
            }
            "zero_optimization.offload_optimizer.nvme_path" => {
                (folder(&self.offload_optimizer), "a folder")
            }
            "zero_optimization.offload_param.nvme_path" => {
                (folder(&self.offload_param), "a folder")
            }
            _ => (None, "a value"),
        }
    }

    fn must_agree(&self, path: &str) -> bool {
        match path {
            "gradient_clipping" => self.max_grad_norm.is_some(),
            "scheduler.params.warmup_min_lr" => false,
            path => !path.starts_with("zero_optimization."),
        }
    }
}

/// Puts the program's values in the place of `"auto"`, and reports where the two differ.
pub(crate) fn resolve(values: &Values, program: &Program) -> Result<DeepSpeedConfig, ConfigErrors> {
    let auto = Json::Text("auto".to_owned());
    let mut errors = Vec::new();
    let mut full = values.clone();
    let is_in_file = |path: &str| values.found.contains_key(path);
    for (path, key) in Lookup::new(values).keys() {
        if !key.auto {
            continue;
        }
        let (said, needs) = program.says(&path);
        match values.found.get(&path) {
            // It follows from the other two, or is not needed.
            Some(found)
                if *found == auto
                    && (path == "train_batch_size"
                        || (path.ends_with(".nvme_path") || path == "pipeline.stages")
                            && said.is_none()
                        || matches!(key.treatment, Treatment::NoEffect(_))) =>
            {
                full.found.remove(&path);
            }
            Some(found) if *found == auto => match said {
                Some(said) => drop(full.found.insert(path, said)),
                None => errors.push(ConfigError::Unresolved { path, needs: needs.to_owned() }),
            },
            Some(found) => {
                let other = said.filter(|said| said != found && program.must_agree(&path));
                if let Some(said) = other {
                    errors.push(ConfigError::Disagrees {
                        path,
                        file: found.to_string(),
                        program: said.to_string(),
                    });
                }
            }
            None => {}
        }
    }
    let lookup = Lookup::new(&full);
    let resolved = lookup.keys().into_iter().map(|(path, key)| {
        let given = values.found.get(&path);
        let value = full.found.get(&path).or(given).cloned();
        Resolved {
            source: match given {
                None => Source::Default,
                Some(given) if *given == auto => Source::Program,
                Some(_) => Source::File,
            },
            value: value.unwrap_or_else(|| parsed(key.default)).to_string(),
            path,
        }
    });
    // A group that the file does not name has no values.
    let named = |path: &str| match path.rsplit_once('.') {
        Some((group, _)) => values.found.keys().any(|found| found.starts_with(group)),
        None => true,
    };
    let resolved = resolved.filter(|value| is_in_file(&value.path) || named(&value.path)).collect();
    match lookup.config(resolved) {
        Ok(config) if errors.is_empty() => Ok(config),
        Ok(_) => Err(ConfigErrors(errors)),
        Err(more) => {
            // What an "auto" was for is not missing, too.
            let is_new = |new: &ConfigError| errors.iter().all(|known| known.path() != new.path());
            let new: Vec<ConfigError> = more.into_iter().filter(is_new).collect();
            Err(ConfigErrors([errors, new].concat()))
        }
    }
}

/// Conflicts in a file that has errors already, in those of its groups that have none.
pub(crate) fn contradictions(values: &Values, errors: &[ConfigError]) -> Vec<ConfigError> {
    let group = |error: &ConfigError| {
        let path = error.path()?;
        path.split('.').next().map(str::to_owned)
    };
    let auto = Json::Text("auto".to_owned());
    let mut known = values.clone();
    known.found.retain(|_, value| *value != auto);
    let is_open = |error: &ConfigError| {
        let path = error.path().unwrap_or_default();
        values.found.get(path) == Some(&auto)
    };
    let is_new = |error: &ConfigError| {
        !is_open(error) && errors.iter().all(|other| group(other) != group(error))
    };
    let more = Lookup::new(&known).config(Vec::new()).err().unwrap_or_default();
    more.into_iter().filter(is_new).collect()
}
