//! Reads the golden files.

use std::path::PathBuf;

use serde_json::Value;

/// One golden file, read whole; its lists must be there and not empty.
pub(crate) struct Golden {
    name: &'static str,
    value: Value,
}

impl Golden {
    pub(crate) fn open(name: &'static str) -> Self {
        let folder = std::env::var_os("BRIGADE_GOLDEN").map_or_else(
            || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden"),
            PathBuf::from,
        );
        let path = folder.join(name);
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { name, value }
    }

    /// A list of cases; says how many there are.
    #[expect(clippy::print_stdout, reason = "a golden test says how many cases it ran")]
    pub(crate) fn cases(&self, list: &str) -> &[Value] {
        let cases = self.value[list].as_array().unwrap_or_else(|| panic!("{}: no list {list}", self.name));
        assert!(!cases.is_empty(), "{}: list {list} is empty", self.name);
        println!("{} {list}: {} cases", self.name, cases.len());
        cases
    }

    pub(crate) fn value(&self, key: &str) -> &Value {
        let value = &self.value[key];
        assert!(!value.is_null(), "{}: no {key}", self.name);
        value
    }
}

pub(crate) fn number(value: &Value) -> u32 {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.unwrap_or_else(|| panic!("expected a number of 32 bits, found {value}"))
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("expected a string, found {value}"))
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("expected a list, found {value}"))
}
