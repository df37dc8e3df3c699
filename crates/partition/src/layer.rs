//! What a partitioner needs to know of a layer.

use serde::{Deserialize, Serialize};

/// Describes one layer.
///
/// # Units
///
/// `parameters` counts numbers, not bytes.
///
/// # Examples
///
/// ```
/// use brigade_partition::LayerInfo;
///
/// let layer = LayerInfo::new("Linear", 4 * 4 + 4);
/// assert_eq!((layer.type_name.as_str(), layer.parameters), ("Linear", 20));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LayerInfo {
    /// The name of the layer's type, which `type:` patterns search. A layer without a name (an empty
    /// one) is never found.
    pub type_name: String,
    /// The number of trainable parameters.
    pub parameters: u64,
    /// What was measured of the layer, if anything.
    pub profile: Option<LayerProfile>,
}

impl LayerInfo {
    /// Describes a layer that was not measured.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(brigade_partition::LayerInfo::new("Gelu", 0).profile, None);
    /// ```
    #[must_use]
    pub fn new(type_name: impl Into<String>, parameters: u64) -> Self {
        Self { type_name: type_name.into(), parameters, profile: None }
    }

    /// Adds what was measured.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_partition::{LayerInfo, LayerProfile};
    ///
    /// let profile = LayerProfile { time_ns: 1_500, ..LayerProfile::default() };
    /// assert_eq!(LayerInfo::new("Gelu", 0).measured(profile).profile, Some(profile));
    /// ```
    #[must_use]
    pub fn measured(self, profile: LayerProfile) -> Self {
        Self { profile: Some(profile), ..self }
    }
}

/// Holds what was measured of one layer over one micro-batch.
///
/// # Units
///
/// Nanoseconds and bytes.
///
/// # Examples
///
/// ```
/// use brigade_partition::LayerProfile;
///
/// let profile = LayerProfile { time_ns: 1_500, output_bytes: 4_096, ..LayerProfile::default() };
/// assert_eq!(profile.fixed_bytes, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LayerProfile {
    /// Forward and backward time together.
    pub time_ns: u64,
    /// Memory that the layer takes however many micro-batches are in flight: weights, gradients,
    /// optimizer state.
    pub fixed_bytes: u64,
    /// Memory that the layer takes for each micro-batch in flight: what its forward keeps for its
    /// backward.
    pub in_flight_bytes: u64,
    /// The size of its output, which crosses a boundary when the list is cut after this layer.
    pub output_bytes: u64,
}
