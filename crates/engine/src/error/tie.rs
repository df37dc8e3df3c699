//! Why layers cannot share parameters as asked.

/// What is wrong with one layer's tie.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TieProblem {
    /// The layer has no such parameter.
    #[error("has no parameter `{path}`; it has {}", known.join(", "))]
    Unknown {
        /// The path that the tie names.
        path: String,
        /// The paths that there are.
        known: Vec<String>,
    },
    /// Two paths of the layer are one parameter of the owner.
    #[error("would share one parameter twice: leave `{path}` out, or name it as the owner does")]
    Twice {
        /// The second of the paths.
        path: String,
    },
    /// The owner shares fewer parameters.
    #[error("has nothing to share `{path}` with: the first layer of this key names fewer parameters")]
    TooMany {
        /// The first path without a counterpart.
        path: String,
    },
    /// The shapes differ.
    #[error(
        "has `{path}` of shape {shape:?}, layer {owner} that owns it `{owner_path}` of shape {owner_shape:?}: make them equal, and turn the values in `forward` where another layout is needed"
    )]
    Shape {
        /// Path of the parameter.
        path: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Global index of the owner.
        owner: usize,
        /// Path of the owner's parameter.
        owner_path: String,
        /// Its shape.
        owner_shape: Vec<usize>,
    },
}
