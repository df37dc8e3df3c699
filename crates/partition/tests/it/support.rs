//! Reading of golden data, and plain enumeration of cuts.

use std::path::PathBuf;

use brigade_partition::{Cuts, LayerInfo};
use serde_json::Value;
use serde_json::value::RawValue;

/// Reads one list of a golden file: from the folder that `BRIGADE_GOLDEN` names, else from the workspace.
pub(crate) fn list(file: &str, name: &str) -> Vec<Value> {
    raw_list(file, name).iter().map(|case| serde_json::from_str(case.get()).unwrap()).collect()
}

/// Reads one list of a golden file with its numbers as they are written, which may be of any size.
#[expect(clippy::print_stdout, reason = "the log has to show how much was checked")]
pub(crate) fn raw_list(file: &str, name: &str) -> Vec<Box<RawValue>> {
    let folder = std::env::var_os("BRIGADE_GOLDEN").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden")),
        PathBuf::from,
    );
    let path = folder.join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut whole: std::collections::BTreeMap<String, Box<RawValue>> = serde_json::from_str(&text).unwrap();
    let list = whole.remove(name).unwrap_or_else(|| panic!("{file} has no list {name}"));
    let cases: Vec<Box<RawValue>> = serde_json::from_str(list.get()).unwrap();
    assert!(!cases.is_empty(), "{file}: the list {name} is empty");
    println!("{file} {name}: {} cases", cases.len());
    cases
}

/// Reads one member of a golden file.
pub(crate) fn member(file: &str, name: &str) -> Value {
    let folder = std::env::var_os("BRIGADE_GOLDEN").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden")),
        PathBuf::from,
    );
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    let whole: std::collections::BTreeMap<String, Box<RawValue>> = serde_json::from_str(&text).unwrap();
    serde_json::from_str(whole[name].get()).unwrap()
}

pub(crate) fn count(value: &Value) -> Option<usize> {
    value.as_u64().map(|number| usize::try_from(number).unwrap())
}

pub(crate) fn counts(value: &Value) -> Vec<usize> {
    value
        .as_array()
        .unwrap_or_else(|| panic!("{value} is no list"))
        .iter()
        .map(|item| count(item).unwrap())
        .collect()
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// Calls a function with every list of boundaries: without empty stages, or with them too.
pub(crate) fn every_cuts(n_layers: usize, n_stages: usize, empty: bool, visit: &mut impl FnMut(&[usize])) {
    fn extend(
        boundaries: &mut Vec<usize>,
        n_layers: usize,
        n_stages: usize,
        least: usize,
        visit: &mut impl FnMut(&[usize]),
    ) {
        let start = boundaries[boundaries.len() - 1];
        if boundaries.len() == n_stages {
            if start + least <= n_layers {
                boundaries.push(n_layers);
                visit(boundaries);
                boundaries.pop();
            }
            return;
        }
        for end in start + least..=n_layers {
            boundaries.push(end);
            extend(boundaries, n_layers, n_stages, least, visit);
            boundaries.pop();
        }
    }
    extend(&mut vec![0], n_layers, n_stages, usize::from(!empty), visit);
}

/// Returns the sum of weights of each stage.
pub(crate) fn sums(cuts: &[usize], weights: &[u64]) -> Vec<u64> {
    cuts.windows(2).map(|ends| weights[ends[0]..ends[1]].iter().sum()).collect()
}

pub(crate) fn heaviest(cuts: &Cuts, weights: &[u64]) -> u64 {
    sums(cuts.boundaries(), weights).into_iter().max().unwrap()
}

/// Returns unmeasured layers of one type with these parameters.
pub(crate) fn layers(parameters: &[u64]) -> Vec<LayerInfo> {
    parameters.iter().map(|&parameters| LayerInfo::new("Linear", parameters)).collect()
}
