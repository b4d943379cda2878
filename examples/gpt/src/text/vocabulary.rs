//! The characters of a text and their numbers.

use std::collections::BTreeSet;

/// The distinct characters of a text, in code-point order; a character's number is its index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    characters: Vec<char>,
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
        let character = |&token: &i32| {
            let place = usize::try_from(token).ok()?;
            self.characters.get(place)
        };
        tokens.iter().filter_map(character).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
