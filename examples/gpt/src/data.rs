//! The text to learn, split into training and validation.
//!
//! Everything here is a pure function of the text, so every rank that reads the same file holds
//! the same corpus; `batch.rs` decides who works on which part of it.

use crate::text::{Text, TextError, TextWindows};

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
    ///
    /// # Errors
    /// [`TextError::TooShort`] for a context longer than it.
    pub fn own(context: usize) -> Result<Self, TextError> {
        Self::new(Text::new("this repository's own text", OWN_TEXT)?, context)
    }

    /// Splits `text`: its end, a tenth or at least one window, is kept for validation.
    ///
    /// # Errors
    /// [`TextError::TooShort`] if one of the two has no window of `context` characters.
    pub fn new(text: Text, context: usize) -> Result<Self, TextError> {
        // A window reads `context` characters and predicts each one's successor.
        let window = context + 1;
        if text.len() < 2 * window {
            return Err(TextError::TooShort {
                name: text.name().to_owned(),
                characters: text.len(),
                context,
                needed: 2 * window,
            });
        }
        let kept = (text.len() / VALIDATION_PART).max(window);
        let (training, validation) = text.split(kept);
        Ok(Self {
            training: training.windows(context)?.at_every_character(),
            validation: validation.windows(context)?,
            text,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(text: &str) -> Result<Corpus, TextError> {
        Corpus::new(Text::new("some text", text).unwrap(), 8)
    }

    #[test]
    fn a_tenth_is_kept_for_validation() {
        let letters: String = ('a'..='z').cycle().take(1000).collect();
        let corpus = corpus(&letters).unwrap();
        let lengths = [&corpus.training, &corpus.validation].map(|windows| windows.text().len());
        assert_eq!(lengths, [900, 100]);
        assert_eq!(corpus.training.len(), 892);
    }

    #[test]
    fn a_short_text_keeps_one_window_for_validation() {
        let corpus = corpus("abcdefghijklmnopqr").unwrap();
        assert_eq!((corpus.training.len(), corpus.validation.len()), (1, 1));
        let short = corpus_error("seventeen letters");
        assert!(short.contains("17 characters") && short.contains("at least 18"), "{short}");
    }

    fn corpus_error(text: &str) -> String {
        corpus(text).unwrap_err().to_string()
    }

    #[test]
    fn the_own_text_is_large_enough_to_learn_from() {
        let corpus = Corpus::own(256).unwrap();
        let training = corpus.training.len();
        assert!(training > 50_000, "{training} windows");
        let distinct = corpus.text.vocabulary().len();
        assert!(distinct > 60, "{distinct} distinct");
    }
}
