//! A text as the numbers of its characters.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::{TextError, TextWindows, Vocabulary};

/// A text in memory. Clones share it.
#[derive(Clone, Debug)]
pub struct Text {
    name: String,
    vocabulary: Arc<Vocabulary>,
    tokens: Arc<[i32]>,
}

impl Text {
    /// Reads a file of UTF-8 text, whose characters become the vocabulary.
    ///
    /// # Errors
    /// [`TextError`] if it cannot be read, is not UTF-8, or is empty.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, TextError> {
        let (name, text) = contents(path.as_ref())?;
        Self::new(name, &text)
    }

    /// Takes a text in memory, with a name for messages.
    ///
    /// # Errors
    /// [`TextError::Empty`].
    pub fn new(name: impl Into<String>, text: &str) -> Result<Self, TextError> {
        let name = name.into();
        if text.is_empty() {
            return Err(TextError::Empty { name });
        }
        let vocabulary = Vocabulary::of(text);
        Ok(Self { name, tokens: vocabulary.encode(text).into(), vocabulary: Arc::new(vocabulary) })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its characters, or those of the text that it is a part of.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    pub fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns true for an empty part after [`split`](Self::split).
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Splits off the last `held_out` characters, or all if there are fewer: the first part is for training, the
    /// second for validation.
    pub fn split(&self, held_out: usize) -> (Self, Self) {
        let (first, last) = self.tokens.split_at(self.len().saturating_sub(held_out));
        let part = |tokens: &[i32]| Self { tokens: tokens.into(), ..self.clone() };
        (part(first), part(last))
    }

    /// Cuts windows of `context` characters, one behind the other.
    ///
    /// # Errors
    /// [`TextError::TooShort`] if not one fits with its successor.
    ///
    /// # Panics
    /// If `context` is 0.
    pub fn windows(&self, context: usize) -> Result<TextWindows, TextError> {
        TextWindows::new(self.clone(), context)
    }
}

fn contents(path: &Path) -> Result<(String, String), TextError> {
    let unreadable = |source| TextError::Unreadable { path: path.to_path_buf(), source };
    // The first process to read a pipe empties it, and the others wait.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        let path = path.to_path_buf();
        return Err(TextError::NotAFile { path });
    }
    let bytes = fs::read(path).map_err(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|error| TextError::NotText {
        path: path.to_path_buf(),
        offset: error.utf8_error().valid_up_to(),
    })?;
    // The mark that some editors put first is not a character of the text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned();
    Ok((path.display().to_string(), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &[u8]) -> Result<Text, TextError> {
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
        assert_eq!((training.len(), validation.len()), (900, 100));
        let both = [training.tokens(), validation.tokens()].concat();
        assert_eq!(text.vocabulary().decode(&both), letters);
        assert!(text.split(2000).0.is_empty());
    }

    #[test]
    fn the_mark_that_an_editor_puts_first_is_no_character() {
        let text = read("\u{feff}abc".as_bytes()).unwrap();
        assert_eq!((text.len(), text.vocabulary().len()), (3, 3));
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
