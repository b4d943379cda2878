//! The text to learn, as the numbers of its characters, split into training and validation.
//!
//! Everything here is a pure function of the text, so every rank that reads the same file holds
//! the same corpus; `batch.rs` decides who works on which part of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};

use crate::batch::TextWindows;

const OWN_TEXT: &str = include_str!(concat!(env!("OUT_DIR"), "/corpus.txt"));

/// One character in `VALIDATION_PART` is kept for validation.
const VALIDATION_PART: usize = 10;

#[derive(Clone, Debug)]
pub struct Corpus {
    /// The name of the text in messages.
    pub name: String,
    pub characters: usize,
    pub vocabulary: Vocabulary,
    /// The windows of the first nine tenths, from every character on: for training.
    pub training: TextWindows,
    /// The windows of the rest, one behind the other: for validation.
    pub validation: TextWindows,
}

/// The distinct characters of a text, in code-point order; a character's number is its index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    characters: Vec<char>,
}

impl Corpus {
    /// Returns this repository's own text, which is part of the program.
    pub fn own(context: usize) -> Result<Self> {
        Self::new("this repository's own text", OWN_TEXT, context)
    }

    /// Splits `text`: its end, a tenth or at least one window, is kept for validation.
    ///
    /// # Errors
    /// If one of the two has no window of `context` characters.
    pub fn new(name: impl Into<String>, text: &str, context: usize) -> Result<Self> {
        let (name, vocabulary) = (name.into(), Vocabulary::of(text));
        let tokens = vocabulary.encode(text);
        let characters = tokens.len();
        // A window reads `context` characters and predicts each one's successor.
        let window = context.saturating_add(1);
        let needed = window.saturating_mul(2);
        ensure!(
            characters >= needed,
            "{name} has {characters} characters, but a context of {context} needs at least {needed}; give a longer text or a \
             smaller context"
        );
        let kept = (characters / VALIDATION_PART).max(window);
        let (training, validation) = tokens.split_at(characters - kept);
        Ok(Self {
            name,
            characters,
            vocabulary,
            training: TextWindows::new(training, context).at_every_character(),
            validation: TextWindows::new(validation, context),
        })
    }
}

impl Vocabulary {
    pub fn of(text: &str) -> Self {
        let distinct: BTreeSet<char> = text.chars().collect();
        Self { characters: distinct.into_iter().collect() }
    }

    pub fn size(&self) -> usize {
        self.characters.len()
    }

    /// Returns the number of a character, if it belongs to the vocabulary.
    pub fn token(&self, character: char) -> Option<i32> {
        let place = self.characters.binary_search(&character).ok()?;
        Some(i32::try_from(place).expect("Unicode has fewer than 2^31 characters"))
    }

    /// Returns the numbers of a text's characters; characters outside the vocabulary are left out.
    pub fn encode(&self, text: &str) -> Vec<i32> {
        text.chars().filter_map(|character| self.token(character)).collect()
    }

    /// Returns the text of character numbers; numbers outside the vocabulary are left out.
    pub fn decode(&self, tokens: &[i32]) -> String {
        let places = tokens.iter().filter_map(|&token| usize::try_from(token).ok());
        places.filter_map(|place| self.characters.get(place)).collect()
    }
}

/// Reads a file of UTF-8 text.
pub fn read(path: &Path) -> Result<String> {
    let name = path.display();
    let unreadable =
        || format!("cannot read {name}; check that it is there and that this user may read it");
    // The first process to read a pipe empties it, and the others wait.
    ensure!(
        fs::metadata(path).with_context(unreadable)?.is_file(),
        "{name} is not a regular file, and every rank reads it for itself; give a file on disk"
    );
    let bytes = fs::read(path).with_context(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        anyhow!("{name} is not UTF-8 text (byte {offset}); convert it, for example with iconv")
    })?;
    // The mark that some editors put first is not a character of the text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    ensure!(!text.is_empty(), "{name} is empty; give a file with text in it");
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Int, Tensor};

    use super::*;

    fn letters(len: usize) -> String {
        ('a'..='z').cycle().take(len).collect()
    }

    fn corpus(text: &str) -> Result<Corpus> {
        Corpus::new("some text", text, 8)
    }

    fn read_bytes(content: &[u8]) -> Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.txt");
        fs::write(&path, content).unwrap();
        read(&path)
    }

    #[test]
    fn a_tenth_is_kept_for_validation() {
        let letters = letters(1000);
        let corpus = corpus(&letters).unwrap();
        let (training, validation) = (&corpus.training, &corpus.validation);
        assert_eq!((corpus.characters, corpus.vocabulary.size()), (1000, 26));
        assert_eq!((training.count(), validation.count()), (892, 12));
        let text = |tensor: Tensor<2, Int>| {
            let tokens: Vec<i32> = tensor.into_data().iter::<i32>().collect();
            corpus.vocabulary.decode(&tokens)
        };
        let device = Device::flex();
        assert_eq!(text(training.batch(&[0], &device).tokens), letters[..8]);
        assert_eq!(text(training.batch(&[891], &device).targets), letters[892..900]);
        let all: Vec<usize> = (0..12).collect();
        assert_eq!(text(validation.batch(&all, &device).tokens), letters[900..996]);
    }

    #[test]
    fn a_short_text_keeps_one_window_for_validation() {
        let corpus = corpus("abcdefghijklmnopqr").unwrap();
        assert_eq!((corpus.training.count(), corpus.validation.count()), (1, 1));
    }

    #[test]
    fn a_text_too_short_says_how_long_it_should_be() {
        for (text, says) in [("seventeen letters", "17 characters"), ("", "0 characters")] {
            let short = corpus(text).unwrap_err().to_string();
            assert!(short.contains(says) && short.contains("at least 18"), "{short}");
        }
        let endless = Corpus::new("some text", "abc", usize::MAX).unwrap_err().to_string();
        assert!(endless.contains("needs at least"), "{endless}");
    }

    #[test]
    fn the_own_text_is_large_enough_to_learn_from() {
        let corpus = Corpus::own(256).unwrap();
        let training = corpus.training.count();
        assert!(training > 50_000, "{training} windows");
        let distinct = corpus.vocabulary.size();
        assert!(distinct > 60, "{distinct} distinct");
    }

    #[test]
    fn characters_are_numbered_in_order_and_come_back() {
        let vocabulary = Vocabulary::of("hello wörld");
        assert_eq!(vocabulary.size(), 9);
        assert_eq!(vocabulary.token(' '), Some(0));
        assert_eq!(vocabulary.token('z'), None);
        let tokens = vocabulary.encode("wörld hello");
        assert_eq!(vocabulary.decode(&tokens), "wörld hello");
        assert_eq!(vocabulary.decode(&[-1, 0, 99]), " ");
    }

    #[test]
    fn the_mark_that_an_editor_puts_first_is_no_character() {
        assert_eq!(read_bytes("\u{feff}abc".as_bytes()).unwrap(), "abc");
        assert_eq!(read_bytes(b"abc").unwrap(), "abc");
    }

    #[test]
    fn a_pipe_is_an_error_and_not_a_wait() {
        let error = read(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn bad_files_say_what_to_do() {
        let missing = read(Path::new("no/such/file")).unwrap_err().to_string();
        assert!(missing.contains("cannot read no/such/file;"), "{missing}");
        let empty = read_bytes(b"").unwrap_err().to_string();
        assert!(empty.contains("is empty"), "{empty}");
        let binary = read_bytes(b"abc\xff\xfe").unwrap_err().to_string();
        assert!(binary.contains("not UTF-8") && binary.contains("byte 3"), "{binary}");
        assert!([missing, empty, binary].iter().all(|line| !line.contains('\n')));
    }
}
