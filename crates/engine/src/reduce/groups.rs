//! Groups of copies: one for each parameter of the model, with every place that holds it.

use std::collections::{BTreeMap, BTreeSet};

use brigade_topology::{Direction, PipeRank, Placement, Stage};

use crate::error::{BuildError, TieProblem};
use crate::tie::Tie;

/// A float parameter of a layer, as every rank knows it: without its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParameterInfo {
    /// Path inside the layer, such as `attention.query.weight`.
    pub(crate) path: String,
    pub(crate) shape: Vec<usize>,
    /// Whether it is a running statistic, which forward passes change and no gradient.
    pub(crate) is_statistic: bool,
    /// Whether training changes it: neither frozen nor a statistic.
    pub(crate) is_trainable: bool,
    /// Memory of one element: of the device's own float type for a parameter that is not made yet.
    pub(crate) element_bytes: u64,
}

impl ParameterInfo {
    #[cfg(test)]
    pub(crate) fn trained(path: &str, shape: &[usize]) -> Self {
        let (path, shape) = (path.to_owned(), shape.to_vec());
        Self { path, shape, is_statistic: false, is_trainable: true, element_bytes: 4 }
    }

    pub(crate) fn n_elements(&self) -> u64 {
        let sizes = self.shape.iter().map(|&size| u64::try_from(size).unwrap_or(u64::MAX));
        sizes.fold(1, u64::saturating_mul)
    }
}

/// A parameter of the whole model by its place: the same on every rank and at any number of stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Global layer index.
    pub(crate) layer: usize,
    /// Number among the layer's float parameters, in the order of its fields.
    pub(crate) parameter: usize,
}

/// One use of a parameter by a layer, and the pipeline ranks that hold this layer: two where the
/// pipeline runs in both directions, the one that gets micro-batches from the front first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) place: Place,
    pub(crate) holders: Vec<PipeRank>,
}

/// One parameter of the model.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) info: ParameterInfo,
    /// In the order of the layers; the first one owns the parameter.
    pub(crate) uses: Vec<Use>,
    /// The replica that adds the gradients of all copies up.
    pub(crate) reducer: usize,
}

impl Group {
    pub(crate) fn place(&self) -> Place {
        self.uses[0].place
    }

    /// The pipeline rank that updates the parameter.
    pub(crate) fn owner(&self) -> PipeRank {
        self.uses[0].holders[0]
    }

    /// Every copy within one replica.
    pub(crate) fn copies(&self) -> impl Iterator<Item = (PipeRank, Place)> + '_ {
        self.uses.iter().flat_map(|each| each.holders.iter().map(|&holder| (holder, each.place)))
    }
}

/// All parameters of the model in their one global order: that of the layers that own them, and of the
/// fields within a layer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups(Vec<Group>);

impl Groups {
    /// Finds the copies of every parameter and shares the work of adding them up between the replicas.
    ///
    /// `ties` and `parameters` are those of each layer, `stages` says which stage it is on.
    pub(crate) fn new(
        ties: &[&[Tie]],
        parameters: &[Vec<ParameterInfo>],
        stages: &[Stage],
        placement: &Placement,
        n_replicas: usize,
    ) -> Result<Self, BuildError> {
        let owners = owners(ties, parameters)?;
        let mut groups: BTreeMap<Place, Group> = BTreeMap::new();
        for (layer, infos) in parameters.iter().enumerate() {
            for (parameter, info) in infos.iter().enumerate() {
                let place = Place { layer, parameter };
                let owner = owners.get(&place).copied().unwrap_or(place);
                let group = groups.entry(owner).or_insert_with(|| Group {
                    info: info.clone(),
                    uses: Vec::new(),
                    reducer: 0,
                });
                group.uses.push(Use { place, holders: holders(placement, stages[layer]) });
            }
        }
        let mut groups: Vec<Group> = groups.into_values().collect();
        balance(&mut groups, n_replicas);
        Ok(Self(groups))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Group> + '_ {
        self.0.iter()
    }
}

/// The ranks of a pipeline that hold a stage: the one on the way down, and another one on the way up.
fn holders(placement: &Placement, stage: Stage) -> Vec<PipeRank> {
    let on_the_way = |direction| placement.rank_towards(stage, direction);
    let mut holders: Vec<PipeRank> =
        [Direction::Down, Direction::Up].into_iter().flat_map(on_the_way).collect();
    holders.dedup();
    holders
}

/// The owner's place for each place that a tie makes a copy.
fn owners(ties: &[&[Tie]], parameters: &[Vec<ParameterInfo>]) -> Result<BTreeMap<Place, Place>, BuildError> {
    let mut firsts: BTreeMap<&str, Vec<(&str, Place)>> = BTreeMap::new();
    let mut owners = BTreeMap::new();
    let mut claimed = BTreeSet::new();
    let layers = ties.iter().zip(parameters).enumerate();
    let each = layers.flat_map(|(layer, (ties, infos))| ties.iter().map(move |tie| (layer, tie, infos)));
    for (layer, tie, infos) in each {
        let refuse = |problem| BuildError::Tie { key: tie.key.clone(), layer, problem: Box::new(problem) };
        let named = named(tie, layer, infos).map_err(refuse)?;
        let again = named.iter().find(|(_, place)| !claimed.insert(*place));
        let same_layer = |first: &&Vec<(&str, Place)>| first.iter().any(|(_, place)| place.layer == layer);
        let beside = firsts.get(tie.key.as_str()).filter(same_layer).and(named.first());
        if let Some(&(path, _)) = again.or(beside) {
            return Err(refuse(TieProblem::Twice { path: path.to_owned() }));
        }
        let Some(first) = firsts.get(tie.key.as_str()) else {
            firsts.insert(&tie.key, named);
            continue;
        };
        let mut taken = Vec::new();
        for (number, &(path, place)) in named.iter().enumerate() {
            let same_path = first.iter().find(|(name, _)| *name == path);
            let owner = same_path.or_else(|| first.get(number));
            let &(_, owner) = owner.ok_or_else(|| refuse(TieProblem::TooMany { path: path.to_owned() }))?;
            if taken.contains(&owner) {
                return Err(refuse(TieProblem::Twice { path: path.to_owned() }));
            }
            taken.push(owner);
            let (here, there) = (&infos[place.parameter], &parameters[owner.layer][owner.parameter]);
            if here.shape != there.shape {
                return Err(refuse(TieProblem::Shape {
                    path: path.to_owned(),
                    shape: here.shape.clone(),
                    owner: owner.layer,
                    owner_path: there.path.clone(),
                    owner_shape: there.shape.clone(),
                }));
            }
            owners.insert(place, owner);
        }
    }
    Ok(owners)
}

/// The parameters of a layer that its tie names, in the order of the names.
fn named<'a>(
    tie: &'a Tie,
    layer: usize,
    infos: &'a [ParameterInfo],
) -> Result<Vec<(&'a str, Place)>, TieProblem> {
    if tie.attributes.is_empty() {
        let all = infos.iter().enumerate();
        return Ok(all.map(|(parameter, info)| (&*info.path, Place { layer, parameter })).collect());
    }
    let mut found: Vec<(&str, Place)> = Vec::new();
    for path in &tie.attributes {
        let parameter = infos.iter().position(|info| info.path == *path);
        let parameter = parameter.ok_or_else(|| TieProblem::Unknown {
            path: path.clone(),
            known: infos.iter().map(|info| info.path.clone()).collect(),
        })?;
        if found.iter().any(|(name, _)| name == path) {
            return Err(TieProblem::Twice { path: path.clone() });
        }
        found.push((path, Place { layer, parameter }));
    }
    Ok(found)
}

/// Gives each group to the replica that has least to add up so far, large groups first: the parts of
/// one pipeline rank differ by no more than its largest parameter.
fn balance(groups: &mut [Group], n_replicas: usize) {
    let mut loads: BTreeMap<PipeRank, Vec<u64>> = BTreeMap::new();
    let mut order: Vec<usize> = (0..groups.len()).collect();
    // Stable: groups of one size stay in the global order.
    order.sort_by_key(|&group| std::cmp::Reverse(groups[group].info.n_elements()));
    for group in order {
        let group = &mut groups[group];
        let loads = loads.entry(group.owner()).or_insert_with(|| vec![0; n_replicas]);
        let least = (0..loads.len()).min_by_key(|&replica| loads[replica]).unwrap_or(0);
        if let Some(load) = loads.get_mut(least) {
            *load = load.saturating_add(group.info.n_elements());
        }
        group.reducer = least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(path: &str, shape: &[usize]) -> ParameterInfo {
        ParameterInfo::trained(path, shape)
    }

    /// Layers with a weight and a bias each, one a stage.
    fn groups(ties: &[Option<Tie>], n_replicas: usize) -> Result<Groups, BuildError> {
        let parameters: Vec<_> =
            ties.iter().map(|_| vec![info("weight", &[3]), info("bias", &[3])]).collect();
        let stages: Vec<_> = (0..u32::try_from(ties.len()).expect("small")).map(Stage).collect();
        let placement = Placement::linear(u32::try_from(ties.len()).expect("small")).expect("stages");
        let ties: Vec<_> = ties.iter().map(Option::as_slice).collect();
        Groups::new(&ties, &parameters, &stages, &placement, n_replicas)
    }

    fn tie<const N: usize>(key: &str, attributes: [&str; N]) -> Option<Tie> {
        Some(Tie::new(key, attributes))
    }

    fn problem(ties: &[Option<Tie>]) -> TieProblem {
        match groups(ties, 1) {
            Err(BuildError::Tie { problem, .. }) => *problem,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn groups_come_in_the_order_of_the_layers_that_own_them_whatever_the_keys() {
        // Keys over the stages {0, 1}, {1, 2} and {0, 2} cannot be on one layer; five layers do it.
        let ties = [tie("b", []), tie("c", []), tie("b", []), tie("a", []), tie("c", []), tie("a", [])];
        let groups = groups(&ties, 1).expect("sound ties");
        let uses: Vec<Vec<(usize, usize)>> = groups
            .iter()
            .map(|g| g.uses.iter().map(|u| (u.place.layer, u.place.parameter)).collect())
            .collect();
        let expected = [
            [(0, 0), (2, 0)],
            [(0, 1), (2, 1)],
            [(1, 0), (4, 0)],
            [(1, 1), (4, 1)],
            [(3, 0), (5, 0)],
            [(3, 1), (5, 1)],
        ];
        assert_eq!(uses, expected);
    }

    #[test]
    fn a_path_is_the_owners_parameter_of_that_path_or_else_the_one_at_its_place() {
        let by_path = groups(&[tie("k", ["weight", "bias"]), tie("k", ["bias"])], 1).expect("sound");
        assert_eq!(by_path.iter().map(|g| g.uses.len()).collect::<Vec<_>>(), [1, 2, 1]);
        let by_place = groups(&[tie("k", ["weight"]), tie("k", ["bias"])], 1).expect("sound");
        let uses: Vec<_> = by_place.iter().next().expect("a group").uses.iter().map(|u| u.place).collect();
        assert_eq!(uses, [Place { layer: 0, parameter: 0 }, Place { layer: 1, parameter: 1 }]);
    }

    #[test]
    fn ties_that_cannot_be_are_refused_with_their_reason() {
        let unknown = problem(&[tie("k", ["weights"])]);
        assert!(matches!(unknown, TieProblem::Unknown { known, .. } if known == ["weight", "bias"]));
        let twice = problem(&[tie("k", ["weight", "weight"])]);
        assert!(matches!(twice, TieProblem::Twice { .. }));
        let too_many = problem(&[tie("k", ["weight"]), tie("k", ["weight", "bias"])]);
        assert!(matches!(too_many, TieProblem::TooMany { path } if path == "bias"));
        let twice = problem(&[tie("k", ["bias"]), tie("k", ["weight", "bias"])]);
        assert!(matches!(twice, TieProblem::Twice { path } if path == "bias"));
        let parameters = [vec![info("weight", &[2, 3])], vec![info("weight", &[3, 2])]];
        let ties = [tie("k", []), tie("k", [])];
        let ties: Vec<_> = ties.iter().map(Option::as_slice).collect();
        let placement = Placement::linear(1).expect("a stage");
        let error =
            Groups::new(&ties, &parameters, &[Stage(0); 2], &placement, 1).expect_err("shapes differ");
        let text = "tie `k`: layer 1 has `weight` of shape [3, 2], layer 0 that owns it `weight` of shape \
                    [2, 3]: make them equal, and turn the values in `forward` where another layout is needed";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn the_replicas_share_the_work_evenly() {
        let ties: Vec<Option<Tie>> = vec![None; 5];
        for n_replicas in 1..=4 {
            let groups = groups(&ties, n_replicas).expect("no ties");
            // Each pipeline rank has a weight and a bias of one size.
            let counts = (0..n_replicas).map(|r| groups.iter().filter(|g| g.reducer == r).count());
            let expected: &[usize] = [&[10][..], &[5, 5], &[5, 5, 0], &[5, 5, 0, 0]][n_replicas - 1];
            assert_eq!(counts.collect::<Vec<_>>(), expected);
        }
        let sizes = [7, 1, 5, 3, 2, 2];
        let mut groups: Vec<Group> = sizes
            .iter()
            .enumerate()
            .map(|(layer, &size)| Group {
                info: info("weight", &[size]),
                uses: vec![Use { place: Place { layer, parameter: 0 }, holders: vec![PipeRank(0)] }],
                reducer: 0,
            })
            .collect();
        balance(&mut groups, 2);
        assert_eq!(groups.iter().map(|g| g.reducer).collect::<Vec<_>>(), [0, 0, 1, 1, 0, 1]);
    }
}
