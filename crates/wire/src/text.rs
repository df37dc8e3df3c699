//! The text form of metadata: Slapo's where Slapo loses nothing, an extension of it elsewhere.
//!
//! # Slapo's form
//! `path,code|path,code|…`, one entry a leaf from left to right. A path is the positions from the
//! top, joined by dots; the code is 0 for a tensor, 1 for a scalar, 2 for None. The top is a tuple,
//! and so is every container; a position that is skipped is an empty tuple:
//!
//! | tree | text |
//! | --- | --- |
//! | `(t, (t, None))` | `0,0\|1.0,0\|1.1,2` |
//! | `(1, (), 2)` | `0,1\|2,1` |
//!
//! Slapo defines codes 3 (list) and 4 (tuple) for a sequence packed into one tensor and never sends
//! them; its text is refused with them, since the structure then stands in the tensor's values.
//!
//! # Extension, version 1
//! The same grammar with an entry for every node, containers before their items. The first entry is
//! the top; its path is the word `v1`, which Slapo itself refuses. Codes 3 and 4 are a list and a
//! tuple, 5 a dict, 6 a string, 7 bytes. In a path, an item of a list or tuple is its position, an
//! entry of a dict its key: `$name`, `#-5` (signed) or `+5` (unsigned). In a name, the bytes
//! `. , | %` and control characters are `%XX`.
//!
//! | tree | text |
//! | --- | --- |
//! | `t` | `v1,0` |
//! | `()` | `v1,4` |
//! | `[t, (1,)]` | `v1,3\|0,0\|1,4\|1.0,1` |
//! | `{"a.b": t, 5: []}` | `v1,5\|$a%2Eb,0\|#5,3` |

mod extended;
mod slapo;

use crate::{
    error::{DecodeTextError, EncodeTextError},
    limits::Limit,
    metadata::Metadata,
};

/// Which texts may be written and read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Dialect {
    /// Slapo's form where it is lossless, the extension elsewhere: every tree can be written.
    #[default]
    Extended,
    /// Slapo's form only; what it would lose is an error.
    Slapo,
}

/// What opens a text of the extension.
const EXTENSION: &str = "v1,";

/// Writes metadata as text: byte for byte what Slapo sends wherever Slapo gets the same structure back.
///
/// # Errors
/// [`EncodeTextError::Inexpressible`] in [`Dialect::Slapo`] for a tree whose structure Slapo changes
/// or refuses; [`EncodeTextError::Limit`] for a tree or a text beyond [`limits`](crate::limits).
///
/// # Source
/// Slapo, `framework_dialect/deepspeed/pipeline.py`, `encode_metadata`; the extension is own.
///
/// # Examples
/// ```
/// use brigade_wire::{Dialect, Tree, encode_metadata, flatten};
///
/// let (metadata, _) = flatten(Tree::from((Tree::Tensor(()), (1.5, None::<bool>))));
/// assert_eq!(encode_metadata(&metadata, Dialect::Slapo)?, "0,0|1.0,1|1.1,2");
///
/// let (metadata, _) = flatten(Tree::from((Tree::Tensor(()), [1.5])));
/// assert_eq!(encode_metadata(&metadata, Dialect::Extended)?, "v1,4|0,0|1,3|1.0,1");
/// let error = encode_metadata(&metadata, Dialect::Slapo).unwrap_err();
/// assert_eq!(error.to_string(), "Slapo's text cannot express the list at `1`; use Dialect::Extended");
/// # Ok::<(), brigade_wire::EncodeTextError>(())
/// ```
pub fn encode_metadata(metadata: &Metadata, dialect: Dialect) -> Result<String, EncodeTextError> {
    metadata.check_limits()?;
    match (slapo::why_inexpressible(metadata), dialect) {
        (None, _) => slapo::encode(metadata),
        (Some(_), Dialect::Extended) => extended::encode(metadata),
        (Some(reason), Dialect::Slapo) => Err(reason),
    }
}

/// Reads metadata from text of either form.
///
/// # Errors
/// [`DecodeTextError`] names the entry that is wrong; [`DecodeTextError::Extension`] refuses the
/// extension in [`Dialect::Slapo`]. Whatever the text, no allocation is larger than the text plus a
/// few kilobytes.
///
/// # Source
/// Slapo, `framework_dialect/deepspeed/pipeline.py`, `decode_metadata` and the paths of `unflatten`,
/// which take paths in any order and let the last of two equal ones win; its `flatten` sends neither,
/// and both are refused here.
///
/// # Examples
/// ```
/// use brigade_wire::{Dialect, Leaf, Tree, decode_metadata, unflatten};
///
/// let metadata = decode_metadata("0,0|2.1,1", Dialect::Slapo)?;
/// let tree = unflatten(&metadata, vec![Leaf::Tensor("t"), Leaf::I64(3)]).unwrap();
/// assert_eq!(tree.to_string(), "(t, (), ((), 3))");
/// # Ok::<(), brigade_wire::DecodeTextError>(())
/// ```
pub fn decode_metadata(text: &str, dialect: Dialect) -> Result<Metadata, DecodeTextError> {
    Limit::TextBytes.check(text.len())?;
    match (text.starts_with(EXTENSION), dialect) {
        (false, _) => slapo::decode(text),
        (true, Dialect::Extended) => extended::decode(text),
        (true, Dialect::Slapo) => Err(DecodeTextError::Extension),
    }
}

/// One `path,code` of a text.
#[derive(Debug, Clone, Copy)]
struct Entry<'a> {
    index: usize,
    path: &'a str,
    code: &'a str,
}

/// Splits a text into its entries.
fn entries(text: &str) -> impl Iterator<Item = Result<Entry<'_>, DecodeTextError>> {
    text.split('|').enumerate().map(|(index, entry)| match entry.split_once(',') {
        Some((path, code)) if !code.contains(',') => Ok(Entry { index, path, code }),
        _ => Err(DecodeTextError::Entry { index }),
    })
}

/// A position in its only spelling: digits without a leading zero.
fn position(token: &str) -> Option<usize> {
    let canonical =
        token.bytes().all(|byte| byte.is_ascii_digit()) && (token == "0" || !token.starts_with('0'));
    if canonical { token.parse().ok() } else { None }
}

/// Adds to a text up to its limit.
fn put(text: &mut String, piece: &str) -> Result<(), EncodeTextError> {
    Limit::TextBytes.check(text.len().saturating_add(piece.len()))?;
    text.push_str(piece);
    Ok(())
}
