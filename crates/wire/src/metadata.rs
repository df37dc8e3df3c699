//! The structure of a tree without its leaves, stored as the bytes that travel.

use crate::{
    dict::Key,
    leaf::LeafKind,
    limits::{Limit, LimitError},
    token::{CLOSE, Container, KeyRef, Token, Tokens, put_key},
};

/// The structure of a tree: which containers, with which keys, around which kinds of leaves.
///
/// Two trees have equal metadata exactly when they differ in their leaves' values alone. Beside it
/// travel the leaves, in the order from left to right: [`len`](Self::len) of them. That is Slapo's
/// rule `len(metadata) == len(leaves)`, and it holds for every tree: None and scalars are leaves,
/// containers are not, so empty containers add to the metadata and not to its length.
///
/// # Examples
/// ```
/// use brigade_wire::{Leaf, Tree, flatten, unflatten};
///
/// let tree: Tree<&str> = (Tree::Tensor("h"), Vec::<bool>::new(), None::<bool>, 0.1).into();
/// let (metadata, leaves) = flatten(tree.clone());
/// assert_eq!(metadata.len(), 3);
/// assert_eq!(leaves, [Leaf::Tensor("h"), Leaf::None, Leaf::F64(0.1)]);
/// assert_eq!(unflatten(&metadata, leaves), Ok(tree));
/// ```
#[derive(Clone)]
pub struct Metadata {
    tokens: Vec<u8>,
    summary: Summary,
}

/// What the limits are checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Summary {
    pub(crate) n_leaves: usize,
    pub(crate) n_nodes: usize,
    pub(crate) depth: usize,
    pub(crate) key_bytes_max: usize,
}

impl Metadata {
    /// Number of leaves that travel beside this metadata.
    #[must_use]
    #[doc(alias = "n_leaves")]
    pub const fn len(&self) -> usize {
        self.summary.n_leaves
    }

    /// Whether the tree has no leaves; it may still have (empty) containers.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.summary.n_leaves == 0
    }

    /// Number of leaves and containers.
    #[must_use]
    pub const fn n_nodes(&self) -> usize {
        self.summary.n_nodes
    }

    /// The largest number of containers around a leaf or inside one another.
    #[must_use]
    pub const fn depth(&self) -> usize {
        self.summary.depth
    }

    /// The kinds of the leaves, in their order.
    pub fn leaf_kinds(&self) -> impl Iterator<Item = LeafKind> + '_ {
        let mut tokens = self.tokens();
        std::iter::from_fn(move || {
            loop {
                match tokens.next() {
                    Ok(Some(Token::Leaf(kind))) => return Some(kind),
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return None,
                }
            }
        })
    }

    /// The path of leaf `index` by positions, as Slapo writes it (`1.0.2`); empty for a tree that is
    /// one leaf. `None` when there is no such leaf.
    #[must_use]
    pub fn leaf_path(&self, index: usize) -> Option<String> {
        let mut tokens = self.tokens();
        let mut path: Vec<usize> = Vec::new();
        let mut leaf = 0;
        while let Ok(Some(token)) = tokens.next() {
            match token {
                Token::Leaf(_) if leaf == index => {
                    return Some(path.iter().map(usize::to_string).collect::<Vec<_>>().join("."));
                }
                Token::Leaf(_) => {
                    leaf += 1;
                    step(&mut path);
                }
                Token::Open(_) => path.push(0),
                Token::Close => {
                    path.pop();
                    step(&mut path);
                }
                Token::Key(_) => {}
            }
        }
        None
    }

    /// Metadata from bytes that [`validate`](crate::validate::validate) passed with this summary.
    pub(crate) const fn from_validated(tokens: Vec<u8>, summary: Summary) -> Self {
        Self { tokens, summary }
    }

    /// Passes a tree that every decoder accepts.
    pub(crate) fn check_limits(&self) -> Result<(), LimitError> {
        Limit::Depth.check(self.summary.depth)?;
        Limit::Nodes.check(self.summary.n_nodes)?;
        Limit::KeyBytes.check(self.summary.key_bytes_max)?;
        Limit::MetadataBytes.check(self.tokens.len())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.tokens
    }

    pub(crate) fn tokens(&self) -> Tokens<'_> {
        Tokens::new(&self.tokens)
    }
}

/// Moves the last position of a path to the next sibling.
fn step(path: &mut [usize]) {
    if let Some(last) = path.last_mut() {
        *last += 1;
    }
}

impl std::fmt::Debug for Metadata {
    /// The structure with the kind of each leaf in its place: `(tensor, {a: scalar}, [])`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut tokens = self.tokens();
        let mut first = true;
        let mut closing = Vec::new();
        let mut after_key = false;
        while let Ok(Some(token)) = tokens.next() {
            if !first && !after_key && token != Token::Close {
                f.write_str(", ")?;
            }
            after_key = false;
            match token {
                Token::Leaf(kind) => write!(f, "{kind}")?,
                Token::Open(container) => {
                    let (open, close) = match container {
                        Container::List => ("[", "]"),
                        Container::Tuple => ("(", ")"),
                        Container::Dict => ("{", "}"),
                    };
                    closing.push(close);
                    f.write_str(open)?;
                }
                Token::Close => f.write_str(closing.pop().unwrap_or_default())?,
                Token::Key(key) => {
                    write!(f, "{}: ", Key::from(key))?;
                    after_key = true;
                }
            }
            first = matches!(token, Token::Open(_));
        }
        Ok(())
    }
}

impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.tokens == other.tokens
    }
}

impl Eq for Metadata {}

impl std::hash::Hash for Metadata {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.tokens.hash(state);
    }
}

/// Writes metadata from left to right and keeps the sums.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    tokens: Vec<u8>,
    summary: Summary,
    depth: usize,
}

impl Writer {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { tokens: Vec::with_capacity(bytes), ..Self::default() }
    }

    pub(crate) fn leaf(&mut self, kind: LeafKind) {
        self.tokens.push(kind.token());
        self.summary.n_leaves += 1;
        self.summary.n_nodes += 1;
    }

    pub(crate) fn open(&mut self, container: Container) {
        self.tokens.push(container.token());
        self.summary.n_nodes += 1;
        self.depth += 1;
        self.summary.depth = self.summary.depth.max(self.depth);
    }

    pub(crate) fn key(&mut self, key: KeyRef<'_>) {
        put_key(&mut self.tokens, key);
        if let KeyRef::Str(name) = key {
            self.summary.key_bytes_max = self.summary.key_bytes_max.max(name.len());
        }
    }

    pub(crate) fn close(&mut self) {
        self.tokens.push(CLOSE);
        self.depth -= 1;
    }

    pub(crate) fn finish(self) -> Metadata {
        Metadata { tokens: self.tokens, summary: self.summary }
    }
}
