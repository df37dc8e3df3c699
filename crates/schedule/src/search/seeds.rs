//! Regular rows to start from, as the literature builds them by hand.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use brigade_topology::Direction;

use super::dispatch::Rows;
use super::model::{Kind, Model, Step};
use super::refine::Rework;
use super::rounds::rounds;
use crate::action::{Compute, ComputeKind};
use crate::schedules::dual_pipe;
use crate::schedules::interleaved::{first_group, visits};
use crate::shape::Shape;

/// Offers rows that respect the memory limits, from which refinement starts, until there is enough of them.
pub(crate) fn seeds(model: &Model, work: &mut Rework<'_>, mut offer: impl FnMut(Rows) -> ControlFlow<()>) {
    let _: ControlFlow<()> = offer_all(model, work, &mut offer);
}

fn offer_all(
    model: &Model,
    work: &mut Rework<'_>,
    offer: &mut impl FnMut(Rows) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut timed = |work: &mut Rework<'_>, rows: Option<Vec<Vec<Step>>>| {
        let rows = rows.filter(|rows| fits(model, rows)).and_then(|rows| work.timed(rows));
        rows.map_or(ControlFlow::Continue(()), &mut *offer)
    };
    if model.is_looped() {
        for slope in [1, 2] {
            for lazy in [false, true] {
                timed(work, looped(model, slope, lazy))?;
            }
        }
    }
    timed(work, both_ways(model))?;
    if !model.is_v() {
        return ControlFlow::Continue(());
    }
    // They are within the memory, and know what they cost.
    rounds(model, &mut *offer)?;
    if model.n_ranks.saturating_mul(model.n_micro_batches) <= MOST_SLOTS {
        for rows in v_shapes(model, work) {
            if fits(model, &rows) {
                work.timed(rows).map_or(ControlFlow::Continue(()), &mut *offer)?;
            }
        }
    }
    ControlFlow::Continue(())
}

/// The largest problem, ranks times micro-batches, for which blocks are laid out.
const MOST_SLOTS: usize = 2048;

/// Whether no rank holds more than its limit.
fn fits(model: &Model, rows: &[Vec<Step>]) -> bool {
    rows.iter().zip(&model.limit).all(|(row, &limit)| {
        let mut memory = 0;
        row.iter().all(|step| {
            let stage = &model.stages[step.stage];
            match step.kind {
                Kind::Forward => memory += stage.activation,
                Kind::InputGrad => memory -= stage.activation - stage.weight_grad,
                Kind::WeightGrad => memory -= stage.weight_grad,
            }
            memory <= limit
        })
    })
}

/// Stages dealt out in rounds: some forwards, then input gradient and forward in turn, micro-batches in groups.
/// Rank `r` starts with a group for each stage but one, and `slope * (p - 1 - r) + 1` forwards more. Weight
/// gradients come at once on rank 0 and `r` turns later on rank `r` (ZB-H1), or as late as memory allows when
/// `lazy` (ZB-H2).
fn looped(model: &Model, slope: usize, lazy: bool) -> Option<Vec<Vec<Step>>> {
    let p = model.n_ranks;
    let n_virtual = u32::try_from(model.n_virtual).ok()?;
    let shape = Shape {
        n_ranks: u32::try_from(p).ok()?,
        n_micro_batches: u32::try_from(model.n_micro_batches).ok()?,
    };
    let order: Vec<(usize, usize)> = visits(shape, n_virtual)
        .map(|(local, micro_batch)| {
            Some((usize::try_from(local).ok()?, usize::try_from(micro_batch.0).ok()?))
        })
        .collect::<Option<_>>()?;
    let group = usize::try_from(first_group(shape)).ok()?;
    let row = |rank: usize| {
        let step = |kind, (local, micro_batch): (usize, usize)| {
            let local = if kind == Kind::Forward { local } else { model.n_virtual - 1 - local };
            Step { kind, stage: model.stages_of[rank][local], micro_batch }
        };
        let n = order.len();
        let n_warm_up = ((model.n_virtual - 1) * group + slope * (p - rank - 1) + 1).min(n);
        let limit = model.limit[rank];
        let (mut row, mut memory) = (Vec::with_capacity(3 * n), 0_u64);
        let mut n_forward = 0;
        while n_forward < n_warm_up {
            let forward = step(Kind::Forward, order[n_forward]);
            let activation = model.stages[forward.stage].activation;
            if memory + activation > limit {
                break;
            }
            memory += activation;
            row.push(forward);
            n_forward += 1;
        }
        let mut n_weight = 0;
        for at in 0..n {
            let input_grad = step(Kind::InputGrad, order[at]);
            let stage = &model.stages[input_grad.stage];
            memory = memory.checked_sub(stage.activation - stage.weight_grad)?;
            row.push(input_grad);
            let due = if lazy { 0 } else { (at + 1).saturating_sub(rank) };
            let next = order.get(n_forward).map(|&visit| step(Kind::Forward, visit));
            let needed = next.map_or(0, |next| model.stages[next.stage].activation);
            while n_weight <= at && (n_weight < due || memory + needed > limit) {
                let weight_grad = step(Kind::WeightGrad, order[n_weight]);
                memory -= model.stages[weight_grad.stage].weight_grad;
                row.push(weight_grad);
                n_weight += 1;
            }
            if let Some(next) = next {
                row.push(next);
                memory += needed;
                n_forward += 1;
            }
        }
        row.extend(order[n_weight..].iter().map(|&visit| step(Kind::WeightGrad, visit)));
        Some(row)
    };
    (0..p).map(row).collect()
}

/// The rows of DualPipe, where the stages lie so, with all backward passes split.
fn both_ways(model: &Model) -> Option<Vec<Vec<Step>>> {
    let shape = Shape {
        n_ranks: u32::try_from(model.n_ranks).ok()?,
        n_micro_batches: u32::try_from(model.n_visits() / model.n_chain).ok()?,
    };
    if !model.placement.is_bidirectional() || !dual_pipe::has_rows(shape) {
        return None;
    }
    let steps = |compute: Compute| {
        let goes_up = compute.micro_batch.direction() == Direction::Up;
        let stage = compute.stage.index() + if goes_up { model.n_chain } else { 0 };
        let micro_batch = usize::try_from(compute.micro_batch.0 / 2).unwrap_or(usize::MAX);
        let step = move |kind| Step { kind, stage, micro_batch };
        let (first, second) = match compute.kind {
            ComputeKind::Forward => (Kind::Forward, None),
            ComputeKind::Backward => (Kind::InputGrad, Some(Kind::WeightGrad)),
            ComputeKind::InputGrad => (Kind::InputGrad, None),
            ComputeKind::WeightGrad => (Kind::WeightGrad, None),
        };
        std::iter::once(step(first)).chain(second.map(step))
    };
    let row =
        |rank| dual_pipe::row(shape, rank).flat_map(|action| action.computes()).flat_map(steps).collect();
    Some((0..shape.n_ranks).map(row).collect())
}

/// A building block: when the first micro-batch passes each rank, in slots of one step; the following ones
/// pass six slots later each.
#[derive(Debug, Clone)]
struct Block {
    /// For each rank: forward down, forward up, input gradient up, input gradient down.
    offsets: Vec<[usize; 4]>,
}

impl Block {
    /// All blocks in which each of the four kinds moves at a steady pace from rank to rank, with equal memory
    /// on all ranks, and no two kinds of a rank in one slot. V-Min (paces 1, 1, 1, 1), V-Half (2, 1, 2, 1) and
    /// V-ZB are among them.
    ///
    /// # Source
    /// Qi et al., "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362), section 3.
    fn all(p: usize) -> impl Iterator<Item = Self> {
        let paces = |most: usize| (1..=most).flat_map(move |a| (1..=most).map(move |b| (a, b)));
        let delays = || {
            (0..3).flat_map(|turn| (0..3).flat_map(move |back| (0..6).map(move |loss| (turn, loss, back))))
        };
        paces(4)
            .flat_map(move |(down, up)| (1..=4).map(move |up_back| (down, up, up_back)))
            .filter_map(|(down, up, up_back)| Some((down, up, up_back, (up + up_back).checked_sub(down)?)))
            .filter(|&(.., down_back)| (1..=4).contains(&down_back))
            .flat_map(move |paces| delays().map(move |delays| Self::new(p, paces, delays)))
            .filter(Self::is_free_of_collisions)
    }

    fn new(p: usize, paces: (usize, usize, usize, usize), delays: (usize, usize, usize)) -> Self {
        let (down, up, up_back, down_back) = paces;
        let (turn, loss, back) = delays;
        let first_up = down * (p - 1) + 1 + turn;
        let first_up_back = first_up + up * (p - 1) + 1 + loss;
        let first_down_back = first_up_back + up_back * (p - 1) + 1 + back;
        let offsets = |r: usize| {
            let after = p - 1 - r;
            [
                down * r,
                first_up + up * after,
                first_up_back + up_back * r,
                first_down_back + down_back * after,
            ]
        };
        Self { offsets: (0..p).map(offsets).collect() }
    }

    fn is_free_of_collisions(&self) -> bool {
        self.offsets.iter().all(|slots| {
            let mut taken = [false; 6];
            slots.iter().all(|slot| !std::mem::replace(&mut taken[slot % 6], true))
        })
    }
}

/// What stands in a slot: one of the four kinds of a block.
type Cell = Option<(usize, usize)>;

/// Repeats each block for every micro-batch; of the best few, moves what comes before and after the steady
/// state closer, in two ways.
fn v_shapes(model: &Model, work: &mut Rework<'_>) -> Vec<Vec<Vec<Step>>> {
    let laid_out = Block::all(model.n_ranks).filter_map(|block| {
        let layout = Layout::new(model, &block);
        let rows = layout.rows(model);
        let cost_s = fits(model, &rows).then(|| work.cost_s(&rows))??;
        Some((cost_s, layout))
    });
    let mut layouts: Vec<(f64, Layout)> = laid_out.collect();
    layouts.sort_by(|a, b| a.0.total_cmp(&b.0));
    layouts.truncate(N_BLOCKS);
    // The blocks of V-Min and V-Half are packed in any case: they shrink well.
    let classic = [
        ((1, 1, 1, 1), (0, 0, 0)),
        ((1, 1, 1, 1), (0, 2, 0)),
        ((2, 1, 2, 1), (0, 0, 1)),
        ((2, 1, 2, 1), (0, 3, 1)),
    ];
    let classic = classic.into_iter().map(|(paces, delays)| Block::new(model.n_ranks, paces, delays));
    let classic = classic.filter(Block::is_free_of_collisions);
    layouts.extend(classic.map(|block| (0.0, Layout::new(model, &block))));
    let ways = |(_, plain): (f64, Layout)| {
        let mut packed = plain.clone();
        packed.pack(model, false);
        let mut tail = packed.clone();
        tail.pack(model, true);
        [plain, packed, tail].map(|layout| layout.rows(model))
    };
    layouts.into_iter().flat_map(ways).collect()
}

/// How many blocks are packed.
const N_BLOCKS: usize = 8;

/// Slots of all ranks, for the four kinds of a block; weight gradients take free slots.
#[derive(Debug, Clone)]
struct Layout {
    /// Slot by rank, kind and micro-batch.
    slots: Vec<[Vec<usize>; 4]>,
    cells: Vec<Vec<Cell>>,
}

impl Layout {
    fn new(model: &Model, block: &Block) -> Self {
        let m = model.n_micro_batches;
        let slots: Vec<[Vec<usize>; 4]> = block
            .offsets
            .iter()
            .map(|offsets| offsets.map(|offset| (0..m).map(|mb| offset + 6 * mb).collect()))
            .collect();
        let n_cells = 1 + slots.iter().flatten().flatten().copied().max().unwrap_or(0);
        let mut cells = vec![vec![None; n_cells]; model.n_ranks];
        for (rank, kinds) in slots.iter().enumerate() {
            for (kind, slots) in kinds.iter().enumerate() {
                for (micro_batch, &slot) in slots.iter().enumerate() {
                    cells[rank][slot] = Some((kind, micro_batch));
                }
            }
        }
        Self { slots, cells }
    }

    /// The most forwards that a rank holds, when weight gradients take the first free slots.
    fn peak(cells: &[Cell]) -> usize {
        let (mut held, mut peak, mut pending) = (0_usize, 0, 0_usize);
        for cell in cells {
            match cell {
                Some((0 | 1, _)) => held += 1,
                Some(_) => pending += 1,
                None if pending > 0 => {
                    pending -= 1;
                    held = held.saturating_sub(1);
                }
                None => {}
            }
            peak = peak.max(held);
        }
        peak
    }

    /// Moves steps to earlier free slots, as far as what they need and the peak allow: before the steady
    /// state and after it, or only after it.
    fn pack(&mut self, model: &Model, only_after: bool) {
        let p = model.n_ranks;
        let allowed = self.cells.iter().map(|cells| Self::peak(cells)).max().unwrap_or(0);
        let steady = self.slots[0][3].first().copied().unwrap_or(0);
        let after = self.slots[0][0].last().copied().unwrap_or(0);
        let n_cells = self.cells.first().map_or(0, Vec::len);
        for slot in 0..n_cells {
            if (steady..=after).contains(&slot) || only_after && slot < steady {
                continue;
            }
            for rank in 0..p {
                let Some((kind, micro_batch)) = self.cells[rank][slot] else { continue };
                let earliest = self.earliest(rank, kind, micro_batch, p);
                self.cells[rank][slot] = None;
                let place = (earliest..slot).find(|&free| {
                    if self.cells[rank][free].is_some() {
                        return false;
                    }
                    self.cells[rank][free] = Some((kind, micro_batch));
                    let good = Self::peak(&self.cells[rank]) <= allowed;
                    self.cells[rank][free] = None;
                    good
                });
                let place = place.unwrap_or(slot);
                self.cells[rank][place] = Some((kind, micro_batch));
                self.slots[rank][kind][micro_batch] = place;
            }
        }
    }

    /// The first slot after everything that a step needs.
    fn earliest(&self, rank: usize, kind: usize, micro_batch: usize, p: usize) -> usize {
        let neighbour =
            if kind.is_multiple_of(2) { rank.checked_sub(1) } else { Some(rank + 1).filter(|&r| r < p) };
        let needed = [
            neighbour.map(|neighbour| self.slots[neighbour][kind][micro_batch]),
            kind.checked_sub(1).map(|before| self.slots[rank][before][micro_batch]),
            micro_batch.checked_sub(1).map(|before| self.slots[rank][kind][before]),
        ];
        needed.into_iter().flatten().max().map_or(0, |slot| slot + 1)
    }

    /// The rows, with weight gradients in the first free slots and the rest of them at the end.
    fn rows(&self, model: &Model) -> Vec<Vec<Step>> {
        let n_stages = model.n_stages;
        let row = |(rank, cells): (usize, &Vec<Cell>)| {
            let mut row = Vec::new();
            let mut pending = VecDeque::new();
            for cell in cells {
                match *cell {
                    Some((kind, micro_batch)) => {
                        let stage = if kind == 0 || kind == 3 { rank } else { n_stages - 1 - rank };
                        let forward = kind < 2;
                        let kind = if forward { Kind::Forward } else { Kind::InputGrad };
                        row.push(Step { kind, stage, micro_batch });
                        if !forward {
                            pending.push_back(Step { kind: Kind::WeightGrad, stage, micro_batch });
                        }
                    }
                    None => row.extend(pending.pop_front()),
                }
            }
            row.extend(pending);
            row
        };
        self.cells.iter().enumerate().map(row).collect()
    }
}
