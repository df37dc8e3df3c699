//! What can be wrong with stages over named values.

use brigade_topology::Stage;
use brigade_wire::LivenessError;

use super::ValueError;

/// Why stages do not make a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StagesError {
    /// The values that stages take and give do not fit together.
    #[error("the named values of the stages do not fit: {0}")]
    Liveness(LivenessError),
    /// A tie names a stage that does not exist.
    #[error("`{path}` of stage {stage} is tied, but there are {n_stages} stages")]
    NoSuchStage {
        /// Path of the parameter.
        path: String,
        /// The stage.
        stage: Stage,
        /// Number of stages.
        n_stages: usize,
    },
    /// Two parameters of one stage are in one set.
    #[error("`{first}` and `{second}` of stage {stage} are tied: use one parameter there")]
    SameStage {
        /// Path of the one.
        first: String,
        /// Path of the other.
        second: String,
        /// Their stage.
        stage: Stage,
    },
    /// A parameter is in two sets.
    #[error("`{path}` of stage {stage} is in two sets of tied parameters: make them one")]
    TwoSets {
        /// Path of the parameter.
        path: String,
        /// Its stage.
        stage: Stage,
    },
    /// A tie of no parameters.
    #[error("set {number} of tied parameters is empty: leave it out")]
    EmptyTie {
        /// Its place among the ties.
        number: usize,
    },
}

/// Why a stage could not run over its named values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// There is no value of this name.
    #[error("there is no value `{name}`; there are {known:?}")]
    Missing {
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// Two values have one name.
    #[error("there are two values `{name}`: name them apart")]
    Twice {
        /// The name.
        name: String,
    },
    /// A value is of another type, or cannot be carried.
    #[error("the value `{name}` does not fit: {source}")]
    Value {
        /// Its name.
        name: String,
        /// What does not fit.
        source: ValueError,
    },
    /// The function of a stage did not give an output that the stage promises.
    #[error("the stage promises `{name}` and gave {given:?}: give every output of `outputs`")]
    NotGiven {
        /// The output.
        name: String,
        /// What it gave.
        given: Vec<String>,
    },
    /// There is a value that nobody declared.
    #[error("`{name}` is not one of {declared:?}: declare it or leave it out")]
    Undeclared {
        /// The value.
        name: String,
        /// The declared names.
        declared: Vec<String>,
    },
    /// The arguments are not what the function of a stage takes.
    #[error("the arguments {names:?} do not fit the function: {source}")]
    Arguments {
        /// Their names.
        names: Vec<String>,
        /// What does not fit.
        source: ValueError,
    },
    /// What was given for the model's arguments is something else.
    #[error("the model takes {names:?}, found {found}: give one value by itself and others as a tuple")]
    ModelArguments {
        /// The arguments' names.
        names: Vec<String>,
        /// What was given.
        found: String,
    },
    /// What a function gave is not one value for each output.
    #[error("the outputs are {names:?}, found {found}: give one value by itself and others as a tuple")]
    Outputs {
        /// The outputs' names.
        names: Vec<String>,
        /// What it gave.
        found: String,
    },
}
