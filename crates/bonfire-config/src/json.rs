//! JSON as it is in the file: keys in their order, and twice where they come twice.
//!
//! DeepSpeed reads its files with hjson. Of that, what people write in JSON is read here too: comments (`//`, `#`,
//! `/* */`), a comma before a closing bracket, and a byte order mark. Names and texts need their quotation marks, because
//! without them a forgotten comma would become part of a text.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

use crate::error::{ConfigError, ConfigErrors};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(f64),
    /// A whole number that f64 may not have.
    Large(u64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value}"),
            Self::Large(value) => write!(f, "{value}"),
            Self::Text(value) => write!(f, "{value:?}"),
            Self::List(values) => {
                let values: Vec<String> = values.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", values.join(", "))
            }
            Self::Object(_) => f.write_str("an object"),
        }
    }
}

impl Json {
    /// Reads a text.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`] with the line and the column of the text.
    pub(crate) fn parse(text: &str) -> Result<Self, ConfigErrors> {
        serde_json::from_str(&strict(text))
            .map_err(|error| ConfigErrors(vec![ConfigError::Syntax { cause: error.to_string() }]))
    }
}

/// Converts to strict JSON. Extensions become spaces, so that all else stays in its line and column.
fn strict(text: &str) -> String {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut bytes = text.as_bytes().to_vec();
    // The byte before, without spaces and comments; and where it is a comma, its place.
    let (mut before, mut comma) = (0, None);
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text.as_bytes()[at..];
        let to = |end: &str| text[at..].find(end);
        let comment = match rest {
            [b'#', ..] | [b'/', b'/', ..] => Some(to("\n").unwrap_or(rest.len())),
            [b'/', b'*', ..] => Some(to("*/").map_or(rest.len(), |end| end + 2)),
            _ => None,
        };
        if let Some(len) = comment {
            let blank = |byte: &mut u8| *byte = if *byte == b'\n' { b'\n' } else { b' ' };
            bytes[at..at + len].iter_mut().for_each(blank);
            at += len;
            continue;
        }
        match rest[0] {
            byte if byte.is_ascii_whitespace() => {}
            b',' => comma = (!b",[{".contains(&before) && before != 0).then_some(at),
            byte => {
                if let (b'}' | b']', Some(comma)) = (byte, comma) {
                    bytes[comma] = b' ';
                }
                comma = None;
            }
        }
        if !rest[0].is_ascii_whitespace() {
            before = rest[0];
        }
        at += match rest[0] {
            b'"' => text_len(rest),
            _ => 1,
        };
    }
    String::from_utf8(bytes).expect("only whole letters were replaced")
}

/// The length of a text with its quotation marks, from the first on.
fn text_len(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Json, E> {
        u64::try_from(value).map_or(Ok(Json::Number(value as f64)), |value| self.visit_u64(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        let is_large = value > 1 << f64::MANTISSA_DIGITS;
        Ok(if is_large { Json::Large(value) } else { Json::Number(value as f64) })
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Json::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Json::Object(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_last_commas_and_a_byte_order_mark_are_passed_over() {
        let file = "\u{feff}{ // one\n \"a\": [1, 2,], # two, \"b\": 3\n /* three\n é */ \"c#//,]\": \"\\\\\", }\n# end";
        assert_eq!(
            Json::parse(file).unwrap(),
            Json::Object(vec![
                ("a".to_owned(), Json::List(vec![Json::Number(1.0), Json::Number(2.0)])),
                ("c#//,]".to_owned(), Json::Text("\\".to_owned())),
            ])
        );
    }

    #[test]
    fn strict_json_stays_as_it_is() {
        for text in ["{}", "[1, 2]", "\"a//b#c/*d*/\"", "{\"a\": \"\\\",}\"}"] {
            assert_eq!(strict(text), text);
        }
    }

    #[test]
    fn what_is_wrong_keeps_its_line_and_column() {
        for (file, place) in [
            ("{ # one\n  /* é */ \"a\" 1 }", "line 2 column 16"),
            ("[,]", "line 1 column 2"),
            ("{ \"a\": 1,, }", "line 1 column 10"),
            ("{ stage: 1 }", "line 1 column 3"),
            ("{ /* open", "line 1"),
        ] {
            let error = Json::parse(file).unwrap_err().to_string();
            assert!(error.contains(place), "{file}: {error}");
        }
    }
}
