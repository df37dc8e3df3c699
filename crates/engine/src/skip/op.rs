//! One entry of a layer list that stashes or uses a named value.

use std::fmt;
use std::sync::Arc;

use brigade_wire::Tree;

use super::SkipStore;
use crate::any_layer::ForwardError;
use crate::layers::TypeTag;
use crate::tensor::AnyTensor;
use crate::value::Value;

type StashFn = Arc<dyn Fn(Tree<AnyTensor>) -> Result<Tree<AnyTensor>, ForwardError> + Send + Sync>;
type UseFn =
    Arc<dyn Fn(Tree<AnyTensor>, Tree<AnyTensor>) -> Result<Tree<AnyTensor>, ForwardError> + Send + Sync>;

/// What an entry does with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SkipKind {
    Stash,
    Peek,
    Pop,
}

impl SkipKind {
    /// What the entry is called where a layer has the name of its type.
    pub(crate) fn type_name(self) -> &'static str {
        match self {
            Self::Stash => "Stash",
            Self::Peek => "Peek",
            Self::Pop => "Pop",
        }
    }
}

#[derive(Clone)]
enum Run {
    Stash(StashFn),
    Use(UseFn),
}

/// An entry that stashes or uses a named value; it has no parameters.
#[derive(Clone)]
pub(crate) struct SkipOp {
    pub(crate) name: String,
    pub(crate) kind: SkipKind,
    /// The value's type, compared between the stash and its users.
    pub(crate) value: TypeTag,
    run: Run,
}

impl SkipOp {
    pub(crate) fn stash<O: Value, S: Value>(
        name: impl Into<String>,
        make: impl Fn(&O) -> S + Send + Sync + 'static,
    ) -> Self {
        let run = move |x| {
            let x = O::from_tree(x).map_err(ForwardError::Input)?;
            make(&x).into_tree().map_err(ForwardError::Output)
        };
        Self {
            name: name.into(),
            kind: SkipKind::Stash,
            value: TypeTag::of::<S>(),
            run: Run::Stash(Arc::new(run)),
        }
    }

    pub(crate) fn user<O: Value, S: Value, P: Value>(
        kind: SkipKind,
        name: impl Into<String>,
        combine: impl Fn(O, S) -> P + Send + Sync + 'static,
    ) -> Self {
        let run = move |x, value| {
            let x = O::from_tree(x).map_err(ForwardError::Input)?;
            let value = S::from_tree(value).map_err(ForwardError::Input)?;
            combine(x, value).into_tree().map_err(ForwardError::Output)
        };
        Self { name: name.into(), kind, value: TypeTag::of::<S>(), run: Run::Use(Arc::new(run)) }
    }

    /// Runs the entry at `layer` on `input`: a stash hands it on, a use combines it with its value.
    pub(crate) fn forward(
        &self,
        layer: usize,
        input: Tree<AnyTensor>,
        store: &mut SkipStore<'_>,
    ) -> Result<Tree<AnyTensor>, ForwardError> {
        match &self.run {
            Run::Stash(make) => {
                let value = make(input.clone())?;
                store.stash(layer, value);
                // The layers behind may use it several times: their gradients add up before they join those
                // of the value's users, as they do where a stage ends here.
                Ok(input.map(AnyTensor::into_own_node))
            }
            Run::Use(combine) => combine(input, store.take(layer)),
        }
    }

    /// Puts `namespace/` before the name, so that a list may be appended more than once.
    pub(crate) fn namespaced(mut self, namespace: &str) -> Self {
        self.name = format!("{namespace}/{}", self.name);
        self
    }
}

impl fmt::Debug for SkipOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({:?}: {})", self.kind.type_name(), self.name, self.value.name)
    }
}
