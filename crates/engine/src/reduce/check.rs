//! Compares all copies of every parameter.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use brigade_topology::Rank;

use super::Reducer;
use super::copies::values;
use super::groups::{Groups, Place};
use crate::error::{Cause, StepError, guard};
use crate::hub::Contribution;
use crate::layer::layer_name;
use crate::stage::RankModule;

impl Reducer {
    /// Compares checksums of the values of all copies of each parameter, on every rank.
    pub(crate) fn check(&self, module: &RankModule, groups: &Groups) -> Result<(), StepError> {
        let site = || self.rank.site("check_copies");
        let values = guard("a module's traversal", || values(module, |_| true));
        let values = values.map_err(|cause| self.rank.fail(site(), cause))?;
        let mut words = Vec::new();
        for (number, group) in groups.iter().enumerate() {
            for copy in group.uses.iter().filter_map(|each| self.copies.get(&each.place)) {
                if let Some(value) = values.get(&copy.id.val()) {
                    let data = value.clone().into_data();
                    let mut hasher = DefaultHasher::new();
                    (data.as_bytes(), data.shape().as_slice()).hash(&mut hasher);
                    words.extend([u64::try_from(number).unwrap_or(u64::MAX), hasher.finish()]);
                }
            }
        }
        let call = Contribution { call: "check_copies".to_owned(), words, messages: Vec::new() };
        let all = self.rank.exchange(call, site)?;
        let mut first: BTreeMap<u64, (Rank, u64)> = BTreeMap::new();
        for (rank, contribution) in all.iter().enumerate() {
            let rank = Rank(u64::try_from(rank).unwrap_or(u64::MAX));
            for pair in contribution.words.chunks_exact(2) {
                let (number, sum) = (pair[0], pair[1]);
                let &mut (other, expected) = first.entry(number).or_insert((rank, sum));
                if expected != sum {
                    let group = usize::try_from(number).ok().and_then(|number| groups.iter().nth(number));
                    let parameter = group.map_or(String::new(), |group| {
                        let Place { layer, .. } = group.place();
                        format!("{}.{}", layer_name(layer), group.info.path)
                    });
                    return Err(self.rank.fail(site(), Cause::CopiesDiffer { parameter, rank, other }));
                }
            }
        }
        Ok(())
    }
}
