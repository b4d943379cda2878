//! Errors that several ranks end with in the same words: the screen shows them once.
//!
//! Must never keep a line from a log file, nor the first of its kind from the screen.

use bonfire_sys::lock::Mutex;
use std::collections::BTreeMap;
use std::fmt::Write;

use bonfire_plan::Rank;

/// How the facade begins the line that a rank ends with.
const ERROR: &[u8] = b"error: ";
/// How many different errors are remembered. Ranks that fail alike have one; a program whose output
/// begins like this continues as it likes.
const TEXTS_MAX: usize = 64;

/// Who has said which error so far, the first to say it first.
#[derive(Debug, Default)]
pub(crate) struct ErrorDedup(Mutex<BTreeMap<Vec<u8>, Vec<Rank>>>);

impl ErrorDedup {
    /// Notes a line of a rank's error stream. Whether another rank has said it before, and this one says it
    /// for the first time.
    pub(crate) fn is_known(&self, rank: Rank, text: &[u8]) -> bool {
        if !text.starts_with(ERROR) {
            return false;
        }
        let mut known = self.0.lock();
        if let Some(ranks) = known.get_mut(text) {
            let is_new = !ranks.contains(&rank);
            if is_new {
                ranks.push(rank);
            }
            return is_new;
        }
        if known.len() < TEXTS_MAX {
            known.insert(text.to_vec(), vec![rank]);
        }
        false
    }

    /// What was kept from the screen, a line for each error, and forgets it.
    pub(crate) fn take_notes(&self) -> Vec<String> {
        let known = std::mem::take(&mut *self.0.lock());
        let several = known.into_values().filter(|ranks| ranks.len() > 1);
        several.map(|ranks| note(&ranks)).collect()
    }
}

/// Who ended as the first of these ranks did.
fn note(ranks: &[Rank]) -> String {
    let (first, mut others) = (ranks[0], ranks[1..].to_vec());
    others.sort_unstable();
    let mut text = match others.len() {
        1 => "rank ".to_owned(),
        _ => "ranks ".to_owned(),
    };
    for (place, rank) in others.iter().enumerate() {
        let separator = match place {
            0 => "",
            _ if place + 1 == others.len() => " and ",
            _ => ", ",
        };
        let _ = write!(text, "{separator}{rank}");
    }
    text + &format!(" had the same error as rank {first}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: u32) -> Rank {
        Rank::new(rank)
    }

    #[test]
    fn an_error_of_several_ranks_is_known_after_the_first() {
        let dedup = ErrorDedup::default();
        assert!(!dedup.is_known(rank(2), b"error: no such file"));
        assert!(dedup.is_known(rank(3), b"error: no such file"));
        assert!(dedup.is_known(rank(0), b"error: no such file"));
        assert!(!dedup.is_known(rank(1), b"error: disk full"));
        assert_eq!(dedup.take_notes(), ["ranks 0 and 3 had the same error as rank 2"]);
        assert!(dedup.take_notes().is_empty());
        assert!(!dedup.is_known(rank(0), b"error: no such file"), "forgotten");
    }

    #[test]
    fn what_a_rank_says_again_and_what_is_no_error_is_always_shown() {
        let dedup = ErrorDedup::default();
        for _ in 0..3 {
            for who in 0..3 {
                assert!(!dedup.is_known(rank(who), b"loss 0.5"));
            }
            assert!(!dedup.is_known(rank(1), b"error: still waiting"));
        }
        assert!(dedup.take_notes().is_empty());
    }

    #[test]
    fn a_program_whose_every_line_is_an_error_is_not_remembered_for_ever() {
        let dedup = ErrorDedup::default();
        for line in 0..10 * TEXTS_MAX {
            assert!(!dedup.is_known(rank(0), format!("error: {line}").as_bytes()));
        }
        assert_eq!(dedup.0.lock().len(), TEXTS_MAX);
    }

    #[test]
    fn notes_name_all_ranks() {
        let named = |ranks: &[u32]| note(&ranks.iter().copied().map(rank).collect::<Vec<_>>());
        assert_eq!(named(&[1, 0]), "rank 0 had the same error as rank 1");
        assert_eq!(named(&[3, 2, 0, 1]), "ranks 0, 1 and 2 had the same error as rank 3");
    }
}
