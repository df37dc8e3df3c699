//! A partition problem with all its conditions, in whole numbers.

use crate::weight::{Units, rounded_units};
use crate::{Cuts, LayerInfo, Options, PartitionError, Pin};

/// What is to be cut, and what each stage may take.
///
/// Places to cut are numbered from 0, at the start of the list, to `n_places() - 1`, at its end; layers
/// that share a stage by a pin have no place between them.
pub(crate) struct Problem {
    /// The layer that starts at each place; the number of layers at the last.
    pub(crate) layers: Vec<usize>,
    /// Sums of weights up to each place.
    pub(crate) work: Vec<u128>,
    /// What cutting at each place costs either side.
    pub(crate) cut: Vec<u128>,
    /// Sums of memory up to each place: fixed, and for each micro-batch in flight.
    fixed: Vec<u128>,
    in_flight: Vec<u128>,
    pub(crate) stages: Vec<Rule>,
    /// Where each stage may start, and the last one end: lowest and highest place.
    pub(crate) bounds: Vec<(usize, usize)>,
    pub(crate) n_ranks: usize,
    pub(crate) allow_empty: bool,
    /// One unit of work is 2 to this power, and costs this much on the fastest rank.
    pub(crate) exponent: i32,
    pub(crate) one: u128,
}

/// What one stage may take and what it pays.
pub(crate) struct Rule {
    pub(crate) rank: usize,
    /// The cost of one unit of work.
    pub(crate) rate: u128,
    /// The cost of one unit of sending, before the stage and behind it.
    send: (u128, u128),
    pub(crate) limit: Option<u128>,
    in_flight: u128,
}

impl Problem {
    pub(crate) fn new(
        units: &Units,
        layers: &[LayerInfo],
        n_stages: usize,
        options: &Options,
    ) -> Result<Self, PartitionError> {
        let places = places(layers.len(), &options.pins)?;
        let (work, cut, exponent) = with_sending(units, layers, options)?;
        let (fixed, in_flight) = memory(layers, options)?;
        let at = |list: &[u128]| places.iter().map(|&layer| list[layer]).collect::<Vec<_>>();
        let total = work.last().copied().unwrap_or(0);
        let (stages, one) = rules(n_stages, options, total, cut.iter().copied().max().unwrap_or(0))?;
        let bounds = bounds(&places, n_stages, options)?;
        Ok(Self {
            work: at(&work),
            cut: at(&cut),
            fixed: at(&fixed),
            in_flight: at(&in_flight),
            n_ranks: stages.iter().map(|rule| rule.rank + 1).max().unwrap_or(0),
            layers: places,
            stages,
            bounds,
            allow_empty: options.allow_empty,
            exponent,
            one,
        })
    }

    pub(crate) fn n_places(&self) -> usize {
        self.layers.len()
    }

    pub(crate) fn n_stages(&self) -> usize {
        self.stages.len()
    }

    /// Returns the cost of the work between two places on a stage, without sending.
    pub(crate) fn work_cost(&self, stage: usize, start: usize, end: usize) -> u128 {
        self.stages[stage].rate * (self.work[end] - self.work[start])
    }

    /// Returns the most that a stage can pay for sending at its two ends.
    pub(crate) fn dearest_sending(&self, stage: usize) -> u128 {
        let (before, behind) = self.stages[stage].send;
        (before + behind) * self.cut.iter().copied().max().unwrap_or(0)
    }

    /// Returns the cost of a stage between two places.
    pub(crate) fn cost(&self, stage: usize, start: usize, end: usize) -> u128 {
        let (before, behind) = self.stages[stage].send;
        self.work_cost(stage, start, end) + before * self.cut[start] + behind * self.cut[end]
    }

    /// Returns the memory of a stage between two places.
    pub(crate) fn bytes(&self, stage: usize, start: usize, end: usize) -> u128 {
        let for_each = self.in_flight[end] - self.in_flight[start];
        (self.fixed[end] - self.fixed[start])
            .saturating_add(for_each.saturating_mul(self.stages[stage].in_flight))
    }

    /// Tells whether the layers between two places fit the memory of a stage's rank, alone there.
    pub(crate) fn fits(&self, stage: usize, start: usize, end: usize) -> bool {
        self.stages[stage].limit.is_none_or(|limit| self.bytes(stage, start, end) <= limit)
    }

    /// Tells whether a stage may start or end at a place, as far as pins go.
    pub(crate) fn within(&self, boundary: usize, place: usize) -> bool {
        let (lowest, highest) = self.bounds[boundary];
        (lowest..=highest).contains(&place)
    }

    /// Turns places into cuts of layers.
    pub(crate) fn cuts(&self, places: &[usize]) -> Result<Cuts, PartitionError> {
        Ok(Cuts::new(places.iter().map(|&place| self.layers[place]).collect())?)
    }

    /// Says why no cuts fit, with the layer or stage that does not. Callers guarantee that none do.
    pub(crate) fn infeasible(&self) -> PartitionError {
        for place in 0..self.n_places() - 1 {
            let (first, last) = (self.layers[place], self.layers[place + 1] - 1);
            let fits = (0..self.n_stages()).any(|stage| self.fits(stage, place, place + 1));
            let least = (0..self.n_stages()).map(|stage| self.bytes(stage, place, place + 1)).min();
            if let (false, Some(bytes)) = (fits, least) {
                return PartitionError::LayerTooLarge { first, last, bytes };
            }
        }
        self.first_full_stage()
    }

    /// Returns the error for the first stage up to which not enough layers can be placed.
    fn first_full_stage(&self) -> PartitionError {
        let least = usize::from(!self.allow_empty);
        let mut reached = vec![false; self.n_places()];
        reached[0] = true;
        let mut furthest = 0;
        for stage in 0..self.n_stages() {
            let mut next = vec![false; self.n_places()];
            // A stage may end anywhere up to a place that moves right with its start, so that marking
            // goes over the places once.
            let (mut beyond, mut marked) = (0, 0);
            for start in (0..self.n_places()).filter(|&place| reached[place]) {
                beyond = beyond.max(start);
                while beyond < self.n_places() && self.fits(stage, start, beyond) {
                    beyond += 1;
                }
                let fresh = marked.max(start + least)..beyond;
                fresh.for_each(|end| next[end] = self.within(stage + 1, end));
                marked = marked.max(beyond);
            }
            match next.iter().rposition(|&reached| reached) {
                Some(place) => furthest = place,
                None => return PartitionError::StageTooSmall { stage, layer: self.layers[furthest] },
            }
            reached = next;
        }
        PartitionError::RanksTooSmall { n_layers: self.layers.last().copied().unwrap_or(0) }
    }
}

/// Returns the layers at which the list may be cut, its end included.
pub(crate) fn places(n_layers: usize, pins: &[Pin]) -> Result<Vec<usize>, PartitionError> {
    let mut inside = vec![false; n_layers + 1];
    for pin in pins {
        match pin {
            Pin::Together(layers) => {
                for &layer in layers {
                    check_layer(layer, n_layers)?;
                }
                if let (Some(&first), Some(&last)) = (layers.iter().min(), layers.iter().max()) {
                    inside[first + 1..=last].fill(true);
                }
            }
            Pin::Stage { layer, .. } => check_layer(*layer, n_layers)?,
        }
    }
    Ok((0..=n_layers).filter(|&layer| !inside[layer]).collect())
}

fn check_layer(layer: usize, n_layers: usize) -> Result<(), PartitionError> {
    if layer < n_layers { Ok(()) } else { Err(PartitionError::NoSuchLayer { layer, n_layers }) }
}

/// Returns where each stage may start and end so that every pinned layer is in its stage.
fn bounds(
    places: &[usize],
    n_stages: usize,
    options: &Options,
) -> Result<Vec<(usize, usize)>, PartitionError> {
    let end = places.len() - 1;
    let mut bounds = vec![(0, end); n_stages + 1];
    bounds[0] = (0, 0);
    bounds[n_stages] = (end, end);
    let pinned = options.pins.iter().filter_map(|pin| match pin {
        Pin::Stage { layer, stage } => Some((*layer, *stage)),
        Pin::Together(_) => None,
    });
    let mut last_pin = None;
    for (layer, stage) in pinned {
        if stage >= n_stages {
            return Err(PartitionError::NoSuchStage { stage, n_stages });
        }
        let place = places.partition_point(|&start| start <= layer) - 1;
        bounds[stage].1 = bounds[stage].1.min(place);
        bounds[stage + 1].0 = bounds[stage + 1].0.max(place + 1);
        last_pin = Some((layer, stage));
    }
    let least = usize::from(!options.allow_empty);
    for boundary in 1..=n_stages {
        bounds[boundary].0 = bounds[boundary].0.max(bounds[boundary - 1].0 + least);
    }
    for boundary in (0..n_stages).rev() {
        bounds[boundary].1 = bounds[boundary].1.min(bounds[boundary + 1].1.saturating_sub(least));
    }
    match (bounds.iter().position(|(lowest, highest)| lowest > highest), last_pin) {
        (Some(boundary), Some(_)) => Err(PartitionError::PinConflict { stage: boundary.min(n_stages - 1) }),
        (Some(_), None) => Err(PartitionError::TooFewLayers { n_layers: end, n_stages }),
        (None, _) => Ok(bounds),
    }
}

/// Returns the sums of weights and the cost of cutting before each layer, in one unit.
fn with_sending(
    units: &Units,
    layers: &[LayerInfo],
    options: &Options,
) -> Result<(Vec<u128>, Vec<u128>, i32), PartitionError> {
    let cost_per_byte = options.cost_per_byte;
    if !(cost_per_byte.is_finite() && cost_per_byte >= 0.0) {
        return Err(PartitionError::CostPerByte { cost_per_byte });
    }
    let n_layers = layers.len();
    if cost_per_byte == 0.0 {
        return Ok((units.prefix.clone(), vec![0; n_layers + 1], units.exponent));
    }
    let mut costs = vec![0.0; n_layers + 1];
    // Nothing is sent after the last layer.
    for (layer, info) in layers.iter().enumerate().take(n_layers.saturating_sub(1)) {
        let bytes = crate::weight::to_f64(profile(layer, info)?.output_bytes.into());
        costs[layer + 1] = bytes * cost_per_byte;
    }
    Ok(rounded_units(units, &costs)?)
}

/// Returns the sums of fixed and of in-flight memory up to each layer: zeros when there is no limit.
fn memory(layers: &[LayerInfo], options: &Options) -> Result<(Vec<u128>, Vec<u128>), PartitionError> {
    let zeros = || vec![0_u128; layers.len() + 1];
    let (mut fixed, mut in_flight) = (zeros(), zeros());
    if options.memory.is_some() {
        for (layer, info) in layers.iter().enumerate() {
            let profile = profile(layer, info)?;
            fixed[layer + 1] = fixed[layer] + u128::from(profile.fixed_bytes);
            in_flight[layer + 1] = in_flight[layer] + u128::from(profile.in_flight_bytes);
        }
    }
    Ok((fixed, in_flight))
}

pub(crate) fn profile(layer: usize, info: &LayerInfo) -> Result<&crate::LayerProfile, PartitionError> {
    let missing = || PartitionError::NotMeasured { layer, type_name: info.type_name.clone() };
    info.profile.as_ref().ok_or_else(missing)
}

/// Checks the options that are given for each rank or stage, and turns speeds into whole rates.
fn rules(
    n_stages: usize,
    options: &Options,
    total: u128,
    cut: u128,
) -> Result<(Vec<Rule>, u128), PartitionError> {
    let count = |what, given: usize, wanted: usize| {
        if given == wanted { Ok(()) } else { Err(PartitionError::OptionCount { what, given, wanted }) }
    };
    if !options.ranks.is_empty() {
        count("ranks of stages", options.ranks.len(), n_stages)?;
    }
    // A rank without a stage is odd but harmless; its number still has to be one of at most n_stages.
    if let Some(&rank) = options.ranks.iter().find(|&&rank| rank >= n_stages) {
        return Err(PartitionError::NoSuchRank { rank, n_ranks: n_stages });
    }
    let n_ranks = (0..n_stages).map(|stage| options.rank_of(stage) + 1).max().unwrap_or(0);
    if !options.speeds.is_empty() {
        count("speeds", options.speeds.len(), n_ranks)?;
    }
    if let Some(memory) = &options.memory {
        count("memory limits", memory.bytes.len(), n_ranks)?;
        if !memory.in_flight.is_empty() {
            count("in-flight counts", memory.in_flight.len(), n_stages)?;
        }
    }
    let (rates, send) = rates(&options.speeds, n_ranks, total, cut)?;
    let sends = |one: usize, other: usize| {
        if other < n_stages && options.rank_of(one) == options.rank_of(other) { 0 } else { send }
    };
    let rule = |stage: usize| {
        let rank = options.rank_of(stage);
        let memory = options.memory.as_ref();
        Rule {
            rank,
            rate: rates[rank],
            send: (stage.checked_sub(1).map_or(0, |before| sends(stage, before)), sends(stage, stage + 1)),
            limit: memory.map(|memory| memory.bytes[rank].into()),
            in_flight: memory.and_then(|memory| memory.in_flight.get(stage)).map_or(1, |&count| count.into()),
        }
    };
    Ok(((0..n_stages).map(rule).collect(), send))
}

/// Returns the cost of one unit of work on each rank, and of one unit of sending.
///
/// Both are 1 when all ranks are equally fast. Otherwise rates are rounded to at most 32 binary places
/// after the point; fewer when the sums of weights leave no room for them.
fn rates(
    speeds: &[f64],
    n_ranks: usize,
    total: u128,
    cut: u128,
) -> Result<(Vec<u128>, u128), PartitionError> {
    if let Some((rank, &speed)) =
        speeds.iter().enumerate().find(|(_, speed)| !(speed.is_finite() && **speed > 0.0))
    {
        return Err(PartitionError::Speed { rank, speed });
    }
    let fastest = speeds.iter().copied().fold(0.0, f64::max);
    if speeds.iter().all(|&speed| speed == fastest) {
        return Ok((vec![1; n_ranks], 1));
    }
    let ratios: Vec<f64> = speeds.iter().map(|speed| fastest / speed).collect();
    let slowest = ratios.iter().copied().fold(1.0, f64::max);
    // A rank's cost is below ratio * (total + 2 * cut * its stages), and both fit SUM_BITS.
    let widest = slowest.log2().ceil() + f64::from(u128::BITS - (total + cut).leading_zeros());
    let places = (124.0 - widest).min(32.0);
    if places < 4.0 {
        return Err(PartitionError::SpeedRange { ratio: slowest });
    }
    let one = places.floor().exp2();
    let rate = |ratio: f64| crate::weight::whole((ratio * one).round());
    Ok((ratios.into_iter().map(rate).collect(), crate::weight::whole(one)))
}
