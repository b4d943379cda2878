//! Windows of text, with the next characters as targets.

use anyhow::{Result, ensure};
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::Text;

/// Windows and, for each of their characters, the next one: `[batch, context]` both.
#[derive(Clone, Debug)]
pub struct TextBatch {
    /// The input of the model.
    pub tokens: Tensor<2, Int>,
    /// The next characters, as targets.
    pub targets: Tensor<2, Int>,
}

/// All windows of a text, numbered from its beginning. Clones share the text.
#[derive(Clone, Debug)]
pub struct TextWindows {
    text: Text,
    context: usize,
    /// From one window to the next, in characters.
    stride: usize,
}

impl TextWindows {
    /// Cuts windows of `context` characters, one behind the other.
    ///
    /// # Errors
    /// If not one fits with its successor.
    pub fn new(text: Text, context: usize) -> Result<Self> {
        require(&text, context, 1)?;
        Ok(Self { text, context, stride: context })
    }

    /// Lets windows begin at every character, so that they overlap.
    #[must_use]
    pub fn at_every_character(self) -> Self {
        Self { stride: 1, ..self }
    }

    pub fn count(&self) -> usize {
        (self.text.tokens().len() - self.context - 1) / self.stride + 1
    }

    /// Makes a batch of the windows at `indices`, on `device`.
    ///
    /// # Panics
    /// If there is no index, or one is outside.
    pub fn batch(&self, indices: &[usize], device: &Device) -> TextBatch {
        assert!(!indices.is_empty(), "a batch of no windows has no size");
        TextBatch {
            tokens: self.gather(indices, 0, device),
            targets: self.gather(indices, 1, device),
        }
    }

    fn gather(&self, indices: &[usize], shift: usize, device: &Device) -> Tensor<2, Int> {
        let window = |&index: &usize| {
            assert!(index < self.count(), "window {index} of {}", self.count());
            let start = index * self.stride + shift;
            &self.text.tokens()[start..start + self.context]
        };
        let values: Vec<i32> = indices.iter().flat_map(window).copied().collect();
        Tensor::from_data(TensorData::new(values, [indices.len(), self.context]), device)
    }
}

/// Checks that a text has as many windows one behind the other, each with its successor.
pub(crate) fn require(text: &Text, context: usize, windows: usize) -> Result<()> {
    let (name, characters) = (text.name(), text.tokens().len());
    // A window reads `context` characters and predicts each one's successor.
    let needed = context.saturating_add(1).saturating_mul(windows);
    ensure!(
        characters >= needed,
        "{name} has {characters} characters, but a context of {context} needs at least {needed}; give a longer text or a \
         smaller context"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(len: usize) -> Text {
        let characters: String = ('a'..='z').cycle().take(len).collect();
        Text::new("letters", &characters).unwrap()
    }

    fn values(tensor: Tensor<2, Int>) -> Vec<i64> {
        tensor.into_data().iter::<i64>().collect()
    }

    #[test]
    fn targets_are_the_successors() {
        let windows = TextWindows::new(text(20), 3).unwrap();
        let batch = windows.batch(&[0, 4], &Device::flex());
        assert_eq!(values(batch.tokens), [0, 1, 2, 12, 13, 14]);
        assert_eq!(values(batch.targets), [1, 2, 3, 13, 14, 15]);
        let everywhere = windows.at_every_character();
        let batch = everywhere.batch(&[4], &Device::flex());
        assert_eq!(values(batch.tokens), [4, 5, 6]);
    }

    #[test]
    fn a_text_too_short_says_how_long_it_should_be() {
        let short = TextWindows::new(text(8), 8).unwrap_err().to_string();
        assert!(short.contains("8 characters") && short.contains("at least 9"), "{short}");
        assert_eq!(TextWindows::new(text(9), 8).unwrap().count(), 1);
    }

    proptest! {
        /// Windows behind each other predict every character once but the first and a rest that
        /// fills no window.
        #[test]
        fn windows_cover_a_text_without_overlap(len in 2..200_usize, context in 1..20_usize) {
            prop_assume!(len > context);
            let windows = TextWindows::new(text(len), context).unwrap();
            let all: Vec<usize> = (0..windows.count()).collect();
            let targets = values(windows.batch(&all, &Device::flex()).targets);
            let expected: Vec<i64> = (1..len).map(|place| (place % 26) as i64).collect();
            prop_assert_eq!(&targets[..], &expected[..targets.len()]);
            prop_assert!(expected.len() - targets.len() < context);
            let everywhere = windows.at_every_character();
            prop_assert_eq!(everywhere.count(), len - context);
        }
    }
}
