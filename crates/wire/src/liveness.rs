//! Which named values must cross each boundary between stages, in one order on every rank.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::LivenessError;

/// What one stage takes and gives.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct StageSignature {
    /// Names of its arguments in order; a name may stand twice.
    pub inputs: Vec<String>,
    /// Names of its outputs in order; each is new.
    pub outputs: Vec<String>,
}

impl StageSignature {
    /// A stage with these arguments and outputs.
    pub fn new<I, O>(inputs: I, outputs: O) -> Self
    where
        I: IntoIterator<Item: Into<String>>,
        O: IntoIterator<Item: Into<String>>,
    {
        Self {
            inputs: inputs.into_iter().map(Into::into).collect(),
            outputs: outputs.into_iter().map(Into::into).collect(),
        }
    }
}

/// A model that is cut into stages: a directed graph of named values, given in an order of execution.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Dataflow {
    /// Arguments of the model in order. They enter at stage 0, which carries on what later stages need.
    pub inputs: Vec<String>,
    /// Arguments of the model that every stage can get by itself, for example a mask that each rank
    /// loads; no boundary carries them.
    pub broadcast: Vec<String>,
    /// The stages in forward order. A stage may use what any earlier one has given.
    pub stages: Vec<StageSignature>,
    /// What leaves the last stage, in order.
    pub results: Vec<String>,
}

/// Where a value comes from or goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The arguments of the model that enter at stage 0.
    Inputs,
    /// The arguments of the model that every stage gets by itself.
    Broadcast,
    /// A stage.
    Stage(u32),
    /// The results of the model.
    Results,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Inputs => f.write_str("the model inputs"),
            Self::Broadcast => f.write_str("the broadcast inputs"),
            Self::Stage(stage) => write!(f, "stage {stage}"),
            Self::Results => f.write_str("the model results"),
        }
    }
}

/// Where an argument of a stage is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Argument {
    /// At this position of the boundary before the stage.
    Boundary(usize),
    /// At this position of [`Dataflow::broadcast`].
    Broadcast(usize),
}

/// Where a value that a stage sends on is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// At this position of the boundary before the stage: it passes through.
    Incoming(usize),
    /// At this position of the stage's outputs.
    Output(usize),
}

/// Values that go from one place to another without passing the stages between.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Edge {
    /// Where they are made: the inputs or a stage.
    pub from: Place,
    /// Where they are used: a stage or the results.
    pub to: Place,
    /// Their names, in the order in which they are used first.
    pub values: Vec<String>,
}

/// The values at every boundary.
///
/// Boundary `s` is what stage `s` receives; boundary `0` holds inputs of the model, and the one after
/// the last stage the results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Liveness {
    boundaries: Vec<Vec<String>>,
    arguments: Vec<Vec<Argument>>,
    sends: Vec<Vec<Source>>,
    edges: Vec<Edge>,
    dead: Vec<(Place, String)>,
    consumers: BTreeMap<String, Vec<Place>>,
}

impl Liveness {
    /// The names at each boundary, in the order in which they are sent: one list more than stages.
    ///
    /// The arguments of the receiving stage come first, in their order, then what only passes through.
    /// Boundary 0 keeps the order of the model's inputs.
    #[must_use]
    pub fn boundaries(&self) -> &[Vec<String>] {
        &self.boundaries
    }

    /// For each stage, and after the last one for the results, where its arguments are found.
    #[must_use]
    pub fn arguments(&self) -> &[Vec<Argument>] {
        &self.arguments
    }

    /// For each stage where the values of the boundary after it are found.
    #[must_use]
    pub fn sends(&self) -> &[Vec<Source>] {
        &self.sends
    }

    /// The same traffic when every value goes straight from where it is made to where it is used,
    /// by sender, then receiver; broadcast inputs are not in it.
    ///
    /// A value with several receivers gets a gradient from each, and their sum is its gradient.
    #[must_use]
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// Inputs and outputs that nothing uses, with the place that makes them.
    #[must_use]
    pub fn dead(&self) -> &[(Place, String)] {
        &self.dead
    }

    /// The places that use a value, each once, in order.
    #[must_use]
    pub fn consumers(&self, value: &str) -> &[Place] {
        self.consumers.get(value).map_or(&[], Vec::as_slice)
    }
}

/// Computes which values each boundary must carry.
///
/// The result depends on nothing but `dataflow`, so every rank computes the same.
///
/// # Errors
/// [`LivenessError`] names the value and the stage: a value that nothing makes, that a later stage or
/// the stage itself makes, or that two places make.
///
/// # Source
/// Slapo, `pipeline.py`, `analyze_pipeline_module` (the order), and
/// `framework_dialect/deepspeed/pipeline.py`, `DeepSpeedPipeStageWrapper` (arguments and sends, which
/// it works out by name at every step).
///
/// # Examples
/// ```
/// use brigade_wire::{Argument, Dataflow, Source, StageSignature, liveness};
///
/// // y = f2(f1(f0(x)) + x, mask): x skips stage 1.
/// let dataflow = Dataflow {
///     inputs: vec!["mask".into(), "x".into(), "unused".into()],
///     stages: vec![
///         StageSignature::new(["x"], ["a"]),
///         StageSignature::new(["a"], ["b"]),
///         StageSignature::new(["b", "x", "mask"], ["y"]),
///     ],
///     results: vec!["y".into()],
///     ..Dataflow::default()
/// };
/// let live = liveness(&dataflow)?;
/// assert_eq!(live.boundaries()[0], ["mask", "x"]);
/// assert_eq!(live.boundaries()[1], ["a", "x", "mask"]);
/// assert_eq!(live.boundaries()[2], ["b", "x", "mask"]);
/// assert_eq!(live.arguments()[0], [Argument::Boundary(1)]);
/// assert_eq!(live.sends()[0], [Source::Output(0), Source::Incoming(1), Source::Incoming(0)]);
/// # Ok::<(), brigade_wire::LivenessError>(())
/// ```
pub fn liveness(dataflow: &Dataflow) -> Result<Liveness, LivenessError> {
    if dataflow.stages.is_empty() {
        return Err(LivenessError::NoStages);
    }
    let makers = makers(dataflow)?;
    let mut users = users(dataflow);
    users.iter().try_for_each(|user| user.check(&makers))?;
    for user in &mut users {
        user.inputs
            .retain(|value| makers.get(value.as_str()).is_some_and(|place| *place != Place::Broadcast));
    }
    let boundaries = boundaries(dataflow, &users, &makers);
    let positions: Vec<_> = boundaries.iter().map(|boundary| index(boundary)).collect();
    let broadcast = index(&dataflow.broadcast);

    let wanted = dataflow.stages.iter().map(|stage| &stage.inputs).chain([&dataflow.results]);
    let arguments = wanted.zip(&positions).map(|(inputs, at)| {
        let find = |value: &String| {
            let boundary = at.get(value.as_str()).map(|&position| Argument::Boundary(position));
            boundary.or_else(|| broadcast.get(value.as_str()).map(|&position| Argument::Broadcast(position)))
        };
        inputs.iter().filter_map(find).collect()
    });
    let sends =
        dataflow.stages.iter().zip(&positions).zip(boundaries.iter().skip(1)).map(|((stage, at), sent)| {
            let outputs = index(&stage.outputs);
            let find = |value: &String| {
                let output = outputs.get(value.as_str()).map(|&position| Source::Output(position));
                output.or_else(|| at.get(value.as_str()).map(|&position| Source::Incoming(position)))
            };
            sent.iter().filter_map(find).collect()
        });
    let (arguments, sends) = (arguments.collect(), sends.collect());
    let mut consumers: BTreeMap<String, Vec<Place>> = BTreeMap::new();
    for user in self::users(dataflow) {
        for value in user.inputs {
            consumers.entry(value.clone()).or_default().push(user.place);
        }
    }
    let dead = made(dataflow)
        .filter(|(_, value)| !consumers.contains_key(*value))
        .map(|(place, value)| (place, value.clone()))
        .collect();
    Ok(Liveness { arguments, sends, edges: edges(&users, &makers), boundaries, dead, consumers })
}

/// A stage or the results, with the distinct values that it uses in the order of their first use.
struct User<'a> {
    place: Place,
    inputs: Vec<&'a String>,
}

impl User<'_> {
    /// Every value must be made before it is used.
    fn check(&self, makers: &BTreeMap<&str, Place>) -> Result<(), LivenessError> {
        for &value in &self.inputs {
            let (value, user) = (value.clone(), self.place);
            match makers.get(value.as_str()) {
                None => return Err(LivenessError::Undefined { value, user }),
                Some(&Place::Stage(maker)) if Place::Stage(maker) >= user => {
                    return Err(LivenessError::TooEarly { value, user, maker });
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// A stage number.
fn number(stage: usize) -> u32 {
    u32::try_from(stage).unwrap_or(u32::MAX)
}

/// Everything that is made, in order, with its place.
fn made(dataflow: &Dataflow) -> impl Iterator<Item = (Place, &String)> {
    let inputs = dataflow.inputs.iter().map(|value| (Place::Inputs, value));
    let broadcast = dataflow.broadcast.iter().map(|value| (Place::Broadcast, value));
    let outputs = dataflow.stages.iter().enumerate().flat_map(|(stage, signature)| {
        signature.outputs.iter().map(move |value| (Place::Stage(number(stage)), value))
    });
    inputs.chain(broadcast).chain(outputs)
}

/// The place that makes each value.
fn makers(dataflow: &Dataflow) -> Result<BTreeMap<&str, Place>, LivenessError> {
    let mut makers = BTreeMap::new();
    for (place, value) in made(dataflow) {
        if let Some(first) = makers.insert(value.as_str(), place) {
            return Err(LivenessError::MadeTwice { value: value.clone(), first, second: place });
        }
    }
    Ok(makers)
}

fn users(dataflow: &Dataflow) -> Vec<User<'_>> {
    let distinct = |values: &'_ Vec<String>| -> BTreeSet<String> { values.iter().cloned().collect() };
    let stages = dataflow.stages.iter().enumerate();
    let stages = stages.map(|(stage, signature)| (Place::Stage(number(stage)), &signature.inputs));
    stages
        .chain([(Place::Results, &dataflow.results)])
        .map(|(place, values)| {
            let mut left = distinct(values);
            User { place, inputs: values.iter().filter(|value| left.remove(*value)).collect() }
        })
        .collect()
}

/// Position of each name.
fn index(names: &[String]) -> BTreeMap<&str, usize> {
    names.iter().enumerate().map(|(position, name)| (name.as_str(), position)).collect()
}

/// Walks back from the results: what a stage or anything after it uses, and it or an earlier place makes.
fn boundaries(dataflow: &Dataflow, users: &[User<'_>], makers: &BTreeMap<&str, Place>) -> Vec<Vec<String>> {
    let mut boundaries: Vec<Vec<String>> = Vec::with_capacity(users.len());
    let mut live: Vec<&String> = Vec::new();
    for user in users.iter().rev() {
        // What the stage makes is not needed before it; the results make nothing.
        live.retain(|value| makers.get(value.as_str()).is_some_and(|place| *place != user.place));
        let known: BTreeSet<&String> = live.iter().copied().collect();
        live.extend(user.inputs.iter().filter(|value| !known.contains(*value)));
        let own: BTreeSet<&String> = user.inputs.iter().copied().collect();
        let passing = live.iter().filter(|value| !own.contains(*value));
        boundaries.push(user.inputs.iter().chain(passing).map(|value| (*value).clone()).collect());
    }
    boundaries.reverse();
    if let Some(first) = boundaries.first_mut() {
        let needed: BTreeSet<String> = first.drain(..).collect();
        first.extend(dataflow.inputs.iter().filter(|value| needed.contains(*value)).cloned());
    }
    boundaries
}

/// Groups the uses by sender and receiver.
fn edges(users: &[User<'_>], makers: &BTreeMap<&str, Place>) -> Vec<Edge> {
    let mut edges: BTreeMap<(Place, Place), Vec<String>> = BTreeMap::new();
    for user in users {
        for &value in &user.inputs {
            if let Some(&maker) = makers.get(value.as_str()) {
                edges.entry((maker, user.place)).or_default().push(value.clone());
            }
        }
    }
    edges.into_iter().map(|((from, to), values)| Edge { from, to, values }).collect()
}
