//! A text as the numbers of its characters, and the windows that a language model reads.
//!
//! Everything is a pure function of the text, so every rank that reads the same file has the same vocabulary and the
//! same windows.

mod vocabulary;
mod windows;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};

pub use vocabulary::Vocabulary;
pub(crate) use windows::require;
pub use windows::{TextBatch, TextWindows};

/// A text in memory. Clones share it.
#[derive(Clone, Debug)]
pub struct Text {
    name: String,
    vocabulary: Arc<Vocabulary>,
    tokens: Arc<[i32]>,
}

impl Text {
    /// Reads a file of UTF-8 text, whose characters become the vocabulary.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
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
        Self::new(name.to_string(), text.strip_prefix('\u{feff}').unwrap_or(&text))
    }

    /// Takes a text in memory, with a name for messages.
    pub fn new(name: impl Into<String>, text: &str) -> Result<Self> {
        let name = name.into();
        ensure!(!text.is_empty(), "{name} is empty; give a file with text in it");
        let vocabulary = Vocabulary::of(text);
        Ok(Self { name, tokens: vocabulary.encode(text).into(), vocabulary: Arc::new(vocabulary) })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its characters, or those of the text that it is a part of.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    pub fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// Splits off the last `held_out` characters, or all if there are fewer: the first part is for training, the
    /// second for validation.
    pub fn split(&self, held_out: usize) -> (Self, Self) {
        let (first, last) = self.tokens.split_at(self.tokens.len().saturating_sub(held_out));
        let part = |tokens: &[i32]| Self { tokens: tokens.into(), ..self.clone() };
        (part(first), part(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &[u8]) -> Result<Text> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.txt");
        fs::write(&path, content).unwrap();
        Text::read(path)
    }

    #[test]
    fn a_text_is_split_and_comes_back() {
        let letters: String = ('a'..='z').cycle().take(1000).collect();
        let text = read(letters.as_bytes()).unwrap();
        let (training, validation) = text.split(100);
        assert_eq!((training.tokens().len(), validation.tokens().len()), (900, 100));
        let both = [training.tokens(), validation.tokens()].concat();
        assert_eq!(text.vocabulary().decode(&both), letters);
        assert!(text.split(2000).0.tokens().is_empty());
    }

    #[test]
    fn the_mark_that_an_editor_puts_first_is_no_character() {
        let text = read("\u{feff}abc".as_bytes()).unwrap();
        assert_eq!((text.tokens().len(), text.vocabulary().size()), (3, 3));
    }

    #[test]
    fn a_pipe_is_an_error_and_not_a_wait() {
        let error = Text::read("/dev/null").unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn bad_files_say_what_to_do() {
        let missing = Text::read("no/such/file").unwrap_err().to_string();
        assert!(missing.contains("cannot read no/such/file;"), "{missing}");
        let empty = read(b"").unwrap_err().to_string();
        assert!(empty.contains("is empty"), "{empty}");
        let binary = read(b"abc\xff\xfe").unwrap_err().to_string();
        assert!(binary.contains("not UTF-8") && binary.contains("byte 3"), "{binary}");
        assert!([missing, empty, binary].iter().all(|line| !line.contains('\n')));
    }
}
