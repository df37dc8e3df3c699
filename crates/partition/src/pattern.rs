//! Patterns over the type names of layers.

use fancy_regex::{Regex, RegexBuilder};

use crate::{LayerInfo, PatternError};

/// The longest pattern, in bytes: names of types are short, and a pattern comes from a configuration file.
pub const PATTERN_BYTES_MAX: usize = 4096;

/// Finds layers whose type name holds a pattern, in any case.
///
/// # Source
///
/// DeepSpeed, `PipelineModule._find_layer_type`.
///
/// # Examples
///
/// ```
/// use brigade_partition::{LayerInfo, TypePattern};
///
/// let layers = ["Embedding", "Block", "Block", "Norm"].map(|name| LayerInfo::new(name, 0));
/// assert_eq!(TypePattern::new("block|norm")?.find(&layers)?, [1, 2, 3]);
/// # Ok::<(), brigade_partition::PatternError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TypePattern {
    regex: Regex,
}

impl TypePattern {
    /// Compiles a pattern. Look-around and back-references work, as in Python.
    ///
    /// # Errors
    ///
    /// [`PatternError`] when it is no regular expression, or longer than [`PATTERN_BYTES_MAX`].
    ///
    /// # Examples
    ///
    /// ```
    /// assert!(brigade_partition::TypePattern::new("(").is_err());
    /// ```
    pub fn new(pattern: &str) -> Result<Self, PatternError> {
        let n_bytes = pattern.len();
        if n_bytes > PATTERN_BYTES_MAX {
            return Err(PatternError::TooLong { n_bytes, max: PATTERN_BYTES_MAX });
        }
        let compiled = RegexBuilder::new(pattern).case_insensitive(true).build();
        compiled
            .map(|regex| Self { regex })
            .map_err(|reason| PatternError::Regex { pattern: pattern.to_owned(), reason: Box::new(reason) })
    }

    /// Tells whether the pattern is found in a type name. A layer without a name is never found.
    ///
    /// # Errors
    ///
    /// [`PatternError`] when the search backtracks so often that it is given up.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_partition::TypePattern;
    ///
    /// assert!(TypePattern::new("former$")?.matches("Transformer")?);
    /// assert!(!TypePattern::new("parallel(?!lm)")?.matches("ParallelLMHead")?);
    /// assert!(!TypePattern::new(".*")?.matches("")?);
    /// # Ok::<(), brigade_partition::PatternError>(())
    /// ```
    pub fn matches(&self, type_name: &str) -> Result<bool, PatternError> {
        let error = |reason| PatternError::Regex {
            pattern: self.regex.as_str().to_owned(),
            reason: Box::new(reason),
        };
        Ok(!type_name.is_empty() && self.regex.is_match(type_name).map_err(error)?)
    }

    /// Returns the positions of the layers that the pattern finds.
    ///
    /// # Errors
    ///
    /// [`PatternError`] when a search is given up.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_partition::{LayerInfo, TypePattern};
    ///
    /// let layers = [LayerInfo::new("A", 0), LayerInfo::new("B", 0)];
    /// assert_eq!(TypePattern::new("b")?.find(&layers)?, [1]);
    /// # Ok::<(), brigade_partition::PatternError>(())
    /// ```
    pub fn find(&self, layers: &[LayerInfo]) -> Result<Vec<usize>, PatternError> {
        let mut found = Vec::new();
        for (position, layer) in layers.iter().enumerate() {
            if self.matches(&layer.type_name)? {
                found.push(position);
            }
        }
        Ok(found)
    }
}
