//! An ordered dict with string or integer keys, each at most once.

use std::collections::BTreeSet;

use crate::{error::DictError, tree::Tree};

/// The key of a dict entry.
///
/// `I64(5)` and `U64(5)` are different keys, as they are different values.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A string.
    Str(String),
    /// A signed integer.
    I64(i64),
    /// An unsigned integer.
    U64(u64),
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Str(name) => f.write_str(name),
            Self::I64(value) => value.fmt(f),
            Self::U64(value) => value.fmt(f),
        }
    }
}

impl From<&str> for Key {
    fn from(name: &str) -> Self {
        Self::Str(name.to_owned())
    }
}

impl From<String> for Key {
    fn from(name: String) -> Self {
        Self::Str(name)
    }
}

impl From<i64> for Key {
    fn from(value: i64) -> Self {
        Self::I64(value)
    }
}

impl From<i32> for Key {
    fn from(value: i32) -> Self {
        Self::I64(value.into())
    }
}

impl From<u64> for Key {
    fn from(value: u64) -> Self {
        Self::U64(value)
    }
}

impl From<u32> for Key {
    fn from(value: u32) -> Self {
        Self::U64(value.into())
    }
}

/// A dict that keeps the order of insertion and holds every key once.
///
/// Look-up is a scan: the dicts that cross a stage boundary are small.
///
/// # Examples
/// ```
/// use brigade_wire::{Dict, Key, Tree};
///
/// let mut outputs = Dict::new();
/// outputs.insert("logits", Tree::Tensor("l"));
/// outputs.insert("cache", Tree::None);
/// assert_eq!(outputs.get(&Key::from("logits")), Some(&Tree::Tensor("l")));
/// assert_eq!(outputs.keys().map(Key::to_string).collect::<Vec<_>>(), ["logits", "cache"]);
/// ```
#[derive(Debug, Clone)]
pub struct Dict<T> {
    entries: Vec<(Key, Tree<T>)>,
}

impl<T> Dict<T> {
    /// An empty dict.
    #[must_use]
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// A dict of these entries in this order.
    ///
    /// # Errors
    /// [`DictError::DuplicateKey`] when a key stands twice.
    pub fn from_entries(entries: Vec<(Key, Tree<T>)>) -> Result<Self, DictError> {
        let mut seen = BTreeSet::new();
        if let Some((key, _)) = entries.iter().find(|(key, _)| !seen.insert(key)) {
            return Err(DictError::DuplicateKey { key: key.clone() });
        }
        Ok(Self { entries })
    }

    /// The same for entries whose keys are known to differ.
    pub(crate) const fn from_unique(entries: Vec<(Key, Tree<T>)>) -> Self {
        Self { entries }
    }

    /// Sets the value of `key`: in its old place when the key is there, at the end otherwise.
    /// Returns the value that it replaces.
    pub fn insert(&mut self, key: impl Into<Key>, value: impl Into<Tree<T>>) -> Option<Tree<T>> {
        let (key, value) = (key.into(), value.into());
        if let Some((_, old)) = self.entries.iter_mut().find(|(k, _)| *k == key) {
            return Some(std::mem::replace(old, value));
        }
        self.entries.push((key, value));
        None
    }

    /// Takes the entry of `key` out; the order of the others stays.
    pub fn remove(&mut self, key: &Key) -> Option<Tree<T>> {
        let index = self.entries.iter().position(|(k, _)| k == key)?;
        Some(self.entries.remove(index).1)
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<&Tree<T>> {
        self.entries.iter().find(|(k, _)| k == key).map(|(_, value)| value)
    }

    /// Number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Key, &Tree<T>)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    /// The keys in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &Key> {
        self.entries.iter().map(|(key, _)| key)
    }

    /// The values in order of their keys.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &Tree<T>> {
        self.entries.iter().map(|(_, value)| value)
    }

    /// The entries, by value.
    #[must_use]
    pub fn into_entries(self) -> Vec<(Key, Tree<T>)> {
        self.entries
    }
}

impl<T> Default for Dict<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: PartialEq> PartialEq for Dict<T> {
    /// Order counts: two dicts are equal when they give the same message.
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl<T: Eq> Eq for Dict<T> {}

impl<T> IntoIterator for Dict<T> {
    type Item = (Key, Tree<T>);
    type IntoIter = std::vec::IntoIter<(Key, Tree<T>)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}
