//! That what a DeepSpeed file says reaches the training.

use std::collections::BTreeSet;

use bonfire_config::deepspeed::{DeepSpeedFile, KEYS, Program, Treatment};
use serde_json::{Value, json};

use super::*;

/// What a file asks for; nothing if it is refused.
fn config_of(file: &Value, folder: &str) -> Option<Config> {
    let text = file.to_string().replace("FOLDER", folder);
    let read = DeepSpeedFile::parse(&text).and_then(|file| file.resolve(&Program::default()));
    let config = Config::default().with_deepspeed(&read.ok()?).ok()?;
    Some(config.with_words(["epochs=4", "seed=3"]).unwrap())
}

/// What the training passes on as it is.
fn passed_on(config: &Config) -> String {
    format!(
        "{:?} {:?} {:?} {:?}",
        ddp_config(config),
        config.offload,
        config.report,
        recompute(config),
    )
}

/// A training, batch by batch: of stages, where the file has anything about a pipeline.
fn trained_by(file: &Value, config: &Config) -> String {
    if file.get("pipeline").is_some() {
        return pipelines::trained_by(config);
    }
    let batches = spawn(2, |world| {
        let parts = (linear(&world.device()), data(&world, 43));
        let mut trainer = prepare(&world, config, parts)?;
        let mut batches = Vec::new();
        while let Some(batch) = trainer.next_batch()? {
            let done = trainer.step(batch, loss)?;
            let scaler = trainer.progress.scaler.as_ref();
            let scale = scaler.map(LossScaler::scale_factor);
            batches.push((done.step, done.loss.value()?, scale));
        }
        let digest = trainer.ddp().digest()?;
        trainer.finish()?;
        Ok::<_, Error>(format!("{batches:?} {digest}"))
    });
    batches.map_or_else(|error| format!("{error:?}"), |batches| batches.concat())
}

/// Large enough to be cut, with a bias, which Muon leaves to Adam.
fn linear(device: &Device) -> Linear {
    Linear { bias: Some(Param::from_tensor(Tensor::zeros([700], device))), ..model(device) }
}

/// Values that a key may have beside the one that it has.
fn others(value: &Value) -> Vec<Value> {
    let numbers = |number: f64| {
        let all = [2.0 * number, number + 1.0, 0.5 * number, 2.0, 1e9];
        let whole = |number: f64| {
            if number.fract() == 0.0 { json!(number as i64) } else { json!(number) }
        };
        all.map(whole).to_vec()
    };
    let texts =
        ["cpu", "nvme", "linear", "fp16", "bf16", "SGD", "Lion", "LRRangeTest", "FOLDER/other"];
    match value {
        Value::Bool(is_on) => vec![json!(!is_on)],
        Value::Number(number) => numbers(number.as_f64().unwrap()),
        Value::Array(_) => vec![json!([0.5, 0.6])],
        // A folder.
        Value::String(text) if text.contains('/') => vec![json!(format!("{text}x"))],
        Value::String(_) => texts.map(Value::from).to_vec(),
        _ => [texts.map(Value::from).to_vec(), numbers(2.0)].concat(),
    }
}

/// The file with another value at a path.
fn with(file: &Value, path: &str, value: Value) -> Value {
    let mut changed = file.clone();
    let place = path.split('.').fold(&mut changed, |place, name| &mut place[name]);
    *place = value;
    changed
}

fn files() -> Vec<Value> {
    let file = |optimizer: Value, scheduler: Value, rest: Value| {
        let mut file = json!({
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 0.5,
            "optimizer": optimizer,
            "scheduler": scheduler,
        });
        for (name, value) in rest.as_object().unwrap() {
            file[name] = value.clone();
        }
        file
    };
    vec![
        file(
            json!({ "type": "Adam" }),
            json!({ "type": "WarmupLR" }),
            json!({ "train_micro_batch_size_per_gpu": null, "train_batch_size": 8 }),
        ),
        file(
            json!({ "type": "Adam", "params": { "lr": 0.01, "weight_decay": 0.1 } }),
            json!({ "type": "WarmupLR", "params": { "warmup_min_lr": 1e-3, "warmup_num_steps": 5 } }),
            json!({
                "steps_per_print": 3,
                "tensorboard": { "enabled": true, "output_path": "FOLDER/run", "job_name": "a" },
                "activation_checkpointing": { "cpu_checkpointing": false },
                "zero_optimization": { "stage": 1, "offload_optimizer": { "device": "none" } },
            }),
        ),
        file(
            json!({ "type": "AdamW", "params": { "lr": 0.01 } }),
            json!({ "type": "WarmupDecayLR", "params": { "total_num_steps": 20, "warmup_num_steps": 5 } }),
            json!({ "bf16": { "enabled": true } }),
        ),
        file(
            json!({ "type": "SGD", "params": { "lr": 0.01, "momentum": 0.5, "weight_decay": 0.1 } }),
            json!({ "type": "OneCycle", "params": {
                "cycle_min_lr": 1e-3, "cycle_max_lr": 0.01, "cycle_momentum": false, "cycle_first_step_size": 3,
                "decay_step_size": 2, "decay_lr_rate": 0.5,
            } }),
            json!({}),
        ),
        file(
            json!({ "type": "Lion", "params": { "lr": 0.01, "weight_decay": 0.1 } }),
            json!({ "type": "LRRangeTest", "params": { "lr_range_test_step_size": 3 } }),
            json!({ "zero_optimization": { "stage": 3, "offload_param": { "device": "none" } } }),
        ),
        file(
            json!({ "type": "Muon", "params": { "lr": 0.01, "weight_decay": 0.1 } }),
            json!({ "type": "WarmupCosineLR", "params": {
                "total_num_steps": 20, "warmup_num_steps": 5, "cos_min_ratio": 0.1,
            } }),
            json!({}),
        ),
        file(
            json!({ "type": "Adam", "params": { "lr": 0.01 } }),
            Value::Null,
            json!({ "zero_optimization": {
                "stage": 3,
                "offload_param": { "device": "nvme", "nvme_path": "FOLDER/files" },
                "offload_optimizer": { "device": "nvme", "nvme_path": "FOLDER/files" },
            } }),
        ),
        file(
            json!({ "type": "Adam", "params": { "lr": 0.01 } }),
            Value::Null,
            json!({ "gradient_accumulation_steps": 1, "fp16": {
                "enabled": true, "initial_scale_power": 30, "loss_scale_window": 2, "hysteresis": 2,
            } }),
        ),
        file(
            json!({ "type": "Adam", "params": { "lr": 0.01 } }),
            Value::Null,
            json!({ "pipeline": { "stages": 1 }, "tensor_parallel": { "autotp_size": 1 } }),
        ),
    ]
}

#[test]
fn every_key_that_is_taken_changes_the_training_or_has_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().display().to_string();
    // It shows after more overflows than these trainings have; the tests of the scaler are about it.
    let mut proven = BTreeSet::from(["fp16.consecutive_hysteresis".to_owned()]);
    let mut idle = BTreeSet::new();
    for file in files() {
        let text = file.to_string().replace("FOLDER", &folder);
        let read = DeepSpeedFile::parse(&text).unwrap();
        let resolved = read.resolve(&Program::default()).unwrap().resolved;
        let config = config_of(&file, &folder).unwrap();
        let training = trained_by(&file, &config);
        assert!(training.contains("Some(9)"), "it does not train: {training}");
        for value in resolved {
            let path = value.path;
            if proven.contains(&path) {
                continue;
            }
            let own = serde_json::from_str(&value.value).unwrap();
            for other in others(&own).into_iter().filter(|other| *other != own) {
                let Some(changed) = config_of(&with(&file, &path, other), &folder) else {
                    continue;
                };
                if is_without_effect(&path, &changed) {
                    break;
                }
                let reaches = passed_on(&changed) != passed_on(&config)
                    || trained_by(&file, &changed) != training;
                if reaches {
                    proven.insert(path);
                    break;
                }
                idle.insert(path.clone());
            }
        }
    }
    let idle: Vec<_> = idle.difference(&proven).collect();
    assert!(idle.is_empty(), "taken, but for nothing: {idle:?}");
    let used = KEYS.iter().filter(|key| key.treatment == Treatment::Used);
    let used = used.map(|key| key.path).filter(|path| !path.ends_with(".params"));
    let untried: Vec<_> = used.filter(|path| !proven.contains(*path)).collect();
    assert!(untried.is_empty(), "not tried: {untried:?}");
}

/// Whether a note says so, as of a key that is not [`Treatment::Used`].
fn is_without_effect(path: &str, config: &Config) -> bool {
    let key = KEYS.iter().find(|key| key.path == path);
    let is_used = key.is_some_and(|key| key.treatment == Treatment::Used);
    !is_used && config.notes.iter().any(|note| note.path == path)
}
