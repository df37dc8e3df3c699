//! Rank strings: the part of a file name that says which rank wrote it.

use std::fmt::Write;

use crate::{LookupError, ProcessTopology, Rank};

/// Says how a rank string is written. The default is what DeepSpeed puts into file names.
///
/// # Examples
///
/// ```
/// use brigade_topology::{ProcessTopology, Rank, RankRepr};
///
/// let topology = ProcessTopology::pipe_data_model(2, 2, 2)?;
/// let repr = RankRepr { omit_axes: &["data"], ..RankRepr::default() };
/// assert_eq!(topology.rank_repr(Rank(5), &repr)?, "pipe_01-model_01");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankRepr<'a> {
    /// Axes that are left out. A name that no axis has leaves nothing out.
    pub omit_axes: &'a [&'a str],
    /// What stands between an axis and its coordinate.
    pub inner_sep: &'a str,
    /// What stands between two axes.
    pub outer_sep: &'a str,
}

impl Default for RankRepr<'_> {
    fn default() -> Self {
        Self { omit_axes: &["data", "pipe"], inner_sep: "_", outer_sep: "-" }
    }
}

impl ProcessTopology {
    /// Returns a name for the coordinates of a rank, such as `model_01`: each shown axis with its
    /// coordinate in two digits or more.
    ///
    /// When no axis is shown the answer is the empty string for every rank, even one that is out of
    /// range, as no coordinate is needed then.
    ///
    /// # Errors
    ///
    /// [`LookupError::RankOutOfRange`] when an axis is shown.
    ///
    /// # Source
    ///
    /// DeepSpeed, `ProcessTopology.get_rank_repr`.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank, RankRepr};
    ///
    /// let topology = ProcessTopology::new(&[("pipe", 2), ("model", 120)])?;
    /// assert_eq!(topology.rank_repr(Rank(3), &RankRepr::default())?, "model_03");
    /// assert_eq!(topology.rank_repr(Rank(115), &RankRepr::default())?, "model_115");
    /// let all = RankRepr { omit_axes: &[], inner_sep: "=", outer_sep: "/" };
    /// assert_eq!(topology.rank_repr(Rank(120), &all)?, "pipe=01/model=00");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "get_rank_repr")]
    pub fn rank_repr(&self, rank: Rank, repr: &RankRepr<'_>) -> Result<String, LookupError> {
        let shown = || self.axis_slice().iter().filter(|axis| !repr.omit_axes.contains(&&*axis.name));
        if shown().next().is_some() {
            self.check_rank(rank)?;
        }
        let parts: Vec<String> = shown()
            .map(|axis| format!("{}{}{:02}", axis.name, repr.inner_sep, axis.coord_of(rank)))
            .collect();
        Ok(parts.join(repr.outer_sep))
    }

    /// Returns the start of the name of a rank's own files, such as `module-pipe_01-model_00`. Replicas
    /// share it, as they hold the same weights.
    ///
    /// # Errors
    ///
    /// [`LookupError::RankOutOfRange`].
    ///
    /// # Source
    ///
    /// DeepSpeed, `PipelineModule.ckpt_prefix`, without the directory.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data_model(2, 2, 2)?;
    /// assert_eq!(topology.module_name(Rank(6))?, "module-pipe_01-model_00");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ckpt_prefix")]
    pub fn module_name(&self, rank: Rank) -> Result<String, LookupError> {
        self.check_rank(rank)?;
        let repr = self.rank_repr(rank, &RankRepr { omit_axes: &["data"], ..RankRepr::default() })?;
        Ok(joined("module", &repr))
    }

    /// Returns the name of the file of one layer, such as `layer_04-model_00-model_states`, without an
    /// extension. It does not depend on the stage that holds the layer.
    ///
    /// # Errors
    ///
    /// [`LookupError::RankOutOfRange`] for a rank past the end of the world.
    ///
    /// # Source
    ///
    /// DeepSpeed, `PipelineModule.ckpt_layer_path`, without the directory and `.pt`.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{ProcessTopology, Rank};
    ///
    /// let topology = ProcessTopology::pipe_data(2, 2)?;
    /// assert_eq!(topology.layer_name(Rank(3), 4)?, "layer_04-model_states");
    /// let sliced = ProcessTopology::pipe_data_model(2, 2, 2)?;
    /// assert_eq!(sliced.layer_name(Rank(7), 100)?, "layer_100-model_01-model_states");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ckpt_layer_path")]
    pub fn layer_name(&self, rank: Rank, layer: usize) -> Result<String, LookupError> {
        self.check_rank(rank)?;
        let repr = self.rank_repr(rank, &RankRepr::default())?;
        let mut name = joined(&format!("layer_{layer:02}"), &repr);
        name.push_str("-model_states");
        Ok(name)
    }
}

/// Joins a word and a rank string that may be empty.
fn joined(word: &str, repr: &str) -> String {
    let mut name = word.to_owned();
    if !repr.is_empty() {
        // Writing to a string cannot fail.
        let _ = write!(name, "-{repr}");
    }
    name
}
