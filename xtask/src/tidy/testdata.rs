//! Test data says where it comes from.

use serde::Deserialize;

use super::Violation;

#[derive(Deserialize)]
struct Origin {
    source: Option<String>,
}

/// Checks that a JSON file of test data has a `source` text that names a version.
#[must_use]
pub fn names_its_source(path: &str, json: &[u8]) -> Vec<Violation> {
    let message = match serde_json::from_slice::<Origin>(json) {
        Ok(Origin { source: Some(source) }) if has_version(&source) => return Vec::new(),
        Ok(Origin { source: Some(_) }) => {
            "`source` names no version; say which release computed the values".into()
        }
        Ok(Origin { source: None }) => "no `source`; say which system and version computed the values".into(),
        Err(error) => format!("not a JSON object with a `source` text ({error}); write it anew"),
    };
    vec![Violation::new(path, 1, "testdata", message)]
}

/// Whether a word holds digits, a dot and digits, as `0.19.6` does.
fn has_version(text: &str) -> bool {
    text.split(|c: char| !(c.is_ascii_digit() || c == '.')).any(|word| {
        let mut parts = word.split('.').filter(|part| !part.is_empty());
        word.starts_with(|c: char| c.is_ascii_digit()) && parts.next().is_some() && parts.next().is_some()
    })
}
