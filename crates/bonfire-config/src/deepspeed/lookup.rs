//! The configuration that values and defaults make.

use std::path::PathBuf;

use super::config::{DeepSpeedConfig, LossScale, Optimizer, Resolved, Rule, Zero};
use super::keys::{KEYS, Key, Kind, of_optimizer, of_scheduler};
use super::read::{Values, parsed};
use super::schedule::{OneCycle, Schedule, Warmup, WarmupShape};
use crate::batch::BatchSizes;
use crate::error::ConfigError;
use crate::json::Json;
use crate::settings::{OffloadTo, Precision, Wire};

/// Values of a file, none of them `"auto"`, and the table's defaults.
pub(crate) struct Lookup<'a> {
    pub(crate) values: &'a Values,
    pub(crate) optimizer: Option<&'static str>,
    pub(crate) scheduler: Option<&'static str>,
}

impl<'a> Lookup<'a> {
    pub(crate) fn new(values: &'a Values) -> Self {
        let named = |path: &str| {
            let key = KEYS.iter().find(|key| key.path == path)?;
            let (Kind::Text(known), Json::Text(name)) = (key.kind, values.found.get(path)?) else {
                return None;
            };
            known.iter().copied().find(|known| known.eq_ignore_ascii_case(name))
        };
        Self { optimizer: named("optimizer.type"), scheduler: named("scheduler.type"), values }
    }

    pub(crate) fn keys(&self) -> Vec<(String, Key)> {
        let of = |group: &'static str, keys: Option<&'static [Key]>| {
            let keys = keys.unwrap_or_default().iter();
            keys.map(move |key| (format!("{group}.params.{}", key.path), *key))
        };
        let plain = KEYS.iter().map(|key| (key.path.to_owned(), *key));
        plain
            .chain(of("optimizer", self.of_optimizer()))
            .chain(of("scheduler", self.scheduler.map(of_scheduler)))
            .filter(|(_, key)| key.kind != Kind::Open)
            .collect()
    }

    fn of_optimizer(&self) -> Option<&'static [Key]> {
        let name = self.optimizer?;
        let is = |key: &str, value: bool| {
            let found = self.values.found.get(&format!("optimizer.params.{key}"));
            found == Some(&Json::Bool(value))
        };
        let is_adamw = name == "AdamW" || !is("adam_w_mode", false);
        of_optimizer(name, is("torch_adam", true) && is_adamw)
    }

    fn json(&self, path: &str) -> Json {
        if let Some(found) = self.values.found.get(path) {
            return found.clone();
        }
        let keys = self.keys();
        let key = keys.iter().find(|(known, _)| known == path);
        parsed(key.map_or("null", |(_, key)| key.default))
    }

    fn number(&self, path: &str) -> Option<f64> {
        match self.json(path) {
            Json::Number(number) => Some(number),
            Json::Large(number) => Some(number as f64),
            _ => None,
        }
    }

    fn float(&self, path: &str) -> f64 {
        self.number(path).unwrap_or_default()
    }

    fn whole(&self, path: &str) -> u64 {
        self.float(path) as u64
    }

    fn some(&self, path: &str) -> Option<u64> {
        self.number(path).map(|number| number as u64)
    }

    fn is(&self, path: &str) -> bool {
        self.json(path) == Json::Bool(true)
    }

    fn text(&self, path: &str) -> Option<String> {
        match self.json(path) {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    fn pair(&self, path: &str) -> (f64, f64) {
        match self.json(path) {
            Json::List(values) => match values[..] {
                [Json::Number(one), Json::Number(other)] => (one, other),
                _ => (0.0, 0.0),
            },
            _ => (0.0, 0.0),
        }
    }

    fn wire(&self, path: &str) -> Wire {
        let name = self.text(path).unwrap_or_default().to_lowercase();
        match &name[..] {
            "fp16" => Wire::F16,
            "bf16" => Wire::Bf16,
            _ => Wire::Own,
        }
    }

    pub(crate) fn config(
        &self,
        resolved: Vec<Resolved>,
    ) -> Result<DeepSpeedConfig, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let optimizer = self.optimizer.map(|name| self.optimizer(name, &mut errors));
        let schedule = self.scheduler.and_then(|name| self.schedule(name, optimizer, &mut errors));
        let precision = self.precision(&mut errors);
        let zero = self.zero(&mut errors);
        let tensor_parallel = self.tensor_parallel(&mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(DeepSpeedConfig {
            batch: BatchSizes {
                train: self.some("train_batch_size"),
                micro: self.some("train_micro_batch_size_per_gpu"),
                accumulation: self.some("gradient_accumulation_steps"),
            },
            optimizer,
            schedule,
            gradient_clipping: self.float("gradient_clipping"),
            precision,
            loss_scale: (precision == Precision::F16).then(|| self.loss_scale()),
            skip_overflow: self.is("fp16.enabled")
                || self.is("bf16.enabled") && self.is("bf16.check_grad_overflow"),
            communication: self.wire("communication_data_type"),
            zero,
            pipeline_stages: self.some("pipeline.stages").map(ranks),
            tensor_parallel,
            cpu_checkpointing: self.is("activation_checkpointing.cpu_checkpointing"),
            steps_per_print: self.some("steps_per_print"),
            tensorboard: self.is("tensorboard.enabled").then(|| {
                let text = |path| self.text(path).unwrap_or_default();
                PathBuf::from(text("tensorboard.output_path")).join(text("tensorboard.job_name"))
            }),
            drop_last: self.is("dataloader_drop_last"),
            notes: self.values.notes.clone(),
            resolved,
        })
    }

    fn optimizer(&self, name: &str, errors: &mut Vec<ConfigError>) -> Optimizer {
        let at = |name: &str| format!("optimizer.params.{name}");
        let mut lr = self.float(&at("lr"));
        let (betas, eps) = (self.pair(&at("betas")), self.float(&at("eps")));
        let rule = match name {
            "SGD" => Rule::Sgd {
                momentum: self.float(&at("momentum")),
                dampening: self.float(&at("dampening")),
                nesterov: self.is(&at("nesterov")),
            },
            "Lion" => Rule::Lion { betas },
            "Muon" => {
                let rate = |own: &str, default: f64| {
                    let rates = [own, "lr"].map(|name| self.number(&at(name)));
                    rates.into_iter().flatten().next().unwrap_or(default)
                };
                let (matrices, others) = (rate("muon_lr", 0.02), rate("adam_lr", 3e-4));
                if matrices != others {
                    errors.push(ConfigError::Refused {
                        path: at("muon_lr"),
                        found: format!("{matrices} beside {others} of adam_lr"),
                        reason: "all parameters have one rate here; write one lr, without the two"
                            .to_owned(),
                    });
                }
                lr = matrices;
                Rule::Muon { momentum: self.float(&at("momentum")), betas, eps }
            }
            _ => {
                Rule::Adam { betas, eps, decoupled: name == "AdamW" || self.is(&at("adam_w_mode")) }
            }
        };
        Optimizer { rule, lr, weight_decay: self.float(&at("weight_decay")) }
    }

    fn schedule(
        &self,
        name: &str,
        optimizer: Option<Optimizer>,
        errors: &mut Vec<ConfigError>,
    ) -> Option<Schedule> {
        let at = |name: &str| format!("scheduler.params.{name}");
        let mut needed = |name: &str| {
            let found = self.number(&at(name));
            if found.is_none() {
                errors.push(ConfigError::Missing {
                    path: at(name),
                    advice: "the scheduler has no default for it".to_owned(),
                });
            }
            found
        };
        let shape = match self.text(&at("warmup_type")) {
            Some(text) if text.eq_ignore_ascii_case("linear") => WarmupShape::Linear,
            _ => WarmupShape::Log,
        };
        let warmup = Warmup { steps: self.whole(&at("warmup_num_steps")), shape };
        let min = self.float(&at("warmup_min_lr"));
        Some(match name {
            "WarmupLR" => {
                let own = self.number(&at("warmup_max_lr"));
                let max = match own.or(optimizer.map(|optimizer| optimizer.lr)) {
                    Some(max) => max,
                    None => needed("warmup_max_lr")?,
                };
                Schedule::Warmup { min, max, warmup }
            }
            "WarmupDecayLR" => Schedule::WarmupDecay {
                min,
                max: self.float(&at("warmup_max_lr")),
                warmup,
                total: needed("total_num_steps")? as u64,
            },
            "WarmupCosineLR" => {
                let total = needed("total_num_steps")? as u64;
                let Some(optimizer) = optimizer else {
                    errors.push(ConfigError::Missing {
                        path: "optimizer".to_owned(),
                        advice: "WarmupCosineLR multiplies its rate".to_owned(),
                    });
                    return None;
                };
                Schedule::WarmupCosine {
                    rate: optimizer.lr,
                    first: self.float(&at("warmup_min_ratio")),
                    last: self.float(&at("cos_min_ratio")),
                    warmup,
                    total,
                }
            }
            "OneCycle" => {
                let (low, high) = (needed("cycle_min_lr"), needed("cycle_max_lr"));
                self.one_cycle((low?, high?), errors)
            }
            _ => Schedule::RangeTest {
                min: self.float(&at("lr_range_test_min_lr")),
                step_size: self.whole(&at("lr_range_test_step_size")),
                step_rate: self.float(&at("lr_range_test_step_rate")),
                staircase: self.is(&at("lr_range_test_staircase")),
            },
        })
    }

    fn one_cycle(&self, rates: (f64, f64), errors: &mut Vec<ConfigError>) -> Schedule {
        let at = |name: &str| format!("scheduler.params.{name}");
        let up = self.whole(&at("cycle_first_step_size"));
        let stairs_up = self.whole(&at("cycle_first_stair_count"));
        let down = self.some(&at("cycle_second_step_size"));
        let stairs_down = self.some(&at("cycle_second_stair_count"));
        // DeepSpeed itself changes nothing where the optimizer has no betas.
        let has_betas = matches!(self.optimizer, Some("Adam" | "AdamW" | "Lion"));
        if has_betas && self.is(&at("cycle_momentum")) {
            errors.push(ConfigError::Refused {
                path: at("cycle_momentum"),
                found: "true".to_owned(),
                reason:
                    "betas stay as they are here; write false, and only the rate goes up and down"
                        .to_owned(),
            });
        }
        Schedule::OneCycle(OneCycle {
            rates,
            decay_rate: self.float(&at("decay_lr_rate")),
            steps: (up, down.unwrap_or(up)),
            stairs: (stairs_up, stairs_down.unwrap_or(stairs_up)),
            decay_steps: self.whole(&at("decay_step_size")),
        })
    }

    fn precision(&self, errors: &mut Vec<ConfigError>) -> Precision {
        let (f16, bf16) = (self.is("fp16.enabled"), self.is("bf16.enabled"));
        if f16 && bf16 {
            errors.push(ConfigError::Refused {
                path: "bf16.enabled".to_owned(),
                found: "true".to_owned(),
                reason: "fp16.enabled is true, too; choose one".to_owned(),
            });
        }
        match (f16, bf16) {
            (_, true) => Precision::Bf16,
            (true, false) => Precision::F16,
            (false, false) => Precision::F32,
        }
    }

    fn loss_scale(&self) -> LossScale {
        let fixed = self.float("fp16.loss_scale");
        if fixed != 0.0 {
            return LossScale::Fixed(fixed);
        }
        LossScale::Dynamic {
            initial: 2f64.powf(self.float("fp16.initial_scale_power")),
            window: self.whole("fp16.loss_scale_window"),
            hysteresis: self.whole("fp16.hysteresis"),
            consecutive_hysteresis: self.is("fp16.consecutive_hysteresis"),
            min: self.float("fp16.min_loss_scale"),
        }
    }

    /// The ranks of tensor parallelism. As in DeepSpeed, the second number must be 1 or the same.
    fn tensor_parallel(&self, errors: &mut Vec<ConfigError>) -> u32 {
        let size = self.whole("tensor_parallel.autotp_size");
        let again = self.whole("tensor_parallel.tp.tp_size");
        if ![1, size].contains(&again) {
            errors.push(ConfigError::Refused {
                path: "tensor_parallel.tp.tp_size".to_owned(),
                found: again.to_string(),
                reason: format!("tensor_parallel.autotp_size is {size}; give the number there"),
            });
        }
        ranks(size)
    }

    fn zero(&self, errors: &mut Vec<ConfigError>) -> Zero {
        let at = |name: &str| format!("zero_optimization.{name}");
        let stage = self.whole(&at("stage"));
        let offload = |name: &str, errors: &mut Vec<ConfigError>| {
            let device = self.text(&at(&format!("{name}.device"))).unwrap_or_default();
            let folder = at(&format!("{name}.nvme_path"));
            match (&device.to_lowercase()[..], self.text(&folder)) {
                ("cpu", _) => OffloadTo::Memory,
                ("nvme", Some(path)) => OffloadTo::Files(PathBuf::from(path)),
                ("nvme", None) => {
                    errors.push(ConfigError::Missing {
                        path: folder,
                        advice: "name a folder for the files".to_owned(),
                    });
                    OffloadTo::None
                }
                _ => OffloadTo::None,
            }
        };
        let offload_optimizer = offload("offload_optimizer", errors);
        let offload_param = offload("offload_param", errors);
        let needs = |what: &str, from: u64, errors: &mut Vec<ConfigError>| {
            errors.push(ConfigError::Refused {
                path: at(&format!("{what}.device")),
                found: self.text(&at(&format!("{what}.device"))).unwrap_or_default(),
                reason: format!("it needs stage {from}, and the stage is {stage}"),
            });
        };
        if offload_param != OffloadTo::None && stage < 3 {
            needs("offload_param", 3, errors);
        }
        if offload_optimizer != OffloadTo::None && stage < 1 {
            needs("offload_optimizer", 1, errors);
        }
        let hpz = self.whole(&at("zero_hpz_partition_size"));
        let mics = self.float(&at("mics_shard_size"));
        Zero {
            stage: stage as u8,
            reduce_bucket_size: self.whole(&at("reduce_bucket_size")),
            shard_among: match (hpz, mics) {
                (_, mics) if mics > 0.0 => Some(mics as u64),
                (hpz, _) if hpz > 1 => Some(hpz),
                _ => None,
            },
            offload_optimizer,
            offload_param,
        }
    }
}

/// No world has more, so that a larger number fits none either.
fn ranks(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
