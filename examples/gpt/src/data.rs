//! The text to learn: read once, turned into character numbers, split into training and validation.
//!
//! Everything here is a pure function of the text, so every rank that reads the same file holds
//! the same corpus; `batch.rs` decides who works on which part of it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// This repository's own Rust sources and Markdown, gathered by `build.rs`.
const OWN_TEXT: &str = include_str!(concat!(env!("OUT_DIR"), "/corpus.txt"));

/// One character in `VALIDATION_PART` is kept for validation.
const VALIDATION_PART: usize = 10;

/// The distinct characters of a text, in code-point order; a character's number is its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    characters: Vec<char>,
}

/// A text as character numbers, split in two.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// Where the text came from, for people.
    pub name: String,
    /// The characters that occur.
    pub vocabulary: Vocabulary,
    /// The first nine tenths: what the model learns from.
    pub training: Vec<i32>,
    /// The rest: what it is judged by.
    pub validation: Vec<i32>,
}

/// Why a text cannot be trained on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file could not be opened or read.
    #[error("cannot read {path}; give --data a readable text file")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file holds something else than text.
    #[error("{path} is not UTF-8 text (byte {offset}); convert it, for example with iconv")]
    NotText {
        /// The file.
        path: PathBuf,
        /// The first byte that is not part of a character.
        offset: usize,
    },
    /// There is nothing in it.
    #[error("{name} is empty; give --data a file with text in it")]
    Empty {
        /// The text's name.
        name: String,
    },
    /// Less text than one training and one validation window need.
    #[error(
        "{name} has {characters} characters, but a context of {context} needs at least {needed}; \
         give --data a longer text or choose a smaller --context"
    )]
    TooShort {
        /// The text's name.
        name: String,
        /// The text's length.
        characters: usize,
        /// The window asked for.
        context: usize,
        /// The least length that would do.
        needed: usize,
    },
}

impl Vocabulary {
    /// The characters of `text`.
    pub fn of(text: &str) -> Self {
        let distinct: BTreeSet<char> = text.chars().collect();
        Self {
            characters: distinct.into_iter().collect(),
        }
    }

    /// How many characters there are.
    pub fn len(&self) -> usize {
        self.characters.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.characters.is_empty()
    }

    /// The number of a character, if it belongs to the vocabulary.
    pub fn token(&self, character: char) -> Option<i32> {
        let place = self.characters.binary_search(&character).ok()?;
        Some(i32::try_from(place).expect("Unicode has fewer than 2^31 characters"))
    }

    /// The numbers of a text's characters; characters outside the vocabulary are left out.
    pub fn encode(&self, text: &str) -> Vec<i32> {
        text.chars()
            .filter_map(|character| self.token(character))
            .collect()
    }

    /// The text of character numbers.
    pub fn decode(&self, tokens: &[i32]) -> String {
        let character = |&token: &i32| {
            let place = usize::try_from(token).ok()?;
            self.characters.get(place)
        };
        tokens.iter().filter_map(character).collect()
    }
}

impl Corpus {
    /// The text of a file, ready for windows of `context` characters.
    pub fn read(path: &Path, context: usize) -> Result<Self, DataError> {
        match fs::read(path) {
            Ok(bytes) => Self::from_bytes(path, bytes, context),
            Err(source) => Err(DataError::Unreadable {
                path: path.to_path_buf(),
                source,
            }),
        }
    }

    fn from_bytes(path: &Path, bytes: Vec<u8>, context: usize) -> Result<Self, DataError> {
        let text = String::from_utf8(bytes).map_err(|error| DataError::NotText {
            path: path.to_path_buf(),
            offset: error.utf8_error().valid_up_to(),
        })?;
        Self::from_text(path.display().to_string(), &text, context)
    }

    /// This repository's own text, which is part of the program.
    pub fn own(context: usize) -> Result<Self, DataError> {
        Self::from_text("this repository's own text".to_string(), OWN_TEXT, context)
    }

    /// Splits `text`: its end, a tenth or at least one window, is kept for validation.
    pub fn from_text(name: String, text: &str, context: usize) -> Result<Self, DataError> {
        if text.is_empty() {
            return Err(DataError::Empty { name });
        }
        let vocabulary = Vocabulary::of(text);
        let mut training = vocabulary.encode(text);
        // A window reads `context` characters and predicts each one's successor.
        let window = context + 1;
        let (characters, needed) = (training.len(), 2 * window);
        if characters < needed {
            return Err(DataError::TooShort {
                name,
                characters,
                context,
                needed,
            });
        }
        let kept = (characters / VALIDATION_PART).max(window);
        let validation = training.split_off(characters - kept);
        Ok(Self {
            name,
            vocabulary,
            training,
            validation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &[u8]) -> Result<Corpus, DataError> {
        Corpus::from_bytes(Path::new("some.txt"), content.to_vec(), 8)
    }

    #[test]
    fn characters_are_numbered_in_order_and_come_back() {
        let vocabulary = Vocabulary::of("hello wörld");
        assert_eq!(vocabulary.len(), 9);
        assert_eq!(vocabulary.token(' '), Some(0));
        assert_eq!(vocabulary.token('z'), None);
        let tokens = vocabulary.encode("wörld hello");
        assert_eq!(vocabulary.decode(&tokens), "wörld hello");
        assert_eq!(vocabulary.decode(&[-1, 0, 99]), " ");
    }

    #[test]
    fn a_tenth_is_kept_for_validation() {
        let text: String = ('a'..='z').cycle().take(1000).collect();
        let corpus = Corpus::from_text("x".to_string(), &text, 8).unwrap();
        assert_eq!((corpus.training.len(), corpus.validation.len()), (900, 100));
        let both = [corpus.training, corpus.validation].concat();
        assert_eq!(corpus.vocabulary.decode(&both), text);
    }

    #[test]
    fn a_short_text_keeps_one_window_for_validation() {
        let corpus = Corpus::from_text("x".to_string(), "abcdefghijklmnopqr", 8).unwrap();
        assert_eq!((corpus.training.len(), corpus.validation.len()), (9, 9));
    }

    #[test]
    fn bad_files_say_what_to_do() {
        let missing = Corpus::read(Path::new("no/such/file"), 8)
            .unwrap_err()
            .to_string();
        assert!(
            missing.contains("no/such/file") && missing.contains("--data"),
            "{missing}"
        );
        let empty = read(b"").unwrap_err().to_string();
        assert!(empty.contains("is empty"), "{empty}");
        let binary = read(b"abc\xff\xfe").unwrap_err().to_string();
        assert!(
            binary.contains("not UTF-8") && binary.contains("byte 3"),
            "{binary}"
        );
        let short = read(b"seventeen letters").unwrap_err().to_string();
        assert!(
            short.contains("17 characters") && short.contains("at least 18"),
            "{short}"
        );
        assert!(
            [missing, empty, binary, short]
                .iter()
                .all(|line| !line.contains('\n'))
        );
    }

    #[test]
    fn the_own_text_is_large_enough_to_learn_from() {
        let corpus = Corpus::own(256).unwrap();
        assert!(
            corpus.training.len() > 50_000,
            "{} characters",
            corpus.training.len()
        );
        assert!(
            corpus.vocabulary.len() > 60,
            "{} distinct",
            corpus.vocabulary.len()
        );
    }
}
