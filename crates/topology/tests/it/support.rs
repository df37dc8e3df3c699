//! Reading of golden data.

use std::path::PathBuf;

use brigade_topology::{ProcessTopology, Rank};
use serde_json::Value;

/// Reads one list of a golden file: from the folder that `BRIGADE_GOLDEN` names, else from the workspace.
#[expect(clippy::print_stdout, reason = "the log has to show how much was checked")]
pub(crate) fn list(file: &str, name: &str) -> Vec<Value> {
    let folder = std::env::var_os("BRIGADE_GOLDEN").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden")),
        PathBuf::from,
    );
    let path = folder.join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let whole: Value = serde_json::from_str(&text).unwrap();
    let cases = whole[name].as_array().unwrap_or_else(|| panic!("{file} has no list {name}")).clone();
    assert!(!cases.is_empty(), "{file}: the list {name} is empty");
    println!("{file} {name}: {} cases", cases.len());
    cases
}

/// Reads a whole number; a negative one, which no rank or coordinate can be, becomes the largest.
pub(crate) fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .or_else(|| value.as_i64().map(|_| u64::MAX))
        .unwrap_or_else(|| panic!("{value} is no number"))
}

pub(crate) fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list")).iter().map(number).collect()
}

pub(crate) fn lists(value: &Value) -> Vec<Vec<u64>> {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list")).iter().map(numbers).collect()
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

pub(crate) fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list")).iter().map(text).collect()
}

pub(crate) fn topology(case: &Value) -> ProcessTopology {
    ProcessTopology::from_lists(&texts(&case["axes"]), &numbers(&case["dims"])).unwrap()
}

/// Turns ranks into bare numbers.
pub(crate) fn bare(ranks: impl IntoIterator<Item = Rank>) -> Vec<u64> {
    ranks.into_iter().map(u64::from).collect()
}

/// Returns the members of an object.
pub(crate) fn members(value: &Value) -> Vec<(&str, &Value)> {
    let object = value.as_object().unwrap_or_else(|| panic!("{value} is no object"));
    object.iter().map(|(name, value)| (name.as_str(), value)).collect()
}

/// Returns an object of coordinates as a filter.
pub(crate) fn filter(value: &Value) -> Vec<(&str, u64)> {
    members(value).into_iter().map(|(name, value)| (name, number(value))).collect()
}
