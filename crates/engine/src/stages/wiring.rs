//! How the values that reach a stage become its arguments, and its outputs what it sends on.

use std::any::TypeId;

use brigade_wire::{Argument, Liveness, Source, StageSignature, Tree};

use super::NamedValues;
use crate::error::StageError;
use crate::tensor::AnyTensor;
use crate::value::{Value, describe};

/// How the user gives or takes the values at an end of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As [`NamedValues`].
    Named,
    /// One by itself, others as a tuple in their order.
    Positional,
}

impl Form {
    pub(super) fn of<V: Value>() -> Self {
        if TypeId::of::<V>() == TypeId::of::<NamedValues>() { Self::Named } else { Self::Positional }
    }
}

/// What a stage receives.
#[derive(Clone, Debug)]
enum Entry {
    /// The model's arguments, all of them in the user's form; `live` are those that the stages use.
    Model { form: Form, names: Vec<String>, live: Vec<String> },
    /// A tuple in the order of the boundary.
    Boundary,
}

/// What a stage gives.
#[derive(Clone, Debug)]
enum Exit {
    /// The model's results in the user's form.
    Model { form: Form, names: Vec<String> },
    /// A tuple in the order of the boundary.
    Boundary,
}

/// The place of one stage in the flow of values.
#[derive(Clone, Debug)]
pub(super) struct Wiring {
    signature: StageSignature,
    /// Positions of the arguments in what the stage receives.
    arguments: Vec<usize>,
    sends: Vec<Source>,
    entry: Entry,
    exit: Exit,
}

impl Wiring {
    /// The place of stage `index` of a model with the arguments `inputs`.
    pub(super) fn new(
        index: usize,
        signature: &StageSignature,
        liveness: &Liveness,
        inputs: &[String],
        (taken, given): (Form, Form),
    ) -> Self {
        let boundaries = liveness.boundaries();
        let position = |argument: &Argument| match *argument {
            Argument::Boundary(position) | Argument::Broadcast(position) => position,
        };
        let entry = if index == 0 {
            Entry::Model { form: taken, names: inputs.to_vec(), live: boundaries[0].clone() }
        } else {
            Entry::Boundary
        };
        let exit = if index.saturating_add(2) == boundaries.len() {
            Exit::Model { form: given, names: boundaries[index + 1].clone() }
        } else {
            Exit::Boundary
        };
        Self {
            signature: signature.clone(),
            arguments: liveness.arguments()[index].iter().map(position).collect(),
            sends: liveness.sends()[index].clone(),
            entry,
            exit,
        }
    }

    /// Runs a stage whose function takes and gives named values.
    pub(super) fn run_named(
        &self,
        input: Tree<AnyTensor>,
        forward: impl FnOnce(NamedValues) -> Result<NamedValues, StageError>,
    ) -> Result<Tree<AnyTensor>, StageError> {
        self.run(input, |arguments| {
            let mut given = forward(NamedValues::of(&self.signature.inputs, arguments))?;
            let known: Vec<String> = given.names().map(str::to_owned).collect();
            let take = |name: &String| {
                given
                    .take_tree(name)
                    .map_err(|_| StageError::NotGiven { name: name.clone(), given: known.clone() })
            };
            let outputs = self.signature.outputs.iter().map(take).collect::<Result<Vec<_>, _>>()?;
            match given.names().next() {
                Some(name) => {
                    let declared = self.signature.outputs.clone();
                    Err(StageError::Undeclared { name: name.to_owned(), declared })
                }
                None => Ok(outputs),
            }
        })
    }

    /// Runs a stage whose function takes its arguments, and gives its outputs, by position.
    pub(super) fn run_positional<A: Value, B: Value>(
        &self,
        input: Tree<AnyTensor>,
        forward: impl FnOnce(A) -> B,
    ) -> Result<Tree<AnyTensor>, StageError> {
        self.run(input, |arguments| {
            let StageSignature { inputs, outputs } = &self.signature;
            let arguments = A::from_tree(pack(arguments));
            let arguments =
                arguments.map_err(|source| StageError::Arguments { names: inputs.clone(), source })?;
            let given = forward(arguments).into_tree();
            let given = given.map_err(|source| StageError::Outputs {
                names: outputs.clone(),
                found: source.to_string(),
            })?;
            unpack(given, outputs).map_err(|found| StageError::Outputs { names: outputs.clone(), found })
        })
    }

    fn run(
        &self,
        input: Tree<AnyTensor>,
        forward: impl FnOnce(Vec<Tree<AnyTensor>>) -> Result<Vec<Tree<AnyTensor>>, StageError>,
    ) -> Result<Tree<AnyTensor>, StageError> {
        let incoming = self.enter(input)?;
        let arguments = self.arguments.iter().map(|&position| incoming[position].clone()).collect();
        let outputs = forward(arguments)?;
        let send = |source: &Source| match *source {
            Source::Incoming(position) => incoming[position].clone(),
            Source::Output(position) => outputs[position].clone(),
        };
        let sent: Vec<_> = self.sends.iter().map(send).collect();
        match &self.exit {
            Exit::Boundary => Ok(Tree::Tuple(sent)),
            Exit::Model { form: Form::Positional, .. } => Ok(pack(sent)),
            Exit::Model { form: Form::Named, names } => NamedValues::of(names, sent)
                .into_tree()
                .map_err(|source| StageError::Outputs { names: names.clone(), found: source.to_string() }),
        }
    }

    /// The values of the boundary before the stage, in its order.
    fn enter(&self, input: Tree<AnyTensor>) -> Result<Vec<Tree<AnyTensor>>, StageError> {
        match &self.entry {
            Entry::Boundary => match input {
                Tree::Tuple(items) => Ok(items),
                other => Ok(vec![other]),
            },
            Entry::Model { form, names, live } => {
                let mut values = match form {
                    Form::Named => NamedValues::from_tree(input)
                        .map_err(|source| StageError::Arguments { names: names.clone(), source })?,
                    Form::Positional => {
                        let values = unpack(input, names)
                            .map_err(|found| StageError::ModelArguments { names: names.clone(), found })?;
                        NamedValues::of(names, values)
                    }
                };
                if let Some(name) = values.names().find(|&name| !names.iter().any(|known| known == name)) {
                    let declared = names.clone();
                    return Err(StageError::Undeclared { name: name.to_owned(), declared });
                }
                live.iter().map(|name| values.take_tree(name)).collect()
            }
        }
    }
}

/// One value by itself, others as a tuple.
fn pack(values: Vec<Tree<AnyTensor>>) -> Tree<AnyTensor> {
    match <[_; 1]>::try_from(values) {
        Ok([value]) => value,
        Err(values) => Tree::Tuple(values),
    }
}

/// The inverse of [`pack`]; says what there is where the number differs.
fn unpack(tree: Tree<AnyTensor>, names: &[String]) -> Result<Vec<Tree<AnyTensor>>, String> {
    match tree {
        value if names.len() == 1 => Ok(vec![value]),
        Tree::Tuple(values) if values.len() == names.len() => Ok(values),
        other => Err(describe(&other)),
    }
}
