//! Reading configuration texts: comments, keys given twice, and where in a text something is wrong.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::ConfigError;

/// The error of a reader that knows where it was.
pub(super) fn at<E: fmt::Display>(error: &serde_path_to_error::Error<E>) -> ConfigError {
    ConfigError::Text { path: error.path().to_string(), message: one_line(error.inner()) }
}

/// The error of a text that is not of its form.
pub(super) fn whole(error: &impl fmt::Display) -> ConfigError {
    ConfigError::Text { path: ".".to_owned(), message: one_line(error) }
}

/// TOML's reader draws the place under several lines.
fn one_line(error: &impl fmt::Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Puts blanks in the place of comments (`//`, `#` and `/* */` outside strings), so that lines and columns
/// stay; what DeepSpeed's reader passes over as well.
pub(super) fn without_comments(text: &str) -> String {
    #[derive(PartialEq)]
    enum In {
        Json,
        String,
        Line,
        Block,
    }
    let mut place = In::Json;
    let mut chars = text.chars().peekable();
    let mut out = String::with_capacity(text.len());
    while let Some(c) = chars.next() {
        let next = chars.peek().copied();
        match place {
            In::String => {
                out.push(c);
                if c == '\\' {
                    out.extend(chars.next());
                } else if c == '"' {
                    place = In::Json;
                }
            }
            In::Line if c == '\n' => {
                place = In::Json;
                out.push(c);
            }
            In::Block if c == '*' && next == Some('/') => {
                chars.next();
                place = In::Json;
                out.push_str("  ");
            }
            In::Line | In::Block => out.push(if c == '\n' { c } else { ' ' }),
            In::Json => match (c, next) {
                ('#', _) | ('/', Some('/')) => {
                    place = In::Line;
                    out.push(' ');
                }
                ('/', Some('*')) => {
                    chars.next();
                    place = In::Block;
                    out.push_str("  ");
                }
                _ => {
                    if c == '"' {
                        place = In::String;
                    }
                    out.push(c);
                }
            },
        }
    }
    out
}

/// A JSON value none of whose objects has a key twice; the usual reader would keep the last.
pub(super) struct Strict(pub(super) Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Value;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
                Ok(value.into())
            }
            fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
                Ok(value.into())
            }
            fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
                Ok(value.into())
            }
            fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
                Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not a finite number"))
            }
            fn visit_str<E>(self, value: &str) -> Result<Value, E> {
                Ok(value.into())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
                let mut list = Vec::new();
                while let Some(Strict(item)) = items.next_element()? {
                    list.push(item);
                }
                Ok(Value::Array(list))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
                let mut map = Map::new();
                while let Some(key) = entries.next_key::<String>()? {
                    let Strict(value) = entries.next_value()?;
                    if map.contains_key(&key) {
                        return Err(A::Error::custom(format!("the key `{key}` is given twice")));
                    }
                    map.insert(key, value);
                }
                Ok(Value::Object(map))
            }
        }
        deserializer.deserialize_any(Read).map(Self)
    }
}
