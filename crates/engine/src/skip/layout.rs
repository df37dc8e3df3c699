//! Which named values each stage makes, uses, hands on and sends straight to others.

use std::collections::{BTreeMap, BTreeSet};

use brigade_partition::Cuts;
use brigade_topology::Stage;
use brigade_wire::Tree;

use super::{SkipKind, SkipOp, SkipRoute};
use crate::error::SkipError;
use crate::layers::LayerSpec;
use crate::tensor::AnyTensor;

/// One named value of the whole list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Skip {
    name: String,
    /// The layer that makes it.
    stash: usize,
    /// The layers that use it, ascending.
    users: Vec<usize>,
    route: SkipRoute,
}

/// The named values of a list of layers, in the order of their stashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Skips(Vec<Skip>);

impl Skips {
    /// Matches the stashes and users of a list.
    pub(crate) fn new(specs: &[LayerSpec]) -> Result<Self, Box<SkipError>> {
        let mut skips: Vec<Open<'_>> = Vec::new();
        let mut by_name: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, op) in entries(specs) {
            let (name, layer) = (op.name.clone(), specs[index].label(index));
            let known = by_name.get(op.name.as_str()).copied();
            if op.kind == SkipKind::Stash {
                if let Some(first) = known {
                    let first = skips[first].skip.stash;
                    let first = specs[first].label(first);
                    return Err(SkipError::StashedTwice { name, first, second: layer }.into());
                }
                by_name.insert(&op.name, skips.len());
                let skip = Skip { name, stash: index, users: Vec::new(), route: SkipRoute::default() };
                skips.push(Open { skip, stash: op, popped: None });
                continue;
            }
            let Some(known) = known else {
                let later = entries(specs).find(|(_, o)| o.kind == SkipKind::Stash && o.name == op.name);
                let error = match later {
                    Some((stash, _)) => {
                        SkipError::TooEarly { name, user: layer, stash: specs[stash].label(stash) }
                    }
                    None => SkipError::NotStashed { name, layer },
                };
                return Err(error.into());
            };
            let Open { skip, stash, popped } = &mut skips[known];
            if let Some(pop) = *popped {
                return Err(SkipError::AfterPop { name, pop: specs[pop].label(pop), user: layer }.into());
            }
            if stash.value != op.value {
                let (stashed, wanted) = (stash.value.name, op.value.name);
                let stash = specs[skip.stash].label(skip.stash);
                return Err(SkipError::Type { name, stash, stashed, user: layer, wanted }.into());
            }
            skip.users.push(index);
            *popped = (op.kind == SkipKind::Pop).then_some(index);
        }
        let skips: Vec<Skip> = skips.into_iter().map(|open| open.skip).collect();
        match skips.iter().find(|skip| skip.users.is_empty()) {
            Some(Skip { name, stash, .. }) => {
                Err(SkipError::Unused { name: name.clone(), layer: specs[*stash].label(*stash) }.into())
            }
            None => Ok(Self(skips)),
        }
    }

    /// Sets how all values travel, and then how some of them do.
    pub(crate) fn routed(
        mut self,
        all: SkipRoute,
        some: &BTreeMap<String, SkipRoute>,
    ) -> Result<Self, Box<SkipError>> {
        for skip in &mut self.0 {
            skip.route = some.get(&skip.name).copied().unwrap_or(all);
        }
        match some.keys().find(|&name| !self.0.iter().any(|skip| skip.name == *name)) {
            Some(name) => {
                let known = self.0.into_iter().map(|skip| skip.name).collect();
                Err(SkipError::NoSuchSkip { name: name.clone(), known }.into())
            }
            None => Ok(self),
        }
    }

    /// The layout of a list of `n_layers` layers that is not cut.
    pub(crate) fn within_one_stage(&self, n_layers: usize) -> StageSkips {
        let cuts = Cuts::new(vec![0, n_layers]).ok();
        let stage = cuts.and_then(|cuts| self.layout(&cuts).stages.into_iter().next());
        stage.unwrap_or_default()
    }

    /// What each stage has to do with the values when the list is cut like this.
    pub(crate) fn layout(&self, cuts: &Cuts) -> SkipLayout {
        let stage_of = |layer: usize| cuts.stage_of(layer).expect("the cuts cover the list");
        let stages = vec![StageSkips::default(); cuts.n_stages()];
        let mut layout = SkipLayout { stages, lanes: Vec::new() };
        let mut lanes: BTreeMap<(usize, usize), Vec<LaneValue>> = BTreeMap::new();
        for (index, skip) in self.0.iter().enumerate() {
            let home = stage_of(skip.stash);
            layout.stages[home].stashes.insert(skip.stash, index);
            let mut users: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for &user in &skip.users {
                users.entry(stage_of(user)).or_default().push(user);
            }
            let last = users.keys().next_back().copied().unwrap_or(home);
            if last > home {
                layout.stages[home].leaving.insert(index);
            }
            for (stage, users) in users {
                if stage == home || skip.route == SkipRoute::Carried {
                    layout.stages[stage].users.insert(index, users);
                } else {
                    lanes.entry((home, stage)).or_default().push(LaneValue { skip: index, users });
                }
            }
            if skip.route == SkipRoute::Carried {
                for stage in home..last {
                    layout.stages[stage].leaving.insert(index);
                    layout.stages[stage].carried_out.push(index);
                    layout.stages[stage + 1].carried_in.push(index);
                }
            }
        }
        for ((from, to), values) in lanes {
            layout.stages[from].lanes_out.push(layout.lanes.len());
            layout.stages[to].lanes_in.push(layout.lanes.len());
            layout.lanes.push(Lane { from: stage_id(from), to: stage_id(to), values });
        }
        layout
    }
}

/// A value whose users are being looked for.
struct Open<'a> {
    skip: Skip,
    stash: &'a SkipOp,
    /// The layer that has popped it.
    popped: Option<usize>,
}

fn entries(specs: &[LayerSpec]) -> impl Iterator<Item = (usize, &SkipOp)> {
    specs.iter().enumerate().filter_map(|(layer, spec)| Some((layer, spec.skip()?)))
}

fn stage_id(stage: usize) -> Stage {
    Stage(u32::try_from(stage).unwrap_or(u32::MAX))
}

/// A value on a lane, and the layers of the receiving stage that use it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LaneValue {
    pub(crate) skip: usize,
    pub(crate) users: Vec<usize>,
}

/// The values that go straight from one stage to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    pub(crate) from: Stage,
    pub(crate) to: Stage,
    pub(crate) values: Vec<LaneValue>,
}

/// What one stage has to do with named values; skips are known by their index in the list's order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct StageSkips {
    /// The skip of each layer that stashes.
    pub(crate) stashes: BTreeMap<usize, usize>,
    /// The layers of this stage that use a skip which is made here or carried here.
    pub(crate) users: BTreeMap<usize, Vec<usize>>,
    /// What later stages use.
    pub(crate) leaving: BTreeSet<usize>,
    /// What comes with the message from the stage before, in its order.
    pub(crate) carried_in: Vec<usize>,
    /// What goes with the message to the next stage, in its order.
    pub(crate) carried_out: Vec<usize>,
    /// The lanes that end here.
    pub(crate) lanes_in: Vec<usize>,
    /// The lanes that start here.
    pub(crate) lanes_out: Vec<usize>,
}

impl StageSkips {
    /// The stage's output with the values that it carries on for later stages.
    pub(crate) fn with_carried(
        &self,
        output: Tree<AnyTensor>,
        leaving: &BTreeMap<usize, Tree<AnyTensor>>,
    ) -> Tree<AnyTensor> {
        if self.carried_out.is_empty() {
            return output;
        }
        let carried = self.carried_out.iter().map(|skip| leaving[skip].clone());
        Tree::Tuple(std::iter::once(output).chain(carried).collect())
    }
}

/// What all stages have to do with named values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct SkipLayout {
    pub(crate) stages: Vec<StageSkips>,
    /// By sending, then by receiving stage.
    pub(crate) lanes: Vec<Lane>,
}

impl SkipLayout {
    pub(crate) fn stage(&self, stage: Stage) -> &StageSkips {
        &self.stages[stage.index()]
    }
}
