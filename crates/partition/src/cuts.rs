//! `Cuts`: where a list of layers is cut into stages.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::CutsError;

/// Holds the boundaries of the stages: stage `i` runs from boundary `i` up to boundary `i + 1`.
///
/// Every layer belongs to exactly one stage. A stage may be empty, when two neighbouring boundaries are
/// equal.
///
/// # Examples
///
/// ```
/// use brigade_partition::Cuts;
///
/// let cuts = Cuts::new(vec![0, 3, 5, 8])?;
/// assert_eq!((cuts.n_stages(), cuts.n_layers()), (3, 8));
/// assert_eq!(cuts.stage(1), 3..5);
/// assert_eq!(cuts.stage_of(4), Some(1));
/// # Ok::<(), brigade_partition::CutsError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<usize>", into = "Vec<usize>")]
pub struct Cuts {
    boundaries: Vec<usize>,
}

impl Cuts {
    /// Checks a list of boundaries: the start of each stage, then the end of the last one.
    ///
    /// # Errors
    ///
    /// [`CutsError::NoStages`] for fewer than two boundaries, [`CutsError::NotAtZero`] when the first is
    /// not 0, [`CutsError::Decreasing`] when one lies before its predecessor.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_partition::{Cuts, CutsError};
    ///
    /// assert!(Cuts::new(vec![0, 2, 2]).is_ok());
    /// assert_eq!(Cuts::new(vec![0, 3, 2]), Err(CutsError::Decreasing { stage: 1, start: 3, end: 2 }));
    /// ```
    pub fn new(boundaries: Vec<usize>) -> Result<Self, CutsError> {
        if boundaries.len() < 2 {
            return Err(CutsError::NoStages { n_boundaries: boundaries.len() });
        }
        if let Some(&first) = boundaries.first()
            && first != 0
        {
            return Err(CutsError::NotAtZero { first });
        }
        let backwards = boundaries.windows(2).enumerate().find(|(_, pair)| pair[1] < pair[0]);
        match backwards {
            Some((stage, pair)) => Err(CutsError::Decreasing { stage, start: pair[0], end: pair[1] }),
            None => Ok(Self { boundaries }),
        }
    }

    /// Returns the number of stages, empty ones included.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(brigade_partition::Cuts::new(vec![0, 2, 2])?.n_stages(), 2);
    /// # Ok::<(), brigade_partition::CutsError>(())
    /// ```
    #[must_use]
    pub fn n_stages(&self) -> usize {
        self.boundaries.len() - 1
    }

    /// Returns the number of layers.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(brigade_partition::Cuts::new(vec![0, 2, 5])?.n_layers(), 5);
    /// # Ok::<(), brigade_partition::CutsError>(())
    /// ```
    #[must_use]
    pub fn n_layers(&self) -> usize {
        self.boundaries.last().copied().unwrap_or(0)
    }

    /// Returns the layers of a stage. A stage past the last one is empty, at the end of the list.
    ///
    /// # Examples
    ///
    /// ```
    /// let cuts = brigade_partition::Cuts::new(vec![0, 2, 5])?;
    /// assert_eq!(cuts.stage(1), 2..5);
    /// assert_eq!(cuts.stage(7), 5..5);
    /// # Ok::<(), brigade_partition::CutsError>(())
    /// ```
    #[must_use]
    pub fn stage(&self, stage: usize) -> Range<usize> {
        let boundary = |index: usize| self.boundaries.get(index).copied().unwrap_or(self.n_layers());
        boundary(stage)..boundary(stage.saturating_add(1))
    }

    /// Returns the layers of every stage, in order.
    ///
    /// # Examples
    ///
    /// ```
    /// let cuts = brigade_partition::Cuts::new(vec![0, 2, 5])?;
    /// assert!(cuts.stages().eq([0..2, 2..5]));
    /// # Ok::<(), brigade_partition::CutsError>(())
    /// ```
    pub fn stages(&self) -> impl DoubleEndedIterator<Item = Range<usize>> + ExactSizeIterator {
        self.boundaries.windows(2).map(|pair| pair[0]..pair[1])
    }

    /// Returns the stage that holds a layer, or `None` for a layer past the last one.
    ///
    /// # Source
    ///
    /// DeepSpeed, `PipelineModule.stage_owner`, which asserts instead.
    ///
    /// # Examples
    ///
    /// ```
    /// let cuts = brigade_partition::Cuts::new(vec![0, 2, 2, 5])?;
    /// assert_eq!(cuts.stage_of(1), Some(0));
    /// assert_eq!(cuts.stage_of(2), Some(2));
    /// assert_eq!(cuts.stage_of(5), None);
    /// # Ok::<(), brigade_partition::CutsError>(())
    /// ```
    #[doc(alias = "stage_owner")]
    #[must_use]
    pub fn stage_of(&self, layer: usize) -> Option<usize> {
        (layer < self.n_layers()).then(|| self.boundaries.partition_point(|&start| start <= layer) - 1)
    }

    /// Returns the boundaries: one more than there are stages.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(brigade_partition::Cuts::new(vec![0, 2, 5])?.boundaries(), [0, 2, 5]);
    /// # Ok::<(), brigade_partition::CutsError>(())
    /// ```
    #[must_use]
    pub fn boundaries(&self) -> &[usize] {
        &self.boundaries
    }

    /// Returns the first stage without a layer, if there is one.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_partition::Cuts;
    ///
    /// assert_eq!(Cuts::new(vec![0, 2, 2, 5])?.first_empty(), Some(1));
    /// assert_eq!(Cuts::new(vec![0, 2, 5])?.first_empty(), None);
    /// # Ok::<(), brigade_partition::CutsError>(())
    /// ```
    #[must_use]
    pub fn first_empty(&self) -> Option<usize> {
        self.stages().position(|layers| layers.is_empty())
    }
}

/// Writes the boundaries as `0,3,5,8`.
impl fmt::Display for Cuts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, boundary) in self.boundaries.iter().enumerate() {
            let separator = if position == 0 { "" } else { "," };
            write!(f, "{separator}{boundary}")?;
        }
        Ok(())
    }
}

impl TryFrom<Vec<usize>> for Cuts {
    type Error = CutsError;

    fn try_from(boundaries: Vec<usize>) -> Result<Self, CutsError> {
        Self::new(boundaries)
    }
}

impl From<Cuts> for Vec<usize> {
    fn from(cuts: Cuts) -> Self {
        cuts.boundaries
    }
}
