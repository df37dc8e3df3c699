//! Placement: which pipeline rank runs which stage.

use serde::{Deserialize, Serialize};

use crate::{PipeRank, PlacementError, Stage};

/// A way through the ranks of a [bidirectional](Placement::bidirectional) pipeline.
///
/// Every other placement sends all micro-batches down, and ignores the direction that it is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Direction {
    /// The first stage is on the first rank, the last stage on the last one.
    Down,
    /// The first stage is on the last rank, the last stage on the first one.
    Up,
}

/// Maps the stages of a pipeline to its ranks, and back.
///
/// ```text
/// linear:4        looped:2x3          v:3             bidirectional:4
/// rank 0: 0       rank 0: 0 2 4       rank 0: 0 5     rank 0: 0 down, 3 up
/// rank 1: 1       rank 1: 1 3 5       rank 1: 1 4     rank 1: 1 down, 2 up
/// rank 2: 2                           rank 2: 2 3     rank 2: 2 down, 1 up
/// rank 3: 3                                           rank 3: 3 down, 0 up
/// ```
///
/// In a bidirectional placement each stage lives on two ranks, as two copies of the same weights; which of
/// them runs a micro-batch depends on the [`Direction`] that it takes. In every other one a stage lives on
/// one rank.
///
/// Two placements are equal when they map every stage to the same ranks: a looped placement with one
/// stage a rank *is* the linear one, a V over one rank *is* the looped one, and a bidirectional one over one
/// rank *is* linear. Nothing is stored but the shape, so a placement of a million stages costs what one of
/// two does.
///
/// # Source
///
/// Looped: the interleaved schedule of Megatron-LM (Narayanan et al. 2021, section 2.2). V: Qi et al.
/// 2024, "Pipeline Parallelism with Controllable Memory", section 3. Bidirectional: Chimera (Li and Hoefler
/// 2021, section 3) and DualPipe (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 3.2.1).
///
/// # Examples
///
/// ```
/// use brigade_topology::{PipeRank, Placement, Stage};
///
/// let v = Placement::v(3)?;
/// assert_eq!(v.rank_of(Stage(4))?, PipeRank(1));
/// assert!(v.stages_of(PipeRank(1))?.eq([Stage(1), Stage(4)]));
/// assert_eq!("v:3".parse::<Placement>()?, v);
/// # Ok::<(), brigade_topology::PlacementError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Placement {
    pub(crate) shape: Shape,
}

/// The canonical shape: no two values describe one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    Linear {
        n_stages: u32,
    },
    /// At least two stages a rank.
    Looped {
        n_ranks: u32,
        stages_per_rank: u32,
    },
    /// At least two ranks.
    V {
        n_ranks: u32,
    },
    /// At least two ranks.
    Bidirectional {
        n_ranks: u32,
    },
}

impl Placement {
    /// Returns the placement with one stage a rank, in order.
    ///
    /// # Errors
    ///
    /// [`PlacementError::Empty`] for no stage.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::Placement;
    ///
    /// let linear = Placement::linear(4)?;
    /// assert_eq!((linear.n_ranks(), linear.n_stages()), (4, 4));
    /// assert!(Placement::linear(0).is_err());
    /// # Ok::<(), brigade_topology::PlacementError>(())
    /// ```
    pub fn linear(n_stages: u32) -> Result<Self, PlacementError> {
        Self::looped(n_stages, 1)
    }

    /// Returns the placement that deals the stages out to the ranks like cards, round after round.
    ///
    /// # Errors
    ///
    /// [`PlacementError::Empty`] when either number is 0, [`PlacementError::TooManyStages`] when their
    /// product does not fit 32 bits.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipeRank, Placement, Stage};
    ///
    /// let looped = Placement::looped(2, 3)?;
    /// assert!(looped.stages_of(PipeRank(1))?.eq([Stage(1), Stage(3), Stage(5)]));
    /// # Ok::<(), brigade_topology::PlacementError>(())
    /// ```
    #[doc(alias = "interleaved")]
    pub fn looped(n_ranks: u32, stages_per_rank: u32) -> Result<Self, PlacementError> {
        check(n_ranks, stages_per_rank)?;
        let shape = match stages_per_rank {
            1 => Shape::Linear { n_stages: n_ranks },
            _ => Shape::Looped { n_ranks, stages_per_rank },
        };
        Ok(Self { shape })
    }

    /// Returns the placement that goes down the ranks and comes back up: two stages a rank, the first
    /// rank holding the first stage and the last.
    ///
    /// # Errors
    ///
    /// [`PlacementError::Empty`] for no rank, [`PlacementError::TooManyStages`] when twice the ranks do
    /// not fit 32 bits.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipeRank, Placement, Stage};
    ///
    /// let v = Placement::v(4)?;
    /// assert!(v.stages_of(PipeRank(0))?.eq([Stage(0), Stage(7)]));
    /// # Ok::<(), brigade_topology::PlacementError>(())
    /// ```
    pub fn v(n_ranks: u32) -> Result<Self, PlacementError> {
        check(n_ranks, 2)?;
        let shape = match n_ranks {
            1 => Shape::Looped { n_ranks, stages_per_rank: 2 },
            _ => Shape::V { n_ranks },
        };
        Ok(Self { shape })
    }

    /// Returns the placement with two pipelines through the same ranks, one down and one up, over two
    /// copies of one model: as many stages as ranks, rank `r` holding stage `r` for micro-batches that go
    /// down and stage `p - 1 - r` for those that go up.
    ///
    /// The middle one of an odd number of ranks holds its one stage once, for both directions.
    ///
    /// # Errors
    ///
    /// [`PlacementError::Empty`] for no rank.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Direction, PipeRank, Placement, Stage};
    ///
    /// let both = Placement::bidirectional(4)?;
    /// assert_eq!((both.n_ranks(), both.n_stages()), (4, 4));
    /// assert!(both.stages_of(PipeRank(3))?.eq([Stage(0), Stage(3)]));
    /// assert_eq!(both.rank_towards(Stage(0), Direction::Up)?, PipeRank(3));
    /// assert_eq!("bidirectional:4".parse::<Placement>()?, both);
    /// # Ok::<(), brigade_topology::PlacementError>(())
    /// ```
    #[doc(alias = "dual_pipe")]
    pub fn bidirectional(n_ranks: u32) -> Result<Self, PlacementError> {
        check(n_ranks, 1)?;
        let shape = match n_ranks {
            1 => Shape::Linear { n_stages: 1 },
            _ => Shape::Bidirectional { n_ranks },
        };
        Ok(Self { shape })
    }

    /// Tells whether micro-batches go through the ranks in both directions, over two copies of each stage.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::Placement;
    ///
    /// assert!(Placement::bidirectional(2)?.is_bidirectional());
    /// assert!(!Placement::v(2)?.is_bidirectional());
    /// # Ok::<(), brigade_topology::PlacementError>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn is_bidirectional(&self) -> bool {
        matches!(self.shape, Shape::Bidirectional { .. })
    }

    /// Returns the number of stages of the whole pipeline.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(brigade_topology::Placement::looped(4, 3)?.n_stages(), 12);
    /// # Ok::<(), brigade_topology::PlacementError>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn n_stages(&self) -> u32 {
        match self.shape {
            Shape::Bidirectional { n_ranks } => n_ranks,
            _ => self.n_ranks().saturating_mul(self.stages_per_rank()),
        }
    }

    /// Returns the number of ranks of the pipeline.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(brigade_topology::Placement::looped(4, 3)?.n_ranks(), 4);
    /// # Ok::<(), brigade_topology::PlacementError>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn n_ranks(&self) -> u32 {
        match self.shape {
            Shape::Linear { n_stages } => n_stages,
            Shape::Looped { n_ranks, .. } | Shape::V { n_ranks } | Shape::Bidirectional { n_ranks } => {
                n_ranks
            }
        }
    }

    /// Returns how many stages each rank holds. (The middle one of an odd number of ranks holds one less in
    /// a bidirectional placement.)
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(brigade_topology::Placement::v(4)?.stages_per_rank(), 2);
    /// # Ok::<(), brigade_topology::PlacementError>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn stages_per_rank(&self) -> u32 {
        match self.shape {
            Shape::Linear { .. } => 1,
            Shape::Looped { stages_per_rank, .. } => stages_per_rank,
            Shape::V { .. } | Shape::Bidirectional { .. } => 2,
        }
    }

    /// Returns the pipeline rank that runs a stage; in a bidirectional placement the one that runs it for
    /// micro-batches that go down.
    ///
    /// # Errors
    ///
    /// [`PlacementError::StageOutOfRange`] for a stage past the last one.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipeRank, Placement, Stage};
    ///
    /// assert_eq!(Placement::looped(4, 2)?.rank_of(Stage(6))?, PipeRank(2));
    /// assert_eq!(Placement::v(4)?.rank_of(Stage(6))?, PipeRank(1));
    /// assert!(Placement::v(4)?.rank_of(Stage(8)).is_err());
    /// # Ok::<(), brigade_topology::PlacementError>(())
    /// ```
    #[inline]
    pub fn rank_of(&self, stage: Stage) -> Result<PipeRank, PlacementError> {
        self.check_stage(stage)?;
        Ok(self.rank_of_checked(stage))
    }

    /// Returns the pipeline rank that runs a stage for micro-batches of one direction.
    ///
    /// # Errors
    ///
    /// [`PlacementError::StageOutOfRange`] for a stage past the last one.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Direction, PipeRank, Placement, Stage};
    ///
    /// let both = Placement::bidirectional(4)?;
    /// assert_eq!(both.rank_towards(Stage(1), Direction::Down)?, PipeRank(1));
    /// assert_eq!(both.rank_towards(Stage(1), Direction::Up)?, PipeRank(2));
    /// assert_eq!(Placement::linear(4)?.rank_towards(Stage(1), Direction::Up)?, PipeRank(1));
    /// # Ok::<(), brigade_topology::PlacementError>(())
    /// ```
    #[inline]
    pub fn rank_towards(&self, stage: Stage, direction: Direction) -> Result<PipeRank, PlacementError> {
        let down = self.rank_of(stage)?;
        Ok(match (self.shape, direction) {
            (Shape::Bidirectional { n_ranks }, Direction::Up) => PipeRank(n_ranks - 1 - down.0),
            _ => down,
        })
    }

    /// Returns every pipeline rank that holds a stage, in ascending order: two in a bidirectional placement,
    /// or one for its middle stage; else one.
    ///
    /// # Errors
    ///
    /// [`PlacementError::StageOutOfRange`] for a stage past the last one.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipeRank, Placement, Stage};
    ///
    /// assert!(Placement::bidirectional(4)?.holders_of(Stage(2))?.eq([PipeRank(1), PipeRank(2)]));
    /// assert!(Placement::bidirectional(3)?.holders_of(Stage(1))?.eq([PipeRank(1)]));
    /// assert!(Placement::v(4)?.holders_of(Stage(6))?.eq([PipeRank(1)]));
    /// # Ok::<(), brigade_topology::PlacementError>(())
    /// ```
    pub fn holders_of(
        &self,
        stage: Stage,
    ) -> Result<impl DoubleEndedIterator<Item = PipeRank> + use<>, PlacementError> {
        let down = self.rank_towards(stage, Direction::Down)?;
        let up = self.rank_towards(stage, Direction::Up)?;
        let second = (down != up).then(|| down.max(up));
        Ok(std::iter::once(down.min(up)).chain(second))
    }

    /// Returns which of its rank's stages a stage is, counted from 0 in forward order; the rank is that of
    /// [`rank_of`](Self::rank_of).
    ///
    /// # Errors
    ///
    /// [`PlacementError::StageOutOfRange`] for a stage past the last one.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{Placement, Stage};
    ///
    /// assert_eq!(Placement::looped(4, 2)?.local_of(Stage(6))?, 1);
    /// assert_eq!(Placement::v(4)?.local_of(Stage(3))?, 0);
    /// # Ok::<(), brigade_topology::PlacementError>(())
    /// ```
    pub fn local_of(&self, stage: Stage) -> Result<u32, PlacementError> {
        self.check_stage(stage)?;
        Ok(match self.shape {
            Shape::Bidirectional { n_ranks } => u32::from(stage.0 > n_ranks - 1 - stage.0),
            _ => stage.0 / self.n_ranks(),
        })
    }

    /// Returns the stage that a rank holds as its `local`-th, counted from 0 in forward order: the
    /// inverse of [`rank_of`](Self::rank_of) and [`local_of`](Self::local_of).
    ///
    /// # Errors
    ///
    /// [`PlacementError::RankOutOfRange`] and [`PlacementError::LocalOutOfRange`].
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipeRank, Placement, Stage};
    ///
    /// assert_eq!(Placement::looped(4, 2)?.stage_at(PipeRank(2), 1)?, Stage(6));
    /// assert_eq!(Placement::v(4)?.stage_at(PipeRank(1), 1)?, Stage(6));
    /// # Ok::<(), brigade_topology::PlacementError>(())
    /// ```
    pub fn stage_at(&self, rank: PipeRank, local: u32) -> Result<Stage, PlacementError> {
        let n_ranks = self.n_ranks();
        if rank.0 >= n_ranks {
            return Err(PlacementError::RankOutOfRange { rank, n_ranks });
        }
        let stages_per_rank = self.n_locals(rank);
        if local >= stages_per_rank {
            return Err(PlacementError::LocalOutOfRange { local, stages_per_rank });
        }
        Ok(self.stage_at_checked(rank, local))
    }

    /// Returns the stages of a rank in forward order.
    ///
    /// # Errors
    ///
    /// [`PlacementError::RankOutOfRange`] for a rank past the last one.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::{PipeRank, Placement};
    ///
    /// let looped = Placement::looped(4, 3)?;
    /// let stages: Vec<u32> = looped.stages_of(PipeRank(1))?.map(u32::from).collect();
    /// assert_eq!(stages, [1, 5, 9]);
    /// # Ok::<(), brigade_topology::PlacementError>(())
    /// ```
    pub fn stages_of(
        &self,
        rank: PipeRank,
    ) -> Result<impl DoubleEndedIterator<Item = Stage> + ExactSizeIterator + use<>, PlacementError> {
        self.stage_at(rank, 0)?;
        let placement = *self;
        Ok(PerRank { locals: 0..self.n_locals(rank), placement, rank })
    }

    /// Returns the pipeline rank of every stage, in stage order, as [`rank_of`](Self::rank_of) gives it: what
    /// a partitioner needs in order to balance ranks that hold several stages.
    ///
    /// # Examples
    ///
    /// ```
    /// use brigade_topology::Placement;
    ///
    /// let ranks: Vec<usize> = Placement::v(3)?.ranks().map(|rank| rank.index()).collect();
    /// assert_eq!(ranks, [0, 1, 2, 2, 1, 0]);
    /// # Ok::<(), brigade_topology::PlacementError>(())
    /// ```
    pub fn ranks(&self) -> impl DoubleEndedIterator<Item = PipeRank> + use<> {
        let placement = *self;
        (0..self.n_stages()).map(move |stage| placement.rank_of_checked(Stage(stage)))
    }

    #[inline]
    fn check_stage(&self, stage: Stage) -> Result<(), PlacementError> {
        let n_stages = self.n_stages();
        if stage.0 < n_stages { Ok(()) } else { Err(PlacementError::StageOutOfRange { stage, n_stages }) }
    }

    /// The stages of one rank of the placement.
    fn n_locals(&self, rank: PipeRank) -> u32 {
        match self.shape {
            Shape::Bidirectional { n_ranks } if rank.0 == n_ranks - 1 - rank.0 => 1,
            _ => self.stages_per_rank(),
        }
    }

    #[inline]
    fn rank_of_checked(&self, stage: Stage) -> PipeRank {
        match self.shape {
            Shape::Linear { .. } | Shape::Bidirectional { .. } => PipeRank(stage.0),
            Shape::Looped { n_ranks, .. } => PipeRank(stage.0 % n_ranks),
            Shape::V { n_ranks } if stage.0 < n_ranks => PipeRank(stage.0),
            Shape::V { .. } => PipeRank(self.n_stages() - 1 - stage.0),
        }
    }

    fn stage_at_checked(&self, rank: PipeRank, local: u32) -> Stage {
        match self.shape {
            Shape::V { .. } if local == 1 => Stage(self.n_stages() - 1 - rank.0),
            Shape::Bidirectional { n_ranks } => {
                let other = n_ranks - 1 - rank.0;
                Stage(if local == 0 { rank.0.min(other) } else { rank.0.max(other) })
            }
            _ => Stage(local * self.n_ranks() + rank.0),
        }
    }
}

/// The stages of one rank.
struct PerRank {
    locals: std::ops::Range<u32>,
    placement: Placement,
    rank: PipeRank,
}

impl Iterator for PerRank {
    type Item = Stage;

    fn next(&mut self) -> Option<Stage> {
        self.locals.next().map(|local| self.placement.stage_at_checked(self.rank, local))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.locals.size_hint()
    }
}

impl DoubleEndedIterator for PerRank {
    fn next_back(&mut self) -> Option<Stage> {
        self.locals.next_back().map(|local| self.placement.stage_at_checked(self.rank, local))
    }
}

impl ExactSizeIterator for PerRank {}

fn check(n_ranks: u32, stages_per_rank: u32) -> Result<(), PlacementError> {
    if n_ranks == 0 || stages_per_rank == 0 {
        return Err(PlacementError::Empty { n_ranks, stages_per_rank });
    }
    match n_ranks.checked_mul(stages_per_rank) {
        Some(_) => Ok(()),
        None => Err(PlacementError::TooManyStages { n_ranks, stages_per_rank }),
    }
}
