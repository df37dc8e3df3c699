//! Patterns over the type names of layers.

use regex::{Regex, RegexBuilder};

use crate::{LayerInfo, PatternError};

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
/// assert_eq!(TypePattern::new("block|norm")?.find(&layers), [1, 2, 3]);
/// # Ok::<(), brigade_partition::PatternError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TypePattern {
    regex: Regex,
}

impl TypePattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    ///
    /// [`PatternError`] when it is no regular expression.
    ///
    /// # Examples
    ///
    /// ```
    /// assert!(brigade_partition::TypePattern::new("(").is_err());
    /// ```
    pub fn new(pattern: &str) -> Result<Self, PatternError> {
        let compiled = RegexBuilder::new(pattern).case_insensitive(true).build();
        compiled
            .map(|regex| Self { regex })
            .map_err(|source| PatternError { pattern: pattern.to_owned(), source: Box::new(source) })
    }

    /// Tells whether the pattern is found in a type name. A layer without a name is never found.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_partition::TypePattern;
    ///
    /// assert!(TypePattern::new("former$")?.matches("Transformer"));
    /// assert!(!TypePattern::new(".*")?.matches(""));
    /// # Ok::<(), brigade_partition::PatternError>(())
    /// ```
    #[must_use]
    pub fn matches(&self, type_name: &str) -> bool {
        !type_name.is_empty() && self.regex.is_match(type_name)
    }

    /// Returns the positions of the layers that the pattern finds.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_partition::{LayerInfo, TypePattern};
    ///
    /// let layers = [LayerInfo::new("A", 0), LayerInfo::new("B", 0)];
    /// assert_eq!(TypePattern::new("b")?.find(&layers), [1]);
    /// # Ok::<(), brigade_partition::PatternError>(())
    /// ```
    #[must_use]
    pub fn find(&self, layers: &[LayerInfo]) -> Vec<usize> {
        let found = layers.iter().enumerate().filter(|(_, layer)| self.matches(&layer.type_name));
        found.map(|(position, _)| position).collect()
    }
}
