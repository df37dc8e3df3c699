//! Named bounds on everything that a peer can make this crate read, allocate or descend into.

/// Containers that may stand around a leaf; a bare leaf has depth 0, `(x,)` depth 1.
///
/// Encoders refuse deeper trees and decoders refuse deeper input. [`flatten`](crate::flatten) and
/// [`unflatten`](crate::unflatten) work without recursion and have no limit of their own.
pub const MAX_DEPTH: usize = 128;

/// Nodes (leaves and containers) of one tree.
pub const MAX_NODES: usize = 1 << 16;

/// Bytes of one string key of a dict.
pub const MAX_KEY_BYTES: usize = 4096;
