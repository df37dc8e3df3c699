//! Slapo's own text form, read and written byte for byte.

use super::{Entry, entries, position, put};
use crate::{
    error::{DecodeTextError, EncodeTextError, Inexpressible},
    leaf::LeafKind,
    limits::{Limit, MAX_IMPLIED},
    metadata::{Metadata, Writer},
    token::{Container, Token},
    validate::validate,
};

/// A tuple that is being read.
#[derive(Debug, Default)]
struct Tuple {
    n_items: usize,
    /// Whether the last item holds a leaf: Slapo forgets a last item without one.
    last_has_leaf: bool,
}

impl Tuple {
    const fn add(&mut self, has_leaf: bool) {
        self.n_items += 1;
        self.last_has_leaf = has_leaf;
    }
}

/// What in a structure does not survive Slapo's `unflatten(flatten(x))`; `None` when all of it does.
pub(super) fn why_inexpressible(metadata: &Metadata) -> Option<EncodeTextError> {
    let mut tokens = metadata.tokens();
    let mut open: Vec<Tuple> = Vec::new();
    let mut n_implied = 0;
    while let Ok(Some(token)) = tokens.next() {
        let reason = match (token, open.last_mut()) {
            (Token::Leaf(_), None) => Some(Inexpressible::BareLeaf),
            (Token::Leaf(LeafKind::Str), _) => Some(Inexpressible::Str),
            (Token::Leaf(LeafKind::Bytes), _) => Some(Inexpressible::Bytes),
            (Token::Leaf(_), Some(tuple)) => {
                tuple.add(true);
                None
            }
            (Token::Open(Container::List), _) => Some(Inexpressible::List),
            (Token::Open(Container::Dict), _) => Some(Inexpressible::Dict),
            (Token::Open(Container::Tuple), _) => {
                open.push(Tuple::default());
                None
            }
            (Token::Key(_), _) => None,
            (Token::Close, _) => {
                let closed = open.pop()?;
                let reason = if closed.n_items > 0 && !closed.last_has_leaf {
                    // The path of this error is that of the lost item.
                    open.push(Tuple { n_items: closed.n_items - 1, last_has_leaf: false });
                    Some(Inexpressible::LastEmpty)
                } else if closed.n_items == 0 && open.is_empty() {
                    Some(Inexpressible::EmptyTop)
                } else {
                    n_implied += usize::from(closed.n_items == 0);
                    (n_implied > MAX_IMPLIED).then_some(Inexpressible::TooManyEmpty)
                };
                if let (None, Some(parent)) = (reason, open.last_mut()) {
                    parent.add(closed.n_items > 0);
                }
                reason
            }
        };
        if let Some(reason) = reason {
            let path: Vec<_> = open.iter().map(|tuple| tuple.n_items.to_string()).collect();
            return Some(EncodeTextError::Inexpressible { path: path.join("."), reason });
        }
    }
    None
}

/// Writes a structure that [`why_inexpressible`] passed.
pub(super) fn encode(metadata: &Metadata) -> Result<String, EncodeTextError> {
    let mut text = String::new();
    // The path of the next item, and for each container where its own part starts.
    let mut positions: Vec<usize> = Vec::new();
    let mut tokens = metadata.tokens();
    while let Ok(Some(token)) = tokens.next() {
        match token {
            Token::Open(_) => positions.push(0),
            Token::Close => {
                positions.pop();
                next(&mut positions);
            }
            Token::Leaf(kind) => {
                if !text.is_empty() {
                    put(&mut text, "|")?;
                }
                for (depth, position) in positions.iter().enumerate() {
                    if depth > 0 {
                        put(&mut text, ".")?;
                    }
                    put(&mut text, &position.to_string())?;
                }
                put(
                    &mut text,
                    match kind {
                        LeafKind::Tensor => ",0",
                        LeafKind::Scalar => ",1",
                        _ => ",2",
                    },
                )?;
                next(&mut positions);
            }
            Token::Key(_) => {}
        }
    }
    Ok(text)
}

fn next(positions: &mut [usize]) {
    if let Some(last) = positions.last_mut() {
        *last += 1;
    }
}

/// Reads Slapo's form.
pub(super) fn decode(text: &str) -> Result<Metadata, DecodeTextError> {
    // A leaf takes one byte and a container two; a path has two bytes for each container, and the
    // implied ones are bounded.
    let mut builder = Builder { writer: Writer::with_capacity(text.len() + 2), next: vec![0], n_implied: 0 };
    builder.writer.open(Container::Tuple);
    if !text.is_empty() {
        for entry in entries(text) {
            builder.entry(entry?)?;
        }
    }
    for _ in 0..builder.next.len() {
        builder.writer.close();
    }
    let metadata = builder.writer.finish();
    validate(metadata.as_bytes())?;
    Ok(metadata)
}

struct Builder {
    writer: Writer,
    /// For each open tuple, from the top on, the position of its next item.
    next: Vec<usize>,
    n_implied: usize,
}

impl Builder {
    fn entry(&mut self, entry: Entry<'_>) -> Result<(), DecodeTextError> {
        let Entry { index, path, code } = entry;
        let kind = match code {
            "0" => LeafKind::Tensor,
            "1" => LeafKind::Scalar,
            "2" => LeafKind::None,
            "3" | "4" => return Err(DecodeTextError::Packed { index }),
            _ => return Err(DecodeTextError::Code { index }),
        };
        let mut at = path.split('.');
        let mut item = at.next().and_then(position).ok_or(DecodeTextError::Path { index })?;
        let mut depth = 0;
        let mut inner = at.next();
        // Stay in the open tuples that this path goes through.
        while let (Some(token), true) = (inner, self.is_open(depth, item)) {
            item = position(token).ok_or(DecodeTextError::Path { index })?;
            inner = at.next();
            depth += 1;
        }
        while self.next.len() > depth + 1 {
            self.next.pop();
            self.writer.close();
        }
        self.skip_to(item, index)?;
        while let Some(token) = inner {
            item = position(token).ok_or(DecodeTextError::Path { index })?;
            Limit::Depth.check(self.next.len() + 1)?;
            self.writer.open(Container::Tuple);
            self.next.push(0);
            self.skip_to(item, index)?;
            inner = at.next();
        }
        self.writer.leaf(kind);
        Ok(())
    }

    /// Whether the item of the tuple at `depth` is the tuple that is open there.
    fn is_open(&self, depth: usize, item: usize) -> bool {
        depth + 1 < self.next.len() && self.next.get(depth).is_some_and(|&next| next == item + 1)
    }

    /// Writes empty tuples up to `item` of the innermost tuple and counts `item` itself.
    fn skip_to(&mut self, item: usize, index: usize) -> Result<(), DecodeTextError> {
        let Some(next) = self.next.last_mut() else { return Ok(()) };
        let gap = item.checked_sub(*next).ok_or(DecodeTextError::Order { index })?;
        self.n_implied = self.n_implied.saturating_add(gap);
        Limit::Implied.check(self.n_implied)?;
        *next = item + 1;
        for _ in 0..gap {
            self.writer.open(Container::Tuple);
            self.writer.close();
        }
        Ok(())
    }
}
