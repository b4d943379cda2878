//! Reads a file against the table of keys.

use std::collections::{BTreeMap, BTreeSet};

use bonfire_plan::nearest;

use super::keys::{ALIASES, KEYS, Key, Kind, SWITCHES, Treatment, of_optimizer, of_scheduler};
use crate::error::ConfigError;
use crate::json::Json;

/// A remark on a file that is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Note {
    /// The path of the key, with dots.
    pub path: String,
    /// The reason why the key has no effect, or its new name.
    pub text: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Values {
    pub(crate) found: BTreeMap<String, Json>,
    pub(crate) notes: Vec<Note>,
}

/// Reads a file: what is right in it, and each key that is wrong by itself.
pub(crate) fn read(file: Json) -> (Values, Vec<ConfigError>) {
    let mut reader = Reader::default();
    match file {
        Json::Object(entries) => reader.group("", entries),
        other => reader
            .errors
            .push(ConfigError::Syntax { cause: format!("it is {other} rather than an object") }),
    }
    (reader.values, reader.errors)
}

#[derive(Default)]
struct Reader {
    values: Values,
    errors: Vec<ConfigError>,
}

impl Reader {
    /// The entries of an object at a path, which ends with a dot unless it is the complete file.
    fn group(&mut self, prefix: &str, entries: Vec<(String, Json)>) {
        let mut seen = BTreeSet::new();
        // What the keys of the parameters are depends on it.
        let kind = entries.iter().find_map(|(name, value)| match value {
            Json::Text(kind) if name == "type" => Some(kind.clone()),
            _ => None,
        });
        for (name, value) in entries {
            let path = format!("{prefix}{name}");
            let path = match ALIASES.iter().find(|(old, _)| in_group(old, &path)) {
                Some((old, new)) => {
                    self.note(&path, format!("its name is {new} now"));
                    path.replacen(old, new, 1)
                }
                None => path,
            };
            if !seen.insert(path.clone()) {
                self.errors.push(ConfigError::Duplicate { path });
                continue;
            }
            self.entry(prefix, path, value, kind.as_deref());
        }
    }

    fn entry(&mut self, prefix: &str, path: String, value: Json, kind: Option<&str>) {
        if let Some((_, new)) = SWITCHES.iter().find(|(old, _)| *old == path) {
            return self.switch(&path, new, &value);
        }
        if let Some(key) = KEYS.iter().find(|key| key.path == path) {
            return match (key.path, value) {
                ("optimizer.params" | "scheduler.params", Json::Object(entries)) => {
                    self.parameters(&path, kind, entries);
                }
                (_, value) => self.value(key, path, value),
            };
        }
        let is_group = KEYS.iter().any(|key| in_group(&path, key.path));
        match value {
            Json::Object(entries) if is_group => self.group(&format!("{path}."), entries),
            Json::Null if is_group => {}
            other if is_group => self.errors.push(ConfigError::Value {
                allowed: match (&path[..], &other) {
                    ("zero_optimization", Json::Bool(_)) => {
                        "an object; write { \"stage\": 1 }, or 0 for false".to_owned()
                    }
                    _ => "an object".to_owned(),
                },
                path,
                found: other.to_string(),
                nearest: None,
            }),
            _ => {
                let names = children(prefix);
                let name = path.strip_prefix(prefix).unwrap_or(&path);
                let nearest = nearest(name, names.iter().copied());
                self.errors.push(ConfigError::UnknownKey {
                    nearest: nearest.map(|nearest| format!("{prefix}{nearest}")),
                    path,
                });
            }
        }
    }

    fn note(&mut self, path: &str, text: impl Into<String>) {
        self.values.notes.push(Note { path: path.to_owned(), text: text.into() });
    }

    /// An old switch, as the device that took its place.
    fn switch(&mut self, path: &str, new: &'static str, value: &Json) {
        let Json::Bool(is_on) = *value else {
            return self.errors.push(ConfigError::Value {
                path: path.to_owned(),
                found: value.to_string(),
                allowed: "true or false".to_owned(),
                nearest: None,
            });
        };
        self.note(path, format!("{new} came for it"));
        if is_on && new.ends_with(".device") {
            let device = Json::Text("cpu".to_owned());
            self.values.found.entry(new.to_owned()).or_insert(device);
        }
    }

    fn parameters(&mut self, path: &str, kind: Option<&str>, entries: Vec<(String, Json)>) {
        let is_optimizer = path.starts_with("optimizer");
        let parent = path.trim_end_matches(".params");
        let Some(kind) = kind else {
            return self.errors.push(ConfigError::Missing {
                path: format!("{parent}.type"),
                advice: "its parameters depend on it".to_owned(),
            });
        };
        let types = KEYS.iter().find(|key| key.path == format!("{parent}.type"));
        let Some(Kind::Text(types)) = types.map(|key| key.kind) else {
            unreachable!("the table has the types");
        };
        // The key of an unknown type has its own error.
        let Some(kind) = types.iter().find(|known| known.eq_ignore_ascii_case(kind)) else {
            return;
        };
        let keys = if is_optimizer { of_optimizer(kind, false) } else { Some(of_scheduler(kind)) };
        let mut seen = BTreeSet::new();
        // The type that Bonfire lacks has its own error.
        for (name, value) in entries {
            let Some(keys) = keys else { return };
            let path = format!("{path}.{name}");
            if !seen.insert(name.clone()) {
                self.errors.push(ConfigError::Duplicate { path });
                continue;
            }
            match keys.iter().find(|key| key.path == name) {
                Some(key) => self.value(key, path, value),
                None => self.errors.push(ConfigError::UnknownKey {
                    nearest: nearest(&name, keys.iter().map(|key| key.path))
                        .map(|nearest| format!("{parent}.params.{nearest}")),
                    path,
                }),
            }
        }
    }

    fn value(&mut self, key: &Key, path: String, value: Json) {
        let default = parsed(key.default);
        if value == Json::Null && (default == Json::Null || key.kind == Kind::Open) {
            return;
        }
        let is_auto = value == Json::Text("auto".to_owned());
        if !(is_auto && key.auto) {
            if let Err((allowed, nearest)) = fits(key.kind, &value) {
                return self.errors.push(ConfigError::Value {
                    path,
                    found: value.to_string(),
                    allowed: if key.auto { format!("{allowed}, nor \"auto\"") } else { allowed },
                    nearest,
                });
            }
            let reason = match key.treatment {
                Treatment::Refused(reason) if !is_off(key.kind, &value) && value != default => {
                    Some(reason)
                }
                _ if key.path == "optimizer.type" => refused_optimizer(&value),
                _ => None,
            };
            if let Some(reason) = reason {
                return self.errors.push(ConfigError::Refused {
                    path,
                    found: value.to_string(),
                    reason: reason.to_owned(),
                });
            }
        }
        if let Treatment::NoEffect(reason) = key.treatment {
            self.note(&path, reason);
        }
        self.values.found.insert(path, value);
    }
}

fn refused_optimizer(value: &Json) -> Option<&'static str> {
    let Json::Text(name) = value else { return None };
    let known = ["Adam", "AdamW", "SGD", "Lion", "Muon"];
    let is_known = known.iter().any(|known| known.eq_ignore_ascii_case(name));
    let is_lamb = name.eq_ignore_ascii_case("Lamb");
    let reason = if is_lamb {
        "DeepSpeed's bounds its ratio of norms and corrects its bias outside of it, and Burn's does neither; for \
         Burn's set optimizer.kind to lamb in a file of Bonfire's own"
    } else {
        "of DeepSpeed's, Bonfire reads Adam, AdamW, SGD, Lion and Muon"
    };
    (!is_known).then_some(reason)
}

/// Returns true if a value switches its feature off: an object does, while a single `false` may be the very thing that
/// Bonfire does not do.
fn is_off(kind: Kind, value: &Json) -> bool {
    fn switches(value: &Json, found: &mut Vec<bool>) {
        if let Json::Object(entries) = value {
            for (name, value) in entries {
                match value {
                    Json::Bool(is_on) if name == "enabled" => found.push(*is_on),
                    inner => switches(inner, found),
                }
            }
        }
    }
    match (kind, value) {
        (Kind::Open, Json::Object(entries)) => {
            let mut found = Vec::new();
            switches(value, &mut found);
            entries.is_empty() || (!found.is_empty() && !found.contains(&true))
        }
        _ => false,
    }
}

fn in_group(group: &str, path: &str) -> bool {
    let rest = path.strip_prefix(group);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn children(prefix: &str) -> BTreeSet<&'static str> {
    let old = ALIASES.iter().chain(SWITCHES).map(|(old, _)| *old);
    let paths = KEYS.iter().map(|key| key.path).chain(old);
    let names = paths.filter_map(|path| path.strip_prefix(prefix));
    names.filter_map(|rest| rest.split('.').next()).collect()
}

pub(crate) fn parsed(default: &str) -> Json {
    serde_json::from_str(default).expect("the table has JSON")
}

/// Checks that a key takes a value; if not, returns the allowed values and the most similar text.
fn fits(kind: Kind, value: &Json) -> Result<(), (String, Option<String>)> {
    let is_whole = |number: f64| number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_991.0;
    let rounded = match value {
        Json::Large(number) => Some(Json::Number(*number as f64)),
        _ => None,
    };
    let (fits, allowed) = match (kind, rounded.as_ref().unwrap_or(value)) {
        (Kind::Bool, value) => (matches!(value, Json::Bool(_)), "true or false"),
        (Kind::Count, Json::Number(number)) => {
            (is_whole(*number) && *number >= 0.0, "a whole number from 0, below 2^53")
        }
        (Kind::Count, _) => (false, "a whole number from 0, below 2^53"),
        (Kind::Positive, Json::Number(number)) => {
            (is_whole(*number) && *number >= 1.0, "a whole number from 1, below 2^53")
        }
        (Kind::Positive, _) => (false, "a whole number from 1, below 2^53"),
        (Kind::Number, value) => (matches!(value, Json::Number(_)), "a number"),
        (Kind::FromZero, value) => {
            let fits = matches!(value, Json::Number(number) if *number >= 0.0);
            (fits, "a number from 0")
        }
        (Kind::Stage, value) => {
            let stages = [0.0, 1.0, 2.0, 3.0].map(Json::Number);
            (stages.contains(value), "0, 1, 2 or 3")
        }
        (Kind::Betas, value) => {
            let is_beta =
                |value: &Json| matches!(value, Json::Number(beta) if (0.0..1.0).contains(beta));
            let fits = matches!(value, Json::List(values) if values.len() == 2 && values.iter().all(is_beta));
            (fits, "two numbers from 0 and below 1")
        }
        (Kind::Text(texts), Json::Text(text)) => {
            if texts.iter().any(|known| known.eq_ignore_ascii_case(text)) {
                return Ok(());
            }
            let allowed = format!("one of {}", texts.join(", "));
            return Err((allowed, nearest(text, texts.iter().copied())));
        }
        (Kind::Text(texts), _) => return Err((format!("one of {}", texts.join(", ")), None)),
        (Kind::Path, value) => (matches!(value, Json::Text(_)), "a text"),
        (Kind::Open, value) => (matches!(value, Json::Object(_)), "an object"),
    };
    if fits { Ok(()) } else { Err((allowed.to_owned(), None)) }
}
