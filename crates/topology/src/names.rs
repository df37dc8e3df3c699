//! Axis names: what may name an axis.

use crate::TopologyError;

/// DeepSpeed makes each axis a field of a Python named tuple, which cannot be called any of these.
const PYTHON_KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def",
    "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is",
    "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

pub(crate) fn check_name(name: &str) -> Result<(), TopologyError> {
    let mut characters = name.chars();
    let starts_well = characters.next().is_some_and(char::is_alphabetic);
    if !starts_well || !characters.all(|character| character.is_alphanumeric() || character == '_') {
        return Err(TopologyError::InvalidName { name: name.to_owned() });
    }
    if PYTHON_KEYWORDS.contains(&name) {
        return Err(TopologyError::ReservedName { name: name.to_owned() });
    }
    Ok(())
}
