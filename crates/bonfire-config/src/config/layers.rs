//! Values put over those that are there, each checked by itself.

use bonfire_plan::nearest;
use serde_json::Value;

use super::Config;
use crate::deepspeed::Schedule;
use crate::error::{ConfigError, ConfigErrors};
use crate::json::Json;
use crate::source::Source;

pub(super) fn tree(config: &Config) -> Value {
    serde_json::to_value(config).expect("plain data can always be written")
}

pub(super) fn leaves(tree: &Value) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for (name, value) in tree.as_object().into_iter().flatten() {
        match value {
            Value::Object(_) => {
                let inner = leaves(value).into_iter();
                all.extend(inner.map(|(path, value)| (format!("{name}.{path}"), value)));
            }
            value => all.push((name.clone(), value.clone())),
        }
    }
    all
}

pub(super) fn with_file(config: Config, file: Json) -> Result<Config, ConfigErrors> {
    let Json::Object(entries) = file else {
        let cause = format!("it is {file} rather than an object");
        return Err(ConfigErrors(vec![ConfigError::Syntax { cause }]));
    };
    let mut values = Vec::new();
    flatten("", entries, &mut values);
    with_values(config, values, Source::File)
}

fn flatten(prefix: &str, entries: Vec<(String, Json)>, values: &mut Vec<Given>) {
    for (name, value) in entries {
        let path = format!("{prefix}{name}");
        match value {
            Json::Object(inner) => flatten(&format!("{path}."), inner, values),
            value => values.push(Given { path, value: plain(value), text: None }),
        }
    }
}

fn plain(value: Json) -> Value {
    match value {
        Json::Large(number) => Value::from(number),
        Json::Number(number)
            if number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0 =>
        {
            Value::from(number as i64)
        }
        // JSON has no such number: as nothing it would be what the key has by default.
        Json::Number(number) if !number.is_finite() => Value::from(number.to_string()),
        Json::Number(number) => Value::from(number),
        Json::Bool(value) => Value::from(value),
        Json::Text(text) => Value::from(text),
        Json::List(values) => values.into_iter().map(plain).collect(),
        Json::Null | Json::Object(_) => Value::Null,
    }
}

/// A configuration, changed by texts with the paths of their keys: values as in TOML, whose quotation marks may be left
/// out.
pub(super) fn with_texts(
    config: Config,
    texts: Vec<(String, String)>,
    source: Source,
) -> Result<Config, ConfigErrors> {
    let values = texts.into_iter().map(|(path, text)| Given {
        value: scalar(&text),
        text: Some(text),
        path,
    });
    with_values(config, values.collect(), source)
}

fn scalar(text: &str) -> Value {
    let parsed: Result<Json, _> = toml::from_str(&format!("value = {text}"));
    match parsed {
        Ok(Json::Object(mut entries)) if entries.len() == 1 => match entries.remove(0).1 {
            Json::Object(_) => Value::from(text),
            value => plain(value),
        },
        // Those of TOML end at that of i64.
        _ => text.parse::<u64>().map_or_else(|_| Value::from(text), Value::from),
    }
}

struct Given {
    path: String,
    value: Value,
    /// The original text, in which quotation marks may be left out: `2024` may be a folder.
    text: Option<String>,
}

fn with_values(
    mut config: Config,
    values: Vec<Given>,
    source: Source,
) -> Result<Config, ConfigErrors> {
    let mut tree = tree(&config);
    let keys: Vec<String> = leaves(&tree).into_iter().map(|(path, _)| path).collect();
    let mut seen: Vec<String> = Vec::new();
    let mut errors = Vec::new();
    for Given { path, value, text } in values {
        // On a command line the last one counts.
        if source == Source::File && seen.contains(&path) {
            errors.push(ConfigError::Duplicate { path });
            continue;
        }
        seen.push(path.clone());
        let Some(place) = leaf(&mut tree, &path) else {
            let mut error = unknown(path, &keys);
            if let (Source::Environment, ConfigError::UnknownKey { path, .. }) =
                (source, &mut error)
            {
                *path = format!("BONFIRE__{}", path.to_uppercase().replace('.', "__"));
            }
            errors.push(error);
            continue;
        };
        let before = std::mem::replace(place, value.clone());
        let mut put = |value: Value| {
            *leaf(&mut tree, &path).expect("it was there") = value;
            serde_json::from_value::<Config>(tree.clone())
        };
        let cause = put(value.clone()).err().filter(|_| {
            let text = text.map(|text| put(Value::from(text)));
            text.is_none_or(|read| read.is_err())
        });
        if let Some(cause) = cause {
            *leaf(&mut tree, &path).expect("it was there") = before;
            errors.push(ConfigError::Value {
                nearest: match &value {
                    Value::String(text) => nearest(text, quoted(&cause.to_string())),
                    _ => None,
                },
                found: value.to_string(),
                allowed: allowed(&cause.to_string()),
                path,
            });
            continue;
        }
        config.sources.insert(path, source);
    }
    if !errors.is_empty() {
        return Err(ConfigErrors(errors));
    }
    let plain: Config = serde_json::from_value(tree).expect("every value has been tried");
    check(&plain)?;
    let mut changed = Config { notes: config.notes, sources: config.sources, ..plain };
    let is_own = seen.iter().any(|path| path.starts_with("schedule."));
    changed.deepspeed_schedule = match config.deepspeed_schedule {
        Some(_) if is_own => {
            changed.note("scheduler", "keys of schedule came after the file, and take its place");
            None
        }
        Some(schedule) => Some(with_rate(schedule, config.optimizer.lr, &changed)?),
        None => None,
    };
    Ok(changed)
}

/// The rates of a DeepSpeed file, where `optimizer.lr`, their highest, was another before.
fn with_rate(schedule: Schedule, before: f64, config: &Config) -> Result<Schedule, ConfigErrors> {
    let rate = config.optimizer.lr;
    match (rate == before, before == 0.0) {
        (true, _) => Ok(schedule),
        (false, false) => Ok(schedule.scaled(rate / before)),
        (false, true) => Err(ConfigErrors(vec![ConfigError::Refused {
            path: "optimizer.lr".to_owned(),
            found: rate.to_string(),
            reason: "the rates of the file's scheduler are 0, and no factor makes others of them"
                .to_owned(),
        }])),
    }
}

pub(super) fn check(config: &Config) -> Result<(), ConfigErrors> {
    let mut errors = Vec::new();
    let mut must = |is_right: bool, path: &str, found: String, allowed: &str| {
        if !is_right {
            errors.push(ConfigError::Value {
                path: path.to_owned(),
                found,
                allowed: allowed.to_owned(),
                nearest: None,
            });
        }
    };
    let optimizer = &config.optimizer;
    for (path, number) in [
        ("optimizer.lr", Some(optimizer.lr)),
        ("optimizer.weight_decay", Some(optimizer.weight_decay)),
        ("optimizer.eps", Some(optimizer.eps)),
        ("schedule.final_factor", Some(config.schedule.final_factor)),
    ] {
        let number = number.unwrap_or_default();
        must(number.is_finite() && number >= 0.0, path, number.to_string(), "a number from 0");
    }
    for (path, number) in [
        ("clip.norm", config.clip.norm),
        ("clip.value", config.clip.value),
        ("precision.loss_scale", config.precision.loss_scale),
        ("precision.initial_scale", Some(config.precision.initial_scale)),
        ("precision.min_scale", Some(config.precision.min_scale)),
        ("report.peak_flops", config.report.peak_flops),
    ] {
        let number = number.unwrap_or(1.0);
        must(number.is_finite() && number > 0.0, path, number.to_string(), "a number above 0");
    }
    for (path, number) in [
        ("epochs", Some(config.epochs)),
        ("steps", config.steps),
        ("batch.total", config.batch.total),
        ("batch.micro", config.batch.micro),
        ("batch.accumulation", config.batch.accumulation),
        ("pipeline.stages_per_rank", config.pipeline.stages_per_rank.map(u64::from)),
        ("diloco.local_steps", config.diloco.local_steps),
        ("diloco.fragments", Some(config.diloco.fragments as u64)),
        ("evaluation.every", config.evaluation.every),
        ("checkpoints.every", config.checkpoints.every),
        ("checkpoints.keep", Some(config.checkpoints.keep as u64)),
        ("report.every", Some(config.report.every)),
    ] {
        must(number != Some(0), path, "0".to_owned(), "a whole number from 1");
    }
    let workers = config.data.workers;
    // Where the system has no room for more threads, the process is aborted.
    let is_right = (1..=1024).contains(&workers);
    must(is_right, "data.workers", workers.to_string(), "a whole number from 1 to 1024");
    let (one, other) = optimizer.betas.unwrap_or_default();
    let is_beta = |beta: f64| (0.0..1.0).contains(&beta);
    let (are_right, found) = (is_beta(one) && is_beta(other), format!("[{one}, {other}]"));
    must(are_right, "optimizer.betas", found, "two numbers from 0 and below 1");
    let (path, momentum) = ("optimizer.momentum", optimizer.momentum.unwrap_or_default());
    must(is_beta(momentum), path, momentum.to_string(), "a number from 0 and below 1");
    must(
        config.clip.norm.is_none() || config.clip.value.is_none(),
        "clip.value",
        "one of two".to_owned(),
        "for a training that clips by clip.norm; keep one of them",
    );
    if errors.is_empty() { Ok(()) } else { Err(ConfigErrors(errors)) }
}

/// The place of a value; `None` if there is no such key, or if it is a section's.
fn leaf<'a>(tree: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    let mut names = path.split('.');
    let place = names.try_fold(tree, |tree, name| tree.as_object_mut()?.get_mut(name))?;
    (!place.is_object()).then_some(place)
}

/// A key that does not exist, with the nearest that does: in its own section first.
fn unknown(path: String, keys: &[String]) -> ConfigError {
    let sections = || keys.iter().filter_map(|key| key.split_once('.')).map(|(section, _)| section);
    let found = match path.split_once('.') {
        None => nearest(&path, keys.iter().map(String::as_str).filter(|key| !key.contains('.')))
            .or_else(|| {
                nearest(
                    &path,
                    keys.iter().filter_map(|key| key.split_once('.')).map(|(_, name)| name),
                )
                .and_then(|name| {
                    keys.iter().find(|key| key.ends_with(&format!(".{name}"))).cloned()
                })
            }),
        Some((section, name)) => {
            let section = if sections().any(|known| known == section) {
                Some(section.to_owned())
            } else {
                nearest(section, sections())
            };
            section.and_then(|section| {
                let within =
                    keys.iter().filter_map(|key| key.strip_prefix(&section)?.strip_prefix('.'));
                nearest(name, within).map(|name| format!("{section}.{name}"))
            })
        }
    };
    ConfigError::UnknownKey { path, nearest: found }
}

/// Serde's expectation, without the value that it found.
fn allowed(cause: &str) -> String {
    match cause.rsplit_once("expected ") {
        Some((_, "f64")) => "a number".to_owned(),
        Some((_, "u32" | "u64" | "usize")) => "a whole number from 0".to_owned(),
        Some((_, expected)) => expected.replace('`', ""),
        None => format!("right: {cause}"),
    }
}

fn quoted(cause: &str) -> impl Iterator<Item = &str> {
    cause.split('`').skip(3).step_by(2)
}
