//! The text: read, folded into a small vocabulary, split into a part to learn and a part held back.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::error::UsageError;

/// The largest text: it is held in memory, a few bytes a character.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Enough of the workspace's own files.
const WORKSPACE_BYTES_MAX: usize = 16 << 20;
/// Symbols of the vocabulary: those that occur most, and one for all others.
const SYMBOLS_MAX: usize = 100;
/// Micro-batches of an evaluation, spread evenly over the text held back.
pub(crate) const EVAL_BATCHES: u32 = 8;

const OTHER: char = char::REPLACEMENT_CHARACTER;

/// Token ids of some rows, and the ids one character further on.
pub(crate) type Pair = (Tensor<2, Int>, Tensor<2, Int>);

/// A text as numbers.
pub(crate) struct Corpus {
    source: String,
    symbols: Vec<char>,
    train: Vec<u8>,
    held_back: Vec<u8>,
    seq: usize,
}

/// What a stream of random numbers is for; equal keys give equal numbers on every rank.
#[derive(Clone, Copy)]
pub(crate) enum Draw {
    MicroBatch { step: u32, micro_batch: u32 },
    Sample,
}

impl Corpus {
    /// Reads a file, or the workspace's own sources and documents.
    ///
    /// # Errors
    /// [`UsageError`] for a text that cannot be read, is not UTF-8, is too long or too short.
    pub(crate) fn load(path: Option<&Path>, seq: u32) -> Result<Self, UsageError> {
        let (path, text, source) = if let Some(path) = path {
            (path.to_owned(), read_text(path)?, path.display().to_string())
        } else {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
            let (text, n_files) = read_workspace(&root)?;
            (root, text, format!("{n_files} sources and documents of this workspace"))
        };
        let symbols = symbols(&text);
        let ids = encode(&symbols, &text);
        let context = usize::try_from(seq).unwrap_or(usize::MAX);
        let n_held_back = ids.len() / 10;
        // Both parts hold one sequence and the character after it.
        if n_held_back <= context {
            let needed = context.saturating_add(1).saturating_mul(10);
            return Err(UsageError::TextTooShort { path, found: ids.len(), needed, seq });
        }
        let (train, held_back) = ids.split_at(ids.len() - n_held_back);
        Ok(Self { source, symbols, train: train.to_vec(), held_back: held_back.to_vec(), seq: context })
    }

    /// Size of the vocabulary.
    pub(crate) fn n_symbols(&self) -> usize {
        self.symbols.len()
    }

    /// Where the text is from, for people.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Characters to learn, and characters held back.
    pub(crate) fn n_characters(&self) -> (usize, usize) {
        (self.train.len(), self.held_back.len())
    }

    /// One micro-batch to learn from, the same on every rank that asks for it.
    pub(crate) fn training_pair(&self, seed: u64, step: u32, micro_batch: u32, n_rows: u32) -> Pair {
        let mut rng = keyed(seed, Draw::MicroBatch { step, micro_batch });
        let last = self.train.len().saturating_sub(self.seq.saturating_add(1));
        let starts = (0..n_rows).map(|_| rng.random_range(0..=last));
        self.pair(&self.train, starts)
    }

    /// One micro-batch of an evaluation; all of them together are spread over the text held back.
    pub(crate) fn evaluation_pair(&self, micro_batch: u32, n_rows: u32) -> Pair {
        let last = self.held_back.len().saturating_sub(self.seq.saturating_add(1));
        let n_all = u64::from(EVAL_BATCHES) * u64::from(n_rows);
        let first = u64::from(micro_batch) * u64::from(n_rows);
        let starts = (0..u64::from(n_rows)).map(|row| {
            let place = u128::from(first + row) * u128::try_from(last).unwrap_or(0);
            usize::try_from(place / u128::from(n_all.saturating_sub(1).max(1))).unwrap_or(0).min(last)
        });
        self.pair(&self.held_back, starts)
    }

    /// The ids of a text.
    pub(crate) fn encode(&self, text: &str) -> Vec<u8> {
        encode(&self.symbols, text)
    }

    /// The character of an id; control characters, which a terminal might obey, become the symbol for
    /// all others.
    pub(crate) fn character(&self, id: u8) -> char {
        let symbol = self.symbols.get(usize::from(id)).copied().unwrap_or(OTHER);
        if symbol.is_control() && symbol != '\n' && symbol != '\t' { OTHER } else { symbol }
    }

    fn pair(&self, ids: &[u8], starts: impl Iterator<Item = usize>) -> Pair {
        let (mut inputs, mut targets, mut n_rows) = (Vec::new(), Vec::new(), 0);
        for start in starts {
            let row = &ids[start..=start + self.seq];
            inputs.extend_from_slice(&row[..self.seq]);
            targets.extend_from_slice(&row[1..]);
            n_rows += 1;
        }
        (to_tensor(&inputs, [n_rows, self.seq]), to_tensor(&targets, [n_rows, self.seq]))
    }
}

impl fmt::Display for Corpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n_train, n_held_back) = self.n_characters();
        write!(
            f,
            "text: {}, {n_train} characters to learn, {n_held_back} held back, {} symbols",
            self.source,
            self.n_symbols()
        )
    }
}

/// Token ids as a tensor of the given rows and columns.
pub(crate) fn to_tensor(ids: &[u8], shape: [usize; 2]) -> Tensor<2, Int> {
    let ids: Vec<i64> = ids.iter().map(|&id| i64::from(id)).collect();
    Tensor::from_data(TensorData::new(ids, shape), &Device::flex())
}

/// A random generator whose whole state comes from what it is for.
pub(crate) fn keyed(seed: u64, draw: Draw) -> StdRng {
    let (purpose, step, micro_batch) = match draw {
        Draw::MicroBatch { step, micro_batch } => (0, step, micro_batch),
        Draw::Sample => (1, 0, 0),
    };
    let words = [seed, purpose, u64::from(step), u64::from(micro_batch)];
    let mut key = [0; 32];
    for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    StdRng::from_seed(key)
}

/// The characters that occur most, in code order, and the symbol for all others.
fn symbols(text: &str) -> Vec<char> {
    let mut counts = BTreeMap::<char, u64>::new();
    for character in text.chars().filter(|&c| c != OTHER) {
        *counts.entry(character).or_default() += 1;
    }
    let mut by_count: Vec<(char, u64)> = counts.into_iter().collect();
    // Stable: of those that occur equally often, the lower codes come first.
    by_count.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    by_count.truncate(SYMBOLS_MAX - 1);
    let mut symbols: Vec<char> = by_count.into_iter().map(|(character, _)| character).collect();
    symbols.sort_unstable();
    symbols.push(OTHER);
    symbols
}

fn encode(symbols: &[char], text: &str) -> Vec<u8> {
    let known = &symbols[..symbols.len().saturating_sub(1)];
    let id = |c: char| u8::try_from(known.binary_search(&c).unwrap_or(known.len())).unwrap_or(u8::MAX);
    text.chars().map(id).collect()
}

fn read_text(path: &Path) -> Result<String, UsageError> {
    let unreadable = |source| UsageError::TextUnreadable { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    // Not by the file's length: a pipe or a device has none.
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if u64::try_from(bytes.len()).is_ok_and(|n| n > FILE_BYTES_MAX) {
        return Err(UsageError::TextTooLong { path: path.to_owned(), bytes_max: FILE_BYTES_MAX });
    }
    String::from_utf8(bytes).map_err(|error| UsageError::TextEncoding {
        path: path.to_owned(),
        at: error.utf8_error().valid_up_to(),
    })
}

/// All Rust and Markdown files below `root` in the order of their paths, and how many there are.
fn read_workspace(root: &Path) -> Result<(String, usize), UsageError> {
    let unreadable = |path: &Path, source| UsageError::TextUnreadable { path: path.to_owned(), source };
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        list(&folder, &mut files, &mut folders).map_err(|source| unreadable(&folder, source))?;
    }
    files.sort();
    let (mut text, mut n_files) = (String::new(), 0);
    for file in files {
        if text.len() >= WORKSPACE_BYTES_MAX {
            break;
        }
        text.push_str(&read_text(&file)?);
        text.push('\n');
        n_files += 1;
    }
    Ok((text, n_files))
}

/// Sorts the entries of a folder into files to read and folders to look into; links are left alone.
fn list(folder: &Path, files: &mut Vec<PathBuf>, folders: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let name = entry.file_name();
        let hidden = name.to_string_lossy().starts_with('.');
        if kind.is_dir() && !hidden && name != "target" && name != "testdata" {
            folders.push(path);
        } else if kind.is_file() && path.extension().is_some_and(|e| e == "rs" || e == "md") {
            files.push(path);
        }
    }
    Ok(())
}
