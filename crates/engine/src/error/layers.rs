//! What can be wrong in a list of layers.

use crate::layer::LayerLabel;

/// Why the layers of a list that was made at run time do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayerTypeError {
    /// A layer does not take what the one before it gives.
    #[error(
        "{first} gives {gives}, {second} takes {takes}: put a layer between them that turns one into the other"
    )]
    Neighbours {
        /// The layer before.
        first: LayerLabel,
        /// Its output.
        gives: &'static str,
        /// The layer after it.
        second: LayerLabel,
        /// Its input.
        takes: &'static str,
    },
    /// The first layer does not take the input of the list.
    #[error("the list is to take {given}, its first, {layer}, takes {takes}")]
    Input {
        /// The first layer.
        layer: LayerLabel,
        /// Its input.
        takes: &'static str,
        /// The input that was asked for.
        given: &'static str,
    },
    /// The last layer does not give the output of the list.
    #[error("the list is to give {wanted}, its last, {layer}, gives {gives}")]
    Output {
        /// The last layer.
        layer: LayerLabel,
        /// Its output.
        gives: &'static str,
        /// The output that was asked for.
        wanted: &'static str,
    },
    /// A list without layers gives what it takes.
    #[error("an empty list gives what it takes, {input}, not {output}: add layers")]
    Empty {
        /// The input that was asked for.
        input: &'static str,
        /// The output that was asked for.
        output: &'static str,
    },
}

/// Why a layer that names only a key finds no module for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TieError {
    /// No layer builds a module under the key.
    #[error("{layer} is tied to `{key}`, which no layer builds: the keys with a builder are {known:?}")]
    UnknownKey {
        /// The layer.
        layer: LayerLabel,
        /// Its key.
        key: String,
        /// The keys that layers with a builder have, in order.
        known: Vec<String>,
    },
    /// The module under the key is of another type.
    #[error("{layer} is a function of {wanted}, but {builder}, tied by the same key, builds a {built}")]
    ModuleType {
        /// The layer.
        layer: LayerLabel,
        /// The module that its function takes.
        wanted: &'static str,
        /// The layer that builds the module of the key.
        builder: LayerLabel,
        /// The module that it builds.
        built: &'static str,
    },
    /// Several layers build a module of their own under the key.
    #[error(
        "{layer} is tied to `{key}`, for which {} have different builders: give it one of its own, or use one `TiedLayerSpec` for all",
        builders.iter().map(LayerLabel::to_string).collect::<Vec<_>>().join(" and ")
    )]
    TwoBuilders {
        /// The layer.
        layer: LayerLabel,
        /// Its key.
        key: String,
        /// The layers with different builders, in order.
        builders: Vec<LayerLabel>,
    },
}
