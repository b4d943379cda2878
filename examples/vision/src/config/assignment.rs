//! Single values with their keys, as they stand in a file or on the command line.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::{NonFiniteFloatPolicy, Spanned, UserMessageFormatter};

use super::{ConfigError, Origin};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Assignment {
    /// The key with its section: `TRAIN.BATCH_SIZE`.
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) origin: Origin,
}

/// The content of a place in a file.
enum Entry {
    Section(Vec<(String, Spanned<Entry>)>),
    Value(Value),
}

pub(super) fn of_file(path: &Path) -> Result<Vec<Assignment>, ConfigError> {
    let text = fs::read_to_string(path)
        .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    let syntax = |error: serde_saphyr::Error| ConfigError::Syntax {
        path: path.to_owned(),
        cause: one_line(&error),
    };
    // No key takes an infinite number: as a text it is an error with the name of the key.
    let options =
        serde_saphyr::options! { non_finite_float_policy: NonFiniteFloatPolicy::AsString };
    // A file of comments is one that changes nothing.
    let top: Option<Spanned<Entry>> =
        serde_saphyr::from_str_with_options(&text, options).map_err(syntax)?;
    let Some(top) = top else {
        return Ok(Vec::new());
    };
    let mut assignments = Vec::new();
    let mut open = vec![(String::new(), top)];
    while let Some((key, Spanned { value, defined, .. })) = open.pop() {
        match value {
            Entry::Section(entries) => {
                let entries = entries.into_iter().map(|(name, entry)| match key.as_str() {
                    "" => (name, entry),
                    section => (format!("{section}.{name}"), entry),
                });
                open.extend(entries.rev());
            }
            Entry::Value(Value::Null) if key.is_empty() => {}
            Entry::Value(value) if key.is_empty() => {
                return Err(ConfigError::Syntax {
                    path: path.to_owned(),
                    cause: format!("a file has sections with keys, and this one is {value}"),
                });
            }
            Entry::Value(value) => {
                let origin = Origin::File { path: path.to_owned(), line: defined.line() };
                assignments.push(Assignment { key, value, origin });
            }
        }
    }
    Ok(assignments)
}

/// Reads the values of `KEY VALUE KEY VALUE ...`; each is read as YAML, so that `True`, `0.1` and `[0, 30]` have the
/// same meaning as in a file.
pub(super) fn of_pairs(words: &[String]) -> Result<Vec<Assignment>, ConfigError> {
    let pairs = words.chunks(2).map(|pair| match pair {
        [key, text] => {
            Ok(Assignment { key: key.clone(), value: value(text), origin: Origin::CommandLine })
        }
        _ => Err(ConfigError::NoValue { key: pair.concat() }),
    });
    pairs.collect()
}

/// The meaning of a word; one that is not YAML, such as a path with a colon, is a string.
fn value(text: &str) -> Value {
    match serde_saphyr::from_str(text) {
        Ok(Some(Entry::Value(value))) => value,
        Ok(None) => Value::Null,
        Ok(Some(Entry::Section(_))) | Err(_) => Value::String(text.to_owned()),
    }
}

/// The error and its line, without the excerpt and advice for programmers.
fn one_line(error: &serde_saphyr::Error) -> String {
    let error = error.without_snippet();
    let text = error.render_with_formatter(&UserMessageFormatter);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a section or a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Entry::Section(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Entry, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element()? {
            values.push(value);
        }
        Ok(Entry::Value(Value::Array(values)))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Entry, E> {
        Ok(Entry::Value(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Entry, E> {
        Ok(Entry::Value(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Entry, E> {
        Ok(Entry::Value(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Entry, E> {
        Ok(Entry::Value(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Entry, E> {
        Ok(Entry::Value(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Entry, E> {
        Ok(Entry::Value(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Entry, E> {
        Ok(Entry::Value(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Entry, D::Error> {
        Entry::deserialize(deserializer)
    }
}
