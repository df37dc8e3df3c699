//! Groups of parameters by their global names: own learning rate, decay or optimizer, or frozen.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::Tensor;
use fancy_regex::Regex;
use serde::{Deserialize, Serialize};

use super::config::OptimizerConfig;
use super::schedule::check_rate;
use crate::error::ConfigError;

/// The most names that an error lists.
const LISTED_MAX: usize = 20;

/// Parameters that are trained otherwise than the rest; of the groups that match one, the first counts.
///
/// # Examples
/// Nothing of the first layer learns, and vectors (biases, gains of norms) do not decay:
/// ```
/// use brigade_engine::ParameterGroup;
///
/// let groups: Vec<ParameterGroup> =
///     serde_json::from_str(r#"[{"pattern": "^layer_000\\.", "frozen": true}, {"dimensions": 1, "weight_decay": 0}]"#)?;
/// assert!(groups[0].frozen);
/// assert_eq!(groups[1], ParameterGroup::no_decay());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ParameterGroup {
    /// A regular expression that is found in the parameter's name, such as `layer_007.attention.query.weight`;
    /// any name if it is left out.
    pub pattern: Option<String>,
    /// The parameter's number of dimensions; any if it is left out.
    pub dimensions: Option<usize>,
    /// Learning rate in place of the configured one; it follows the same schedule.
    pub learning_rate: Option<f64>,
    /// Factor of the learning rate.
    pub learning_rate_factor: Option<f64>,
    /// Weight decay in place of the optimizer's.
    pub weight_decay: Option<f64>,
    /// Optimizer in place of the configured one.
    pub optimizer: Option<OptimizerConfig>,
    /// Whether the parameters stay as they are: no gradient is computed for them.
    pub frozen: bool,
}

impl ParameterGroup {
    /// The parameters whose name the regular expression is found in.
    #[must_use]
    pub fn matching(pattern: impl Into<String>) -> Self {
        Self { pattern: Some(pattern.into()), ..Self::default() }
    }

    /// Vectors without weight decay: biases, and the gains of norms.
    #[must_use]
    pub fn no_decay() -> Self {
        Self { dimensions: Some(1), weight_decay: Some(0.0), ..Self::default() }
    }

    fn describe(&self) -> String {
        let pattern = self.pattern.as_ref().map(|pattern| format!("pattern `{pattern}`"));
        let dimensions = self.dimensions.map(|n| format!("{n} dimension(s)"));
        pattern.into_iter().chain(dimensions).collect::<Vec<_>>().join(", ")
    }

    /// Refuses what cannot be, given the learning rate of the whole and whether the optimizer is a value.
    pub(crate) fn check(&self, path: &str, learning_rate: f64) -> Result<(), ConfigError> {
        let refuse = |name: &str, found: String, expected: &str| {
            let (path, expected) = (format!("{path}.{name}"), expected.to_owned());
            Err(ConfigError::Value { path, found, expected })
        };
        if self.pattern.is_none() && self.dimensions.is_none() {
            return refuse(
                "pattern",
                "absent".to_owned(),
                "a `pattern` or a number of `dimensions`, or both",
            );
        }
        if let Some(rate) = self.learning_rate {
            check_rate(&format!("{path}.learning_rate"), rate)?;
            if self.learning_rate_factor.is_some() {
                return refuse("learning_rate", rate.to_string(), "absent beside `learning_rate_factor`");
            }
            if learning_rate == 0.0 {
                return refuse(
                    "learning_rate",
                    rate.to_string(),
                    "absent while the learning rate of the whole is 0",
                );
            }
        }
        check_rate(&format!("{path}.learning_rate_factor"), self.learning_rate_factor.unwrap_or(1.0))?;
        check_rate(&format!("{path}.weight_decay"), self.weight_decay.unwrap_or(0.0))?;
        match &self.optimizer {
            Some(optimizer) => optimizer.check(&format!("{path}.optimizer")),
            None => Ok(()),
        }
    }

    /// What the learning rate of the whole is multiplied by.
    fn factor(&self, learning_rate: f64) -> f64 {
        match self.learning_rate {
            Some(own) => own / learning_rate,
            None => self.learning_rate_factor.unwrap_or(1.0),
        }
    }
}

/// A parameter as groups see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Described {
    pub(crate) name: String,
    pub(crate) dimensions: usize,
}

/// The float parameters of a module with their ids, in the order of its layers and fields.
pub(crate) fn describe<M: Module>(module: &M) -> Vec<(Described, ParamId)> {
    #[derive(Default)]
    struct Collect {
        path: Vec<String>,
        found: Vec<(Described, ParamId)>,
    }
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let described = Described { name: self.path.join("."), dimensions: D };
            self.found.push((described, param.id));
        }
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }
    }
    let mut collect = Collect::default();
    module.visit(&mut collect);
    collect.found
}

/// The groups with their expressions compiled.
pub(crate) struct Groups<'a>(Vec<(&'a ParameterGroup, Option<Regex>)>);

impl<'a> Groups<'a> {
    pub(crate) fn new(groups: &'a [ParameterGroup]) -> Result<Self, ConfigError> {
        let compile = |(i, group): (usize, &'a ParameterGroup)| {
            let regex = group.pattern.as_ref().map(|pattern| Regex::new(pattern)).transpose();
            let regex = regex.map_err(|error| ConfigError::Value {
                path: format!("parameter_groups[{i}].pattern"),
                found: format!("no regular expression ({error})"),
                expected: "one such as `\\.bias$`".to_owned(),
            })?;
            Ok((group, regex))
        };
        groups.iter().enumerate().map(compile).collect::<Result<_, _>>().map(Self)
    }

    fn matches(&self, i: usize, parameter: &Described) -> Result<bool, ConfigError> {
        let (group, regex) = &self.0[i];
        if group.dimensions.is_some_and(|dimensions| dimensions != parameter.dimensions) {
            return Ok(false);
        }
        let Some(regex) = regex else { return Ok(true) };
        regex.is_match(&parameter.name).map_err(|error| ConfigError::Value {
            path: format!("parameter_groups[{i}].pattern"),
            found: format!("an expression that gives up on `{}` ({error})", parameter.name),
            expected: "one with less to try".to_owned(),
        })
    }

    /// The first group that matches.
    fn of(&self, parameter: &Described) -> Result<Option<usize>, ConfigError> {
        for i in 0..self.0.len() {
            if self.matches(i, parameter)? {
                return Ok(Some(i));
            }
        }
        Ok(None)
    }

    /// Refuses a group that matches none of all ranks' parameters.
    pub(crate) fn check_all(&self, all: &[Described]) -> Result<(), ConfigError> {
        for (i, (group, _)) in self.0.iter().enumerate() {
            let mut found = false;
            for parameter in all {
                found = found || self.matches(i, parameter)?;
            }
            if !found {
                let names = all.iter().take(LISTED_MAX).map(|p| format!("{} ({}D)", p.name, p.dimensions));
                let more = all.len().saturating_sub(LISTED_MAX);
                let more = (more > 0).then(|| format!("{more} more"));
                return Err(ConfigError::NoParameter {
                    path: format!("parameter_groups[{i}]"),
                    group: group.describe(),
                    parameters: names.chain(more).collect::<Vec<_>>().join(", "),
                });
            }
        }
        Ok(())
    }
}

/// The optimizer of a rank's parameters, with what its groups change.
pub(crate) struct Assigned {
    pub(crate) optimizer: ModuleOptimizer,
    /// Factors of the learning rate other than 1, and whose they are.
    pub(crate) factors: Vec<(ParamGroup, f64)>,
    pub(crate) frozen: Vec<ParamId>,
}

/// What updates the parameters that no group changes.
pub(crate) enum Base {
    Value(ModuleOptimizer),
    Config(OptimizerConfig),
}

/// Gives every parameter of a rank to its group.
pub(crate) fn assign(
    base: Base,
    groups: &[ParameterGroup],
    learning_rate: f64,
    parameters: &[(Described, ParamId)],
) -> Result<Assigned, ConfigError> {
    let compiled = Groups::new(groups)?;
    let mut members: BTreeMap<Option<usize>, Vec<&(Described, ParamId)>> = BTreeMap::new();
    for parameter in parameters {
        members.entry(compiled.of(&parameter.0)?).or_default().push(parameter);
    }
    let config = match &base {
        Base::Config(config) => Some(config.clone()),
        Base::Value(_) => None,
    };
    let mut assigned = Assigned {
        optimizer: match base {
            Base::Value(optimizer) => optimizer,
            Base::Config(config) => config.into(),
        },
        factors: Vec::new(),
        frozen: Vec::new(),
    };
    for (i, members) in members {
        let Some(i) = i else {
            refuse_muon("optimizer", config.as_ref(), &members)?;
            continue;
        };
        let (group, path) = (&groups[i], format!("parameter_groups[{i}]"));
        let ids: Vec<ParamId> = members.iter().map(|(_, id)| *id).collect();
        if group.frozen {
            assigned.frozen.extend(ids);
            continue;
        }
        let own = match (group.optimizer.clone().or_else(|| config.clone()), group.weight_decay) {
            (Some(optimizer), Some(weight_decay)) => Some(optimizer.with_weight_decay(weight_decay)),
            (optimizer, None) => optimizer,
            (None, Some(_)) => {
                let reason = "the optimizer was given as a value, whose decay is its own; give it in the \
                              configuration, or give this group an `optimizer`";
                let path = format!("{path}.weight_decay");
                return Err(ConfigError::Unsupported { path, reason: reason.to_owned() });
            }
        };
        refuse_muon(&path, own.as_ref(), &members)?;
        let factor = group.factor(learning_rate);
        let ids = ParamGroup::from_ids(ids);
        if let Some(own) = own.filter(|_| group.optimizer.is_some() || group.weight_decay.is_some()) {
            assigned.optimizer = own.join(assigned.optimizer, ids.clone());
        }
        if factor != 1.0 {
            assigned.factors.push((ids, factor));
        }
    }
    Ok(assigned)
}

/// Muon works on matrices only.
fn refuse_muon(
    path: &str,
    optimizer: Option<&OptimizerConfig>,
    members: &[&(Described, ParamId)],
) -> Result<(), ConfigError> {
    let Some(OptimizerConfig::Muon(_)) = optimizer else { return Ok(()) };
    match members.iter().find(|(parameter, _)| parameter.dimensions != 2) {
        None => Ok(()),
        Some((Described { name, dimensions }, _)) => Err(ConfigError::Unsupported {
            path: path.to_owned(),
            reason: format!(
                "Muon works on matrices, and {name} has {dimensions} dimension(s): give such parameters another optimizer by a group before"
            ),
        }),
    }
}

/// Keeps parameters out of the training.
pub(crate) fn freeze<M: Module>(module: M, ids: &[ParamId]) -> M {
    struct Freeze<'a>(&'a [ParamId]);
    impl ModuleMapper for Freeze<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if self.0.contains(&param.id) { param.set_require_grad(false) } else { param }
        }
    }
    if ids.is_empty() { module } else { module.map(&mut Freeze(ids)) }
}
