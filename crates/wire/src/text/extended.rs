//! The extension of Slapo's text: an entry for every node, so that every tree can be written.

use std::{borrow::Cow, fmt::Write};

use super::{EXTENSION, Entry, entries, position, put};
use crate::{
    error::{DecodeTextError, EncodeTextError},
    leaf::LeafKind,
    limits::Limit,
    metadata::{Metadata, Writer},
    token::{Container, KeyRef, Token},
    validate::validate,
};

/// The digits of a percent escape.
const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Writes any structure.
pub(super) fn encode(metadata: &Metadata) -> Result<String, EncodeTextError> {
    let mut text = String::new();
    let mut path = String::new();
    // For each open container: where its items' part of the path starts, and the position of the next.
    let mut open: Vec<(usize, usize)> = Vec::new();
    let mut keyed = false;
    let mut tokens = metadata.tokens();
    while let Ok(Some(token)) = tokens.next() {
        match token {
            Token::Close => {
                open.pop();
                continue;
            }
            Token::Key(key) => {
                start_item(&mut path, &open);
                put_key(&mut path, key);
                keyed = true;
                continue;
            }
            Token::Leaf(_) | Token::Open(_) => {}
        }
        if text.is_empty() {
            put(&mut text, EXTENSION)?;
        } else {
            if !std::mem::take(&mut keyed) {
                start_item(&mut path, &open);
                let position = open.last().map_or(0, |&(_, next)| next);
                let _infallible = write!(path, "{position}");
            }
            put(&mut text, "|")?;
            put(&mut text, &path)?;
            put(&mut text, ",")?;
        }
        if let Some((_, next)) = open.last_mut() {
            *next += 1;
        }
        put(&mut text, code(token))?;
        if let Token::Open(_) = token {
            open.push((path.len(), 0));
        }
    }
    Ok(text)
}

/// Cuts the path back to the innermost container and adds the dot before the next item.
fn start_item(path: &mut String, open: &[(usize, usize)]) {
    path.truncate(open.last().map_or(0, |&(length, _)| length));
    if open.len() > 1 {
        path.push('.');
    }
}

const fn code(token: Token<'_>) -> &'static str {
    match token {
        Token::Leaf(LeafKind::Tensor) => "0",
        Token::Leaf(LeafKind::Scalar) => "1",
        Token::Leaf(LeafKind::None) => "2",
        Token::Leaf(LeafKind::Str) => "6",
        Token::Leaf(LeafKind::Bytes) => "7",
        Token::Open(Container::List) => "3",
        Token::Open(Container::Tuple) => "4",
        Token::Open(Container::Dict) => "5",
        Token::Close | Token::Key(_) => "",
    }
}

fn put_key(path: &mut String, key: KeyRef<'_>) {
    let _infallible = match key {
        KeyRef::I64(value) => write!(path, "#{value}"),
        KeyRef::U64(value) => write!(path, "+{value}"),
        KeyRef::Str(name) => {
            path.push('$');
            for char in name.chars() {
                match u8::try_from(char) {
                    Ok(byte) if matches!(byte, b'.' | b',' | b'|' | b'%') || byte.is_ascii_control() => {
                        path.push('%');
                        path.push(char::from(HEX[usize::from(byte >> 4)]));
                        path.push(char::from(HEX[usize::from(byte & 15)]));
                    }
                    _ => path.push(char),
                }
            }
            Ok(())
        }
    };
}

/// A container that is being read.
struct Open<'a> {
    path: &'a str,
    container: Container,
    next: usize,
}

/// Reads a text that starts with [`EXTENSION`].
pub(super) fn decode(text: &str) -> Result<Metadata, DecodeTextError> {
    // What an entry spells is at least as long as its tokens, but for an empty container under a key
    // of 128 bytes or more, whose length takes a second byte.
    let mut writer = Writer::with_capacity(text.len() + text.len() / 128 + 2);
    let mut open: Vec<Open<'_>> = Vec::new();
    for entry in entries(text) {
        let Entry { index, path, code } = entry?;
        if index > 0 {
            enter(&mut writer, &mut open, index, path)?;
        }
        let container = match code {
            "0" => Err(LeafKind::Tensor),
            "1" => Err(LeafKind::Scalar),
            "2" => Err(LeafKind::None),
            "3" => Ok(Container::List),
            "4" => Ok(Container::Tuple),
            "5" => Ok(Container::Dict),
            "6" => Err(LeafKind::Str),
            "7" => Err(LeafKind::Bytes),
            _ => return Err(DecodeTextError::Code { index }),
        };
        match container {
            Err(kind) => writer.leaf(kind),
            Ok(container) => {
                Limit::Depth.check(open.len() + 1)?;
                writer.open(container);
                open.push(Open { path: if index == 0 { "" } else { path }, container, next: 0 });
            }
        }
    }
    for _ in open {
        writer.close();
    }
    let metadata = writer.finish();
    validate(metadata.as_bytes())?;
    Ok(metadata)
}

/// Closes containers until the one that `path` is an item of, and checks and writes the item's name.
fn enter<'a>(
    writer: &mut Writer,
    open: &mut Vec<Open<'a>>,
    index: usize,
    path: &'a str,
) -> Result<(), DecodeTextError> {
    let (parent, item) = match path.rsplit_once('.') {
        // Only the top has an empty path, and its items have no dot before them.
        Some(("", _)) => return Err(DecodeTextError::Path { index }),
        Some(parts) => parts,
        None => ("", path),
    };
    // The top is an item of nothing, and its own path is empty like that of no other container.
    while open.last().is_some_and(|container| container.path != parent) {
        open.pop();
        writer.close();
    }
    let container = open.last_mut().ok_or(DecodeTextError::Parent { index })?;
    match container.container {
        Container::List | Container::Tuple => {
            if position(item).ok_or(DecodeTextError::Path { index })? != container.next {
                return Err(DecodeTextError::Order { index });
            }
        }
        Container::Dict => {
            let (sign, rest) = item.split_at_checked(1).ok_or(DecodeTextError::Path { index })?;
            let key = match sign {
                "$" => None,
                "#" => rest.parse().ok().filter(|value: &i64| value.to_string() == rest).map(KeyRef::I64),
                "+" => rest.parse().ok().filter(|value: &u64| value.to_string() == rest).map(KeyRef::U64),
                _ => return Err(DecodeTextError::Path { index }),
            };
            match key {
                Some(key) => writer.key(key),
                None if sign == "$" => {
                    let name = unescape(rest).ok_or(DecodeTextError::Path { index })?;
                    Limit::KeyBytes.check(name.len())?;
                    writer.key(KeyRef::Str(&name));
                }
                None => return Err(DecodeTextError::Path { index }),
            }
        }
    }
    container.next += 1;
    Ok(())
}

/// A name with its percent escapes replaced; `None` when one is broken or the bytes are not UTF-8.
fn unescape(name: &str) -> Option<Cow<'_, str>> {
    if !name.contains('%') {
        return Some(Cow::Borrowed(name));
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let (high, low) = (hex_digit(rest.next()?)?, hex_digit(rest.next()?)?);
            bytes.push(high << 4 | low);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// The value of an upper-case hexadecimal digit.
fn hex_digit(byte: u8) -> Option<u8> {
    HEX.iter().position(|&digit| digit == byte).and_then(|value| u8::try_from(value).ok())
}
