//! The bytes of which metadata consists: one token a leaf, two a container, one more a dict key.
//!
//! A tree is written from left to right. The first five codes are Slapo's type codes.
//!
//! | byte | token | followed by |
//! | --- | --- | --- |
//! | 0 | tensor leaf | |
//! | 1 | scalar leaf | |
//! | 2 | None leaf | |
//! | 3 | list opens | its items, 8 |
//! | 4 | tuple opens | its items, 8 |
//! | 5 | dict opens | a key token and a value for each entry, 8 |
//! | 6 | string leaf | |
//! | 7 | bytes leaf | |
//! | 8 | container closes | |
//! | 9 | string key | length (varint), UTF-8 |
//! | 10 | signed key | zigzag varint |
//! | 11 | unsigned key | varint |
//!
//! A varint is LEB128 in its shortest form, so that equal metadata has equal bytes.

use crate::{dict::Key, leaf::LeafKind};

/// A kind of container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Container {
    /// A list.
    List,
    /// A tuple.
    Tuple,
    /// An ordered dict.
    Dict,
}

pub(crate) const CLOSE: u8 = 8;
const KEY_STR: u8 = 9;
const KEY_I64: u8 = 10;
const KEY_U64: u8 = 11;

/// Bytes of the longest varint.
const VARINT_MAX: usize = 10;

impl LeafKind {
    pub(crate) const fn token(self) -> u8 {
        match self {
            Self::Tensor => 0,
            Self::Scalar => 1,
            Self::None => 2,
            Self::Str => 6,
            Self::Bytes => 7,
        }
    }
}

impl Container {
    pub(crate) const fn token(self) -> u8 {
        match self {
            Self::List => 3,
            Self::Tuple => 4,
            Self::Dict => 5,
        }
    }
}

/// A dict key in the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeyRef<'a> {
    Str(&'a str),
    I64(i64),
    U64(u64),
}

impl From<KeyRef<'_>> for Key {
    fn from(key: KeyRef<'_>) -> Self {
        match key {
            KeyRef::Str(name) => Self::Str(name.to_owned()),
            KeyRef::I64(value) => Self::I64(value),
            KeyRef::U64(value) => Self::U64(value),
        }
    }
}

impl<'a> From<&'a Key> for KeyRef<'a> {
    fn from(key: &'a Key) -> Self {
        match key {
            Key::Str(name) => Self::Str(name),
            Key::I64(value) => Self::I64(*value),
            Key::U64(value) => Self::U64(*value),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    Leaf(LeafKind),
    Open(Container),
    Close,
    Key(KeyRef<'a>),
}

/// Why bytes are no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenError {
    Unknown(u8),
    Truncated,
    Varint,
    Utf8,
}

/// Reads tokens one after the other; at the end, or after an error, `rest` tells where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Tokens<'a> {
    rest: &'a [u8],
}

impl<'a> Tokens<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes that are not read yet.
    pub(crate) const fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next token, or `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Token<'a>>, TokenError> {
        let Some((&code, rest)) = self.rest.split_first() else { return Ok(None) };
        self.rest = rest;
        Ok(Some(match code {
            0 => Token::Leaf(LeafKind::Tensor),
            1 => Token::Leaf(LeafKind::Scalar),
            2 => Token::Leaf(LeafKind::None),
            3 => Token::Open(Container::List),
            4 => Token::Open(Container::Tuple),
            5 => Token::Open(Container::Dict),
            6 => Token::Leaf(LeafKind::Str),
            7 => Token::Leaf(LeafKind::Bytes),
            CLOSE => Token::Close,
            KEY_STR => {
                let length = self.varint()?;
                let (name, rest) = usize::try_from(length)
                    .ok()
                    .and_then(|length| self.rest.split_at_checked(length))
                    .ok_or(TokenError::Truncated)?;
                self.rest = rest;
                Token::Key(KeyRef::Str(std::str::from_utf8(name).map_err(|_| TokenError::Utf8)?))
            }
            KEY_I64 => Token::Key(KeyRef::I64(unzigzag(self.varint()?))),
            KEY_U64 => Token::Key(KeyRef::U64(self.varint()?)),
            unknown => return Err(TokenError::Unknown(unknown)),
        }))
    }

    fn varint(&mut self) -> Result<u64, TokenError> {
        let mut value = 0_u64;
        for index in 0..VARINT_MAX {
            let (&byte, rest) = self.rest.split_first().ok_or(TokenError::Truncated)?;
            self.rest = rest;
            let bits = u64::from(byte & 0x7f);
            let shift = 7 * index;
            if (bits << shift) >> shift != bits {
                return Err(TokenError::Varint);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                // A last byte of zero says nothing: the shorter form is the only one.
                return if byte == 0 && index > 0 { Err(TokenError::Varint) } else { Ok(value) };
            }
        }
        Err(TokenError::Varint)
    }
}

pub(crate) fn put_key(tokens: &mut Vec<u8>, key: KeyRef<'_>) {
    match key {
        KeyRef::Str(name) => {
            tokens.push(KEY_STR);
            // `usize` is at most 64 bits wide on every platform that Rust knows.
            put_varint(tokens, u64::try_from(name.len()).unwrap_or(u64::MAX));
            tokens.extend_from_slice(name.as_bytes());
        }
        KeyRef::I64(value) => {
            tokens.push(KEY_I64);
            put_varint(tokens, zigzag(value));
        }
        KeyRef::U64(value) => {
            tokens.push(KEY_U64);
            put_varint(tokens, value);
        }
    }
}

fn put_varint(tokens: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            tokens.push(low & 0x7f);
            return;
        }
        tokens.push(low | 0x80);
    }
}

/// Small absolute values become small numbers: 0, -1, 1, -2 give 0, 1, 2, 3.
const fn zigzag(value: i64) -> u64 {
    (value.cast_unsigned() << 1) ^ (value >> 63).cast_unsigned()
}

const fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_and_zigzag_are_exact_at_every_width() {
        for shift in 0..64_u32 {
            for value in [1_u64 << shift, (1_u64 << shift) - 1, u64::MAX >> shift] {
                let mut bytes = Vec::new();
                put_key(&mut bytes, KeyRef::U64(value));
                put_key(&mut bytes, KeyRef::I64(value.cast_signed()));
                let mut tokens = Tokens::new(&bytes);
                assert_eq!(tokens.next(), Ok(Some(Token::Key(KeyRef::U64(value)))));
                assert_eq!(tokens.next(), Ok(Some(Token::Key(KeyRef::I64(value.cast_signed())))));
                assert_eq!(tokens.next(), Ok(None));
            }
        }
    }

    #[test]
    fn a_varint_has_one_form() {
        for bytes in [
            &[KEY_U64, 0x80, 0x00][..],
            &[KEY_U64, 0xff, 0x80, 0x00],
            &[KEY_U64, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
            &[KEY_U64, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x81, 0x00],
        ] {
            assert_eq!(Tokens::new(bytes).next(), Err(TokenError::Varint), "{bytes:?}");
        }
        assert_eq!(Tokens::new(&[KEY_U64, 0x80]).next(), Err(TokenError::Truncated));
    }
}
