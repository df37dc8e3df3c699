//! Checks bytes that claim to be metadata: whole tokens, balanced, keyed, within the limits.

use crate::{
    dict::Key,
    error::MetadataError,
    limits::Limit,
    metadata::Summary,
    token::{Container, KeyRef, Token, TokenError, Tokens},
};

/// Sums up metadata from anywhere, or says what is wrong with it.
///
/// It allocates a stack of at most [`MAX_DEPTH`](crate::limits::MAX_DEPTH) bytes and, when there are
/// dicts, four bytes a key; a key and its value take at least as many bytes of the input.
pub(crate) fn validate(bytes: &[u8]) -> Result<Summary, MetadataError> {
    Limit::MetadataBytes.check(bytes.len())?;
    let (summary, n_keys) = structure(bytes)?;
    if n_keys > 1 {
        unique_keys(bytes, n_keys)?;
    }
    Ok(summary)
}

/// What a reader is inside of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inside {
    Sequence,
    /// A dict, before a key or its end.
    Dict,
    /// A dict, after a key.
    Value,
}

/// Checks everything but the uniqueness of keys; returns the number of keys too.
fn structure(bytes: &[u8]) -> Result<(Summary, usize), MetadataError> {
    let mut summary = Summary::default();
    let mut n_keys = 0;
    let mut open: Vec<Inside> = Vec::new();
    let mut tokens = Tokens::new(bytes);
    loop {
        let offset = bytes.len() - tokens.remaining();
        let Some(token) = tokens.next().map_err(|error| token_error(error, offset))? else {
            return Err(MetadataError::Truncated);
        };
        match (token, open.last_mut()) {
            (Token::Key(key), Some(inside @ Inside::Dict)) => {
                if let KeyRef::Str(name) = key {
                    Limit::KeyBytes.check(name.len())?;
                    summary.key_bytes_max = summary.key_bytes_max.max(name.len());
                }
                n_keys += 1;
                *inside = Inside::Value;
                continue;
            }
            (Token::Key(_), _) => return Err(MetadataError::StrayKey { offset }),
            (Token::Close, Some(Inside::Sequence | Inside::Dict)) => {
                open.pop();
            }
            (Token::Close, _) => return Err(MetadataError::StrayClose { offset }),
            (Token::Leaf(_) | Token::Open(_), Some(Inside::Dict)) => {
                return Err(MetadataError::MissingKey { offset });
            }
            (Token::Leaf(_), _) => {
                summary.n_leaves += 1;
                summary.n_nodes += 1;
            }
            (Token::Open(container), inside) => {
                if let Some(inside @ Inside::Value) = inside {
                    *inside = Inside::Dict;
                }
                summary.n_nodes += 1;
                open.push(if container == Container::Dict { Inside::Dict } else { Inside::Sequence });
                summary.depth = summary.depth.max(open.len());
                Limit::Depth.check(open.len())?;
                Limit::Nodes.check(summary.n_nodes)?;
                continue;
            }
        }
        Limit::Nodes.check(summary.n_nodes)?;
        // A value is complete: the next of a dict needs its own key, and without a container it was all.
        match open.last_mut() {
            Some(inside @ Inside::Value) => *inside = Inside::Dict,
            Some(_) => {}
            None if tokens.remaining() == 0 => return Ok((summary, n_keys)),
            None => return Err(MetadataError::Trailing { n_bytes: tokens.remaining() }),
        }
    }
}

/// Refuses a dict in which a key stands twice, in n log n comparisons.
fn unique_keys(bytes: &[u8], n_keys: usize) -> Result<(), MetadataError> {
    // Where the keys of all open dicts start, and for each open container where its own begin.
    let mut starts: Vec<u32> = Vec::with_capacity(n_keys);
    let mut open: Vec<usize> = Vec::new();
    let mut tokens = Tokens::new(bytes);
    loop {
        let offset = bytes.len() - tokens.remaining();
        match tokens.next().map_err(|error| token_error(error, offset))? {
            Some(Token::Open(_)) => open.push(starts.len()),
            Some(Token::Key(_)) => starts.push(u32::try_from(offset).unwrap_or(u32::MAX)),
            Some(Token::Close) => {
                let first = open.pop().unwrap_or_default();
                let keys = starts.get_mut(first..).unwrap_or_default();
                keys.sort_unstable_by_key(|&start| key_at(bytes, start));
                let twice = keys
                    .iter()
                    .zip(keys.iter().skip(1))
                    .find(|(a, b)| key_at(bytes, **a) == key_at(bytes, **b));
                if let Some(key) = twice.and_then(|(&start, _)| key_at(bytes, start)) {
                    return Err(MetadataError::DuplicateKey { key: Key::from(key) });
                }
                starts.truncate(first);
            }
            Some(Token::Leaf(_)) => {}
            None => return Ok(()),
        }
    }
}

/// The key whose token starts at `start`.
fn key_at(bytes: &[u8], start: u32) -> Option<KeyRef<'_>> {
    let bytes = bytes.get(usize::try_from(start).ok()?..)?;
    match Tokens::new(bytes).next() {
        Ok(Some(Token::Key(key))) => Some(key),
        _ => None,
    }
}

const fn token_error(error: TokenError, offset: usize) -> MetadataError {
    match error {
        TokenError::Unknown(code) => MetadataError::UnknownToken { offset, code },
        TokenError::Truncated => MetadataError::Truncated,
        TokenError::Varint => MetadataError::Varint { offset },
        TokenError::Utf8 => MetadataError::Utf8 { offset },
    }
}
