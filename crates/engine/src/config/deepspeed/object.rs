//! An object of a configuration that knows where it is and which of its keys nobody has read.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::Value;

use super::ConfigWarning;
use crate::error::ConfigError;

/// An object under reading: each key is taken once, and what is left at the end is warned of.
pub(super) struct Object<'a> {
    path: String,
    entries: BTreeMap<&'a str, &'a Value>,
    warnings: &'a RefCell<Vec<ConfigWarning>>,
}

impl<'a> Object<'a> {
    pub(super) fn new(
        path: &str,
        value: &'a Value,
        warnings: &'a RefCell<Vec<ConfigWarning>>,
    ) -> Result<Self, ConfigError> {
        let Value::Object(map) = value else {
            let path = if path.is_empty() { "." } else { path };
            return Err(wrong(path.to_owned(), value, "an object"));
        };
        let entries = map.iter().map(|(key, value)| (key.as_str(), value)).collect();
        Ok(Self { path: path.to_owned(), entries, warnings })
    }

    /// The object that a key would have if it were there.
    pub(super) fn empty(&self, key: &str) -> Self {
        Self { path: self.path(key), entries: BTreeMap::new(), warnings: self.warnings }
    }

    pub(super) fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn warn(&self, warning: ConfigWarning) {
        self.warnings.borrow_mut().push(warning);
    }

    pub(super) fn differs(&self, key: &str, note: &str) {
        self.warn(ConfigWarning::Differs { path: self.path(key), note: note.to_owned() });
    }

    pub(super) fn is_auto(&self, key: &str) -> bool {
        self.entries.get(key).is_some_and(|value| value.as_str() == Some("auto"))
    }

    /// The value of a key; none for null, and for "auto" with a warning.
    pub(super) fn any(&mut self, key: &str) -> Option<&'a Value> {
        let auto = self.is_auto(key);
        let value = self.entries.remove(key)?;
        if auto {
            self.warn(ConfigWarning::Auto { path: self.path(key) });
        }
        (!auto && !value.is_null()).then_some(value)
    }

    fn typed<T>(
        &mut self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.any(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong(self.path(key), value, expected))
    }

    pub(super) fn object(&mut self, key: &str) -> Result<Option<Object<'a>>, ConfigError> {
        let Some(value) = self.any(key) else { return Ok(None) };
        Object::new(&self.path(key), value, self.warnings).map(Some)
    }

    pub(super) fn flag(&mut self, key: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, ConfigError> {
        self.typed(key, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// A number that is not below 0.
    pub(super) fn number(&mut self, key: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(key, "a number of at least 0", |value| value.as_f64().filter(|x| *x >= 0.0))
    }

    /// A whole number of at least 0; `1e3` counts as one.
    pub(super) fn count(&mut self, key: &str) -> Result<Option<u32>, ConfigError> {
        self.typed(key, "a whole number of at least 0", whole)
    }

    /// A whole number of at least 1.
    pub(super) fn positive(&mut self, key: &str) -> Result<Option<u32>, ConfigError> {
        self.typed(key, "a whole number of at least 1", |value| whole(value).filter(|n| *n > 0))
    }

    /// A whole number of at least 1 that has no default.
    pub(super) fn required(&mut self, key: &str) -> Result<u64, ConfigError> {
        let (path, expected) = (self.path(key), "a whole number of at least 1".to_owned());
        let absent = ConfigError::Value { path, found: "absent".to_owned(), expected };
        Ok(self.positive(key)?.ok_or(absent)?.into())
    }

    /// Two numbers, such as betas.
    pub(super) fn pair(&mut self, key: &str) -> Result<Option<[f64; 2]>, ConfigError> {
        self.typed(key, "a list of two numbers", |value| match value.as_array()?.as_slice() {
            [first, second] => Some([first.as_f64()?, second.as_f64()?]),
            _ => None,
        })
    }

    /// Warns of every key that nobody has read.
    pub(super) fn finish(self) {
        for key in self.entries.keys() {
            self.warn(ConfigWarning::Unused { path: self.path(key) });
        }
    }
}

fn whole(value: &Value) -> Option<u32> {
    if let Some(n) = value.as_u64() {
        return u32::try_from(n).ok();
    }
    let x = value.as_f64()?;
    // Written with an exponent; `format` gives the digits of a whole number, and the parser takes no other.
    format!("{x}").parse().ok()
}

pub(super) fn wrong(path: String, found: &Value, expected: &str) -> ConfigError {
    let mut found = found.to_string();
    if found.len() > 60 {
        let end = (0..=60).rev().find(|&end| found.is_char_boundary(end)).unwrap_or(0);
        found.truncate(end);
        found.push_str("...");
    }
    ConfigError::Value { path, found, expected: expected.to_owned() }
}
