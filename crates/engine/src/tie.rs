//! Which parameters of a layer are one with those of other layers.

/// The parameters that a layer shares with every other layer whose tie has the same key.
///
/// Each use keeps a parameter of its own, on whichever stage it lives. All start from the values of the
/// first use in the order of the layers, which owns them; after each batch the gradients of all uses
/// are added up in that order, the owner updates, and the others take its new values. A frozen owner
/// freezes all uses. A parameter that is not named stays the layer's own.
///
/// A path that the owner names too is the owner's parameter of that path; another one is the owner's
/// at the same place of the list, so that layers of different types can share as well.
///
/// # Examples
/// ```
/// use brigade_engine::Tie;
///
/// let tie = Tie::new("embedding", ["tokens.weight"]);
/// assert_eq!((tie.key.as_str(), tie.attributes.len()), ("embedding", 1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tie {
    /// What the uses of one parameter have in common.
    pub key: String,
    /// Paths of the shared parameters inside the layer; all of them when empty.
    pub attributes: Vec<String>,
}

impl Tie {
    /// A tie of the parameters at these paths inside the layer, or of all of them when there is none.
    pub fn new<A: Into<String>>(key: impl Into<String>, attributes: impl IntoIterator<Item = A>) -> Self {
        Self { key: key.into(), attributes: attributes.into_iter().map(Into::into).collect() }
    }
}
