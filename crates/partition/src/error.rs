//! The crate's errors, one enum an operation.

/// Says why a list of boundaries is no list of cuts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CutsError {
    /// There is no stage.
    #[error("{n_boundaries} boundaries make no stage; give the start of each stage and the end of the last")]
    NoStages {
        /// How many boundaries were given.
        n_boundaries: usize,
    },
    /// The first stage does not start at layer 0.
    #[error("the cuts start at layer {first} and leave out the layers before it; start at 0")]
    NotAtZero {
        /// The first boundary.
        first: usize,
    },
    /// A boundary lies before the one that precedes it.
    #[error("stage {stage} would run from layer {start} back to {end}; boundaries must not decrease")]
    Decreasing {
        /// The stage between the two boundaries.
        stage: usize,
        /// Where it starts.
        start: usize,
        /// Where it was to end.
        end: usize,
    },
}

/// Says why weights cannot be added up.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightError {
    /// A weight is infinite or not a number.
    #[error("the weight of layer {layer} is {value}; weights must be finite")]
    NotFinite {
        /// The layer.
        layer: usize,
        /// Its weight.
        value: f64,
    },
    /// A weight is below zero.
    #[error("the weight of layer {layer} is {value}; weights must not be negative")]
    Negative {
        /// The layer.
        layer: usize,
        /// Its weight.
        value: f64,
    },
    /// The sum does not fit.
    #[error("the weights up to layer {layer} add up to 2^{bits} or more; scale them down")]
    Overflow {
        /// The layer at which the sum overflowed.
        layer: usize,
        /// The number of bits that there is room for.
        bits: u32,
    },
}

/// Says why a layer list cannot be partitioned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// There is no stage.
    #[error("a pipeline needs at least one stage")]
    NoStages,
    /// There are more stages than one partition may have.
    #[error("{n_stages} stages are more than the {max} that one partition may have")]
    TooManyStages {
        /// How many stages were asked for.
        n_stages: usize,
        /// The limit.
        max: usize,
    },
    /// Some stage would be left without a layer.
    #[error("{n_layers} layers cannot fill {n_stages} stages; use fewer stages or allow empty ones")]
    TooFewLayers {
        /// How many layers there are.
        n_layers: usize,
        /// How many stages were asked for.
        n_stages: usize,
    },
    /// The weights cannot be added up.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// The boundaries are no cuts.
    #[error(transparent)]
    Cuts(#[from] CutsError),
    /// The pattern is no regular expression.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// No layer has such a type.
    #[error("no type name among the {n_layers} layers holds \"{pattern}\"; the names are {names}")]
    NoMatch {
        /// The pattern, or the name of a list of weights by type.
        pattern: String,
        /// How many layers there are.
        n_layers: usize,
        /// Some of the type names, separated by commas.
        names: String,
    },
    /// The explicit weights are not one a layer.
    #[error("{n_weights} weights for {n_layers} layers; give one weight for each layer")]
    WeightCount {
        /// How many weights were given.
        n_weights: usize,
        /// How many layers there are.
        n_layers: usize,
    },
    /// The cuts cover another number of layers.
    #[error("the cuts end at layer {end}, but there are {n_layers} layers; end the last stage there")]
    NotCovering {
        /// The last boundary.
        end: usize,
        /// How many layers there are.
        n_layers: usize,
    },
    /// The cuts make another number of stages.
    #[error("the cuts make {n_cut} stages, but {n_stages} are wanted; give one boundary more than stages")]
    StageCount {
        /// How many stages the cuts make.
        n_cut: usize,
        /// How many stages were asked for.
        n_stages: usize,
    },
    /// The cuts leave a stage empty.
    #[error(
        "stage {stage} starts and ends at layer {layer}; move its boundaries apart or allow empty stages"
    )]
    EmptyStage {
        /// The empty stage.
        stage: usize,
        /// Its first boundary.
        layer: usize,
    },
    /// A layer was not measured.
    #[error("layer {layer} ({type_name}) has no profile; measure every layer or use another method")]
    NotMeasured {
        /// The layer.
        layer: usize,
        /// Its type name.
        type_name: String,
    },
    /// A pin names a layer past the last one.
    #[error("a pin names layer {layer}, but there are {n_layers} layers")]
    NoSuchLayer {
        /// The layer.
        layer: usize,
        /// How many layers there are.
        n_layers: usize,
    },
    /// A pin names a stage past the last one.
    #[error("a pin names stage {stage}, but there are {n_stages} stages")]
    NoSuchStage {
        /// The stage.
        stage: usize,
        /// How many stages there are.
        n_stages: usize,
    },
    /// A stage has a rank past the last one.
    #[error("a stage has rank {rank}, but {n_ranks} stages have at most {n_ranks} ranks, numbered from 0")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// How many ranks there may be.
        n_ranks: usize,
    },
    /// An option is not given for each of what it describes.
    #[error("{given} {what} given, but {wanted} wanted; give one for each, or none")]
    OptionCount {
        /// What was counted.
        what: &'static str,
        /// How many were given.
        given: usize,
        /// How many are wanted.
        wanted: usize,
    },
    /// A speed is not above zero and finite.
    #[error("rank {rank} has speed {speed}; speeds must be above zero and finite")]
    Speed {
        /// The rank.
        rank: usize,
        /// Its speed.
        speed: f64,
    },
    /// The speeds lie too far apart for sums to stay exact.
    #[error("the fastest rank is {ratio} times as fast as the slowest, too far apart for these weights")]
    SpeedRange {
        /// The fastest speed over the slowest.
        ratio: f64,
    },
    /// The cost of a byte is negative or not finite.
    #[error("a byte costs {cost_per_byte}; the cost must be finite and not negative")]
    CostPerByte {
        /// The cost.
        cost_per_byte: f64,
    },
    /// No cuts keep every pinned layer in its stage.
    #[error("the pins around stage {stage} contradict each other, or leave it without a layer")]
    PinConflict {
        /// The first stage that cannot be placed.
        stage: usize,
    },
    /// A given cut separates layers that are pinned together.
    #[error("the cut before layer {layer} separates layers that are pinned together")]
    CutInsidePin {
        /// The layer.
        layer: usize,
    },
    /// A layer, or a group that is pinned together, fits no rank.
    #[error(
        "layers {first} to {last} take {bytes} bytes together at the least, more than any stage can hold"
    )]
    LayerTooLarge {
        /// The first layer of the group.
        first: usize,
        /// The last layer of the group, which is the first when it stands alone.
        last: usize,
        /// What they take on the stage where they take least.
        bytes: u128,
    },
    /// The memory of the stages is used up before the layers are.
    #[error(
        "memory is used up at stage {stage}: the stages before it hold the layers before {layer} at most"
    )]
    StageTooSmall {
        /// The stage that cannot take what it would have to.
        stage: usize,
        /// The first layer that no earlier stage can hold.
        layer: usize,
    },
    /// Each stage could hold its layers, but ranks with several stages cannot.
    #[error("the ranks cannot hold {n_layers} layers: their stages fit alone, but not together")]
    RanksTooSmall {
        /// How many layers there are.
        n_layers: usize,
    },
    /// Given cuts are over the memory limit.
    #[error("with stage {stage}, rank {rank} takes {bytes} bytes, but has {limit}")]
    OverLimit {
        /// The stage with which the rank goes over its limit.
        stage: usize,
        /// The rank.
        rank: usize,
        /// What it takes.
        bytes: u128,
        /// What it has.
        limit: u128,
    },
    /// The search needs a larger table than is allowed.
    #[error("the search needs a table of {n_entries} entries, more than {max}; use fewer layers or stages")]
    TooLarge {
        /// How many entries it needs.
        n_entries: usize,
        /// The limit.
        max: usize,
    },
    /// The search found no cuts in its number of steps, and did not prove that there are none.
    #[error("no cuts were found in the given number of steps; loosen the memory limit or the pins")]
    SearchTooLong,
    /// DeepSpeed has no such method.
    #[error("\"{method}\" is no method of DeepSpeed; it has uniform, parameters and type:REGEX")]
    NotInDeepSpeed {
        /// The refused method.
        method: String,
    },
}

/// Says why a pattern cannot be searched for.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// The pattern is no regular expression, or the search for it was given up.
    #[error("\"{pattern}\" cannot be searched for: {reason}")]
    Regex {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: Box<fancy_regex::Error>,
    },
    /// The pattern is so long that compiling it would take seconds.
    #[error("a pattern of {n_bytes} bytes is too long; use at most {max}")]
    TooLong {
        /// Its length.
        n_bytes: usize,
        /// The longest that is taken.
        max: usize,
    },
}

impl PartialEq for PatternError {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Regex { pattern, .. }, Self::Regex { pattern: other, .. }) => pattern == other,
            (Self::TooLong { n_bytes, .. }, Self::TooLong { n_bytes: other, .. }) => n_bytes == other,
            _ => false,
        }
    }
}

/// Says why a text is no partition method.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MethodError {
    /// No method is called so.
    #[error(
        "\"{text}\" is no partition method; use uniform, parameters, profile, type:REGEX, weights:LIST or \
         cuts:LIST"
    )]
    Unknown {
        /// The refused text.
        text: String,
    },
    /// The pattern after `type:` cannot be compiled.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A weight is no number.
    #[error("\"{text}\" is no weight; use a number such as 3 or 0.5")]
    Number {
        /// The refused text.
        text: String,
    },
    /// An entry of a list of weights by type is not `NAME=NUMBER`.
    #[error("\"{entry}\" gives no type a weight; write NAME=NUMBER, as in embed=2")]
    Entry {
        /// The refused entry.
        entry: String,
    },
    /// A boundary is no number.
    #[error("\"{text}\" is no boundary; use whole numbers, as in 0,3,7")]
    Boundary {
        /// The refused text.
        text: String,
    },
    /// The boundaries are no cuts.
    #[error(transparent)]
    Cuts(#[from] CutsError),
}
