//! The named values of one micro-batch while it passes through a stage.

use std::collections::BTreeMap;
use std::mem;

use brigade_wire::Tree;

use super::layout::StageSkips;
use crate::tensor::{AnyTensor, LeafRole};

/// What is left to be used in a stage, and what leaves it.
///
/// Every user has a value of its own, a handle to the same data, so that a value lives exactly until its
/// last user has taken it.
#[derive(Debug)]
pub(crate) struct SkipStore<'a> {
    stage: &'a StageSkips,
    /// By layer of the user.
    ready: BTreeMap<usize, Tree<AnyTensor>>,
    /// By skip.
    leaving: BTreeMap<usize, Tree<AnyTensor>>,
}

impl<'a> SkipStore<'a> {
    pub(crate) fn new(stage: &'a StageSkips) -> Self {
        Self { stage, ready: BTreeMap::new(), leaving: BTreeMap::new() }
    }

    /// Keeps the value of the stash at `layer`.
    pub(crate) fn stash(&mut self, layer: usize, value: Tree<AnyTensor>) {
        let &skip = self.stage.stashes.get(&layer).expect("the layout lists every stash of the stage");
        self.offer(skip, value);
    }

    /// Keeps a value for all its users of this stage, and for later stages where they use it.
    pub(crate) fn offer(&mut self, skip: usize, value: Tree<AnyTensor>) {
        for &user in self.stage.users.get(&skip).into_iter().flatten() {
            self.ready.insert(user, value.clone());
        }
        if self.stage.leaving.contains(&skip) {
            self.leaving.insert(skip, value);
        }
    }

    /// Takes the carried values out of what the stage received.
    pub(crate) fn unpack_carried(&mut self, input: Tree<AnyTensor>) -> Tree<AnyTensor> {
        if self.stage.carried_in.is_empty() {
            return input;
        }
        let Tree::Tuple(items) = input else {
            unreachable!("the stage before has the same layout and puts the carried values into a tuple")
        };
        let mut items = items.into_iter();
        let main = items.next().unwrap_or(Tree::None);
        for (&skip, value) in self.stage.carried_in.iter().zip(items) {
            self.offer(skip, value);
        }
        main
    }

    /// Cuts the graph of every value: their tracked tensors, each with the leaf that is in its place now,
    /// in the order of the users, what leaves the stage last.
    pub(crate) fn cut(&mut self) -> Vec<(AnyTensor, AnyTensor)> {
        let mut cut = Vec::new();
        for value in self.ready.values_mut().chain(self.leaving.values_mut()) {
            *value = mem::replace(value, Tree::None).map(|tensor: AnyTensor| {
                if !tensor.is_tracked() {
                    return tensor;
                }
                let leaf = tensor.clone().into_leaf(LeafRole::GradientWanted);
                cut.push((tensor, leaf.clone()));
                leaf
            });
        }
        cut
    }

    /// Keeps a value for one user.
    pub(crate) fn offer_to(&mut self, user: usize, value: Tree<AnyTensor>) {
        self.ready.insert(user, value);
    }

    /// Takes the value of the user at `layer`.
    pub(crate) fn take(&mut self, layer: usize) -> Tree<AnyTensor> {
        self.ready
            .remove(&layer)
            .expect("a value is stashed before it is used: checked when the list is built")
    }

    /// What later stages use, by skip.
    pub(crate) fn into_leaving(self) -> BTreeMap<usize, Tree<AnyTensor>> {
        self.leaving
    }
}
