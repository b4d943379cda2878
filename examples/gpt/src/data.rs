//! The text to learn, split into training and validation.
//!
//! Everything here is a pure function of the text, so every rank that reads the same file holds
//! the same corpus; `batch.rs` decides who works on which part of it.

use anyhow::Result;

use crate::text::{Text, TextWindows, require};

const OWN_TEXT: &str = include_str!(concat!(env!("OUT_DIR"), "/corpus.txt"));

/// One character in `VALIDATION_PART` is kept for validation.
const VALIDATION_PART: usize = 10;

#[derive(Clone, Debug)]
pub struct Corpus {
    pub text: Text,
    /// The windows of the first nine tenths, from every character on: for training.
    pub training: TextWindows,
    /// The windows of the rest, one behind the other: for validation.
    pub validation: TextWindows,
}

impl Corpus {
    /// Returns this repository's own text, which is part of the program.
    pub fn own(context: usize) -> Result<Self> {
        Self::new(Text::new("this repository's own text", OWN_TEXT)?, context)
    }

    /// Splits `text`: its end, a tenth or at least one window, is kept for validation.
    ///
    /// # Errors
    /// If one of the two has no window of `context` characters.
    pub fn new(text: Text, context: usize) -> Result<Self> {
        require(&text, context, 2)?;
        let kept = (text.tokens().len() / VALIDATION_PART).max(context + 1);
        let (training, validation) = text.split(kept);
        Ok(Self {
            training: TextWindows::new(training, context)?.at_every_character(),
            validation: TextWindows::new(validation, context)?,
            text,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(text: &str) -> Result<Corpus> {
        Corpus::new(Text::new("some text", text).unwrap(), 8)
    }

    #[test]
    fn a_tenth_is_kept_for_validation() {
        let letters: String = ('a'..='z').cycle().take(1000).collect();
        let corpus = corpus(&letters).unwrap();
        assert_eq!((corpus.training.count(), corpus.validation.count()), (892, 12));
    }

    #[test]
    fn a_short_text_keeps_one_window_for_validation() {
        let corpus = corpus("abcdefghijklmnopqr").unwrap();
        assert_eq!((corpus.training.count(), corpus.validation.count()), (1, 1));
        let short = corpus_error("seventeen letters");
        assert!(short.contains("17 characters") && short.contains("at least 18"), "{short}");
    }

    fn corpus_error(text: &str) -> String {
        corpus(text).unwrap_err().to_string()
    }

    #[test]
    fn the_own_text_is_large_enough_to_learn_from() {
        let corpus = Corpus::own(256).unwrap();
        let training = corpus.training.count();
        assert!(training > 50_000, "{training} windows");
        let distinct = corpus.text.vocabulary().size();
        assert!(distinct > 60, "{distinct} distinct");
    }
}
