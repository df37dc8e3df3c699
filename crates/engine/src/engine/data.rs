//! Micro-batches from the user's data, agreed on by all ranks before anything runs.

use brigade_topology::Rank;
use brigade_wire::Tree;

use super::PipelineEngine;
use crate::error::{Cause, Site, StepError, guard};
use crate::hub::Contribution;
use crate::interpreter::Batch;
use crate::tensor::AnyTensor;
use crate::value::Value;

/// What a call takes from its data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Feed {
    Pairs,
    Inputs,
}

impl<I: Value, O: Value, T: Value> PipelineEngine<I, O, T> {
    /// Fetches this rank's share of a batch and agrees with the others on what there is.
    pub(super) fn fetch<U: Value>(
        &self,
        call: &str,
        n_micro_batches: u32,
        data: &mut impl Iterator<Item = (I, U)>,
        feed: Feed,
    ) -> Result<Option<Batch>, StepError> {
        let rank = &self.module.rank;
        let site = || rank.site(&format!("{call}, fetching the data"));
        let wanted = usize::try_from(n_micro_batches).unwrap_or(usize::MAX);
        let (first, last) = (self.module.holds_first(), self.module.holds_last() && feed == Feed::Pairs);
        let mut batch = Batch::default();
        let mut found = 0;
        while (first || last) && found < wanted {
            let next = guard("the data source", || data.next()).map_err(|cause| rank.fail(site(), cause))?;
            let Some((input, target)) = next else { break };
            if first {
                batch.inputs.push(Some(self.erase(input, &site)?));
            }
            if last {
                batch.targets.push(Some(self.erase(target, &site)?));
            }
            found += 1;
        }
        let feeds = u64::from(first || last);
        let words = vec![feeds, u64::try_from(found).unwrap_or(u64::MAX)];
        let call = format!("{call} with {n_micro_batches} micro-batches on {}", self.identity);
        let all = rank.exchange(Contribution { call, words, messages: Vec::new() }, site)?;
        let counts: Vec<(usize, usize)> = all
            .iter()
            .enumerate()
            .filter(|(_, contribution)| contribution.words.first() == Some(&1))
            .map(|(peer, c)| (peer, c.words.get(1).and_then(|&n| usize::try_from(n).ok()).unwrap_or(0)))
            .collect();
        let lowest = counts.iter().min_by_key(|(_, found)| *found).copied().unwrap_or((0, 0));
        let highest = counts.iter().max_by_key(|(_, found)| *found).copied().unwrap_or((0, 0));
        if lowest.1 == wanted {
            return Ok(Some(batch));
        }
        if highest.1 == 0 {
            return Ok(None);
        }
        // Every rank reports the same failure: that of the rank whose data ended first.
        let world_rank = |peer: usize| Rank(u64::try_from(peer).unwrap_or(u64::MAX));
        let at = Site { rank: world_rank(lowest.0), ..site() };
        let cause = if lowest.1 == highest.1 {
            Cause::DataEnded { wanted, found: lowest.1 }
        } else {
            let other = world_rank(highest.0);
            Cause::DataDiffers { other, there: highest.1, here: lowest.1 }
        };
        Err(rank.fail(at, cause))
    }

    fn erase<U: Value>(&self, value: U, site: &impl Fn() -> Site) -> Result<Tree<AnyTensor>, StepError> {
        let cause = |source| Cause::DataValue { what: "input or target", source };
        value.into_tree().map_err(|source| self.module.rank.fail(site(), cause(source)))
    }
}
