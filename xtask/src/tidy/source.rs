//! The files that the rules look at, and Rust sources as flat lists of tokens.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Violation;

/// Folders that hold no source: build output, fuzz findings, runs.
const SKIPPED: [&str; 5] = ["target", "runs", "corpus", "artifacts", "coverage"];
/// Hidden entries that belong to the project.
const HIDDEN: [&str; 3] = [".cargo", ".ci", ".github"];
/// Endings of the files whose text the rules read.
const TEXT: [&str; 6] = ["rs", "md", "toml", "yml", "yaml", "sh"];

/// The project's files: all paths, and the text of those that rules read.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    files: BTreeMap<String, Option<String>>,
}

impl Tree {
    /// Walks the tree below `root`; links are not followed.
    ///
    /// # Errors
    /// When a folder or a text file cannot be read.
    pub fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        tree.walk(root, "")?;
        Ok(tree)
    }

    /// A tree of given files, for trying a rule.
    #[must_use]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let file = |&(path, text): &(&str, &str)| (path.to_owned(), Some(text.to_owned()));
        Self { files: files.iter().map(file).collect() }
    }

    /// All paths relative to the root, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Text files with their text.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// The text of one file.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// The Rust files as tokens; one that is not Rust is a violation.
    #[must_use]
    pub fn sources(&self) -> (Vec<Source>, Vec<Violation>) {
        let mut sources = Vec::new();
        let mut broken = Vec::new();
        for (path, text) in self.texts().filter(|(path, _)| path.ends_with(".rs")) {
            match Source::parse(path, text) {
                Ok(source) => sources.push(source),
                Err(violation) => broken.push(violation),
            }
        }
        (sources, broken)
    }

    fn walk(&mut self, dir: &Path, prefix: &str) -> Result<()> {
        for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            let hidden = name.starts_with('.') && !HIDDEN.contains(&name.as_str());
            if kind.is_dir() && !hidden && !SKIPPED.contains(&name.as_str()) {
                self.walk(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() && !hidden {
                let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
                let is_text = TEXT.contains(&ending) || path.starts_with(".ci/");
                let text = is_text.then(|| fs::read_to_string(entry.path()));
                let text = text.transpose().with_context(|| format!("reading {path}"))?;
                self.files.insert(path, text);
            }
        }
        Ok(())
    }
}

/// One Rust file.
#[derive(Debug, Clone)]
pub struct Source {
    /// Path relative to the root of the workspace.
    pub path: String,
    /// Its text.
    pub text: String,
    /// Its tokens without comments, groups opened out.
    pub tokens: Vec<Token>,
}

/// A word, a punctuation character, a bracket or a literal, with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// As written; a literal keeps its quotes, so it equals no word.
    pub text: String,
    /// Line, from 1.
    pub line: usize,
}

impl Source {
    /// Splits a file into tokens.
    ///
    /// # Errors
    /// A violation when the text is not made of Rust tokens.
    pub fn parse(path: &str, text: &str) -> Result<Self, Violation> {
        let stream = TokenStream::from_str(text).map_err(|e| {
            Violation::new(path, e.span().start().line, "rust", "not Rust tokens; make it compile")
        })?;
        let mut tokens = Vec::new();
        flatten(stream, &mut tokens);
        Ok(Self { path: path.to_owned(), text: text.to_owned(), tokens })
    }

    /// Whether the tokens from `at` on are these words.
    #[must_use]
    pub fn matches(&self, at: usize, words: &[&str]) -> bool {
        let tokens = self.tokens.get(at..at + words.len());
        tokens.is_some_and(|tokens| tokens.iter().zip(words).all(|(token, word)| token.text == *word))
    }

    /// Lines where the words follow one another.
    pub fn find(&self, words: &[&str]) -> impl Iterator<Item = usize> {
        (0..self.tokens.len()).filter(|&at| self.matches(at, words)).map(|at| self.tokens[at].line)
    }

    /// Every path that starts with `root`, with its line: `use std::{fs, io::Read}` gives two.
    #[must_use]
    pub fn paths_from(&self, root: &str) -> Vec<(Vec<String>, usize)> {
        let mut found = Vec::new();
        for at in 0..self.tokens.len() {
            if self.matches(at, &[root, ":", ":"]) {
                self.expand(at + 3, &[root.to_owned()], &mut found);
            }
        }
        found
    }

    /// Adds the paths of the use tree at `at` below `prefix`; returns the position behind it.
    fn expand(&self, at: usize, prefix: &[String], found: &mut Vec<(Vec<String>, usize)>) -> usize {
        let Some(token) = self.tokens.get(at) else { return at };
        if token.text == "{" {
            let mut at = at + 1;
            while self.tokens.get(at).is_some_and(|token| token.text != "}") {
                let separator = self.matches(at, &[","]);
                at = if separator { at + 1 } else { self.expand(at, prefix, found).max(at + 1) };
            }
            return at + 1;
        }
        let path: Vec<String> = prefix.iter().cloned().chain([token.text.clone()]).collect();
        if self.matches(at + 1, &[":", ":"]) {
            return self.expand(at + 3, &path, found);
        }
        found.push((path, token.line));
        at + 1
    }
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                tokens.push(Token { text: open.to_owned(), line });
                flatten(group.stream(), tokens);
                let line = group.span_close().start().line;
                tokens.push(Token { text: close.to_owned(), line });
            }
            other => tokens.push(Token { text: other.to_string(), line }),
        }
    }
}
