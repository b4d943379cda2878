use bonfire_cuda::{Context, DeviceRegion, Driver};

use super::*;

/// Ranks of a group, each of which was to tell `DUE` messages on the main channel.
const RANKS: u32 = 4;
const DUE: u32 = 4;

fn link(peer: u32) -> usize {
    FlagPage::link_index(Link { channel: MAIN, peer })
}

/// Pages on which each rank has signalled as often as it was to, half to either neighbour.
fn all_signalled() -> Vec<Vec<u32>> {
    let mut pages = vec![vec![0; FlagPage::BYTES / 4]; RANKS as usize];
    for rank in 0..RANKS {
        for hop in [1, 2] {
            pages[((rank + hop) % RANKS) as usize][link(rank)] = DUE / 2;
        }
    }
    pages
}

/// What rank 2 makes of the pages.
fn missing(pages: &[Vec<u32>]) -> Missing {
    missing_of(pages, 0)
}

/// The same, having waited for so many messages of rank 3 alone.
fn missing_of(pages: &[Vec<u32>], alone: u32) -> Missing {
    let world_size = WorldSize::new(RANKS).unwrap();
    let mut due = vec![0; FlagPage::CHANNELS_MAX as usize * world_size.len()];
    due[..world_size.len()].fill(DUE);
    let mut heard = vec![0; due.len()];
    heard[index(world_size, PAIRS, Rank::new(3))] = alone;
    let progress = Progress { me: Rank::new(2), world_size, due: &due, heard: &heard, shots: 0 };
    progress.missing(pages)
}

#[test]
fn nobody_is_missing_when_all_have_signalled() {
    assert_eq!(missing(&all_signalled()), Missing::Ranks(Vec::new()));
    assert_eq!(missing(&[]), Missing::Ranks(Vec::new()));
}

#[test]
fn the_rank_that_signalled_least_is_missing() {
    let mut pages = all_signalled();
    // Rank 1 signalled nothing, so rank 2 could not continue, nor rank 0 signal its second half.
    pages.iter_mut().for_each(|page| page[link(1)] = 0);
    pages[2][link(0)] = 0;
    assert_eq!(missing(&pages), Missing::Ranks(vec![Rank::new(1)]));
}

#[test]
fn pages_of_a_rank_that_gave_up_blame_nobody() {
    let mut raised = all_signalled();
    raised[0][FlagPage::GIVEN_UP_INDEX] = 1;
    assert_eq!(missing(&raised), Missing::GivenUp);
    // Read while it happened: the first word before, a link behind it.
    let mut torn = all_signalled();
    torn.iter_mut().for_each(|page| page[link(1)] = 0);
    torn[0][link(1)] = FAR_AHEAD;
    assert_eq!(missing(&torn), Missing::GivenUp);
}

#[test]
fn counters_may_go_round_their_bits() {
    assert_eq!(ahead(1, u32::MAX), 2);
    assert_eq!(ahead(u32::MAX, 1), -2);
}

#[test]
fn no_packet_has_a_number_that_lies_in_an_inbox() {
    let mut numbers = Numbers::new();
    // Who knows what was there before the first.
    assert!(numbers.come_again());
    assert_eq!(numbers.one_shot(), 1);
    assert!(!numbers.come_again());
    assert_eq!([numbers.two_shot(), numbers.one_shot()], [2, 4]);
    // Round the 32 bits, by a one-shot and by a two-shot: none has a 0, which cleared inboxes have.
    for (last, next) in [(u32::MAX, 1), (0, 1), (1, 2)] {
        let mut numbers = Numbers { last, packets: 7 };
        assert!(numbers.come_again(), "{last}");
        assert_eq!(numbers.one_shot(), next);
        assert!(!numbers.come_again());
    }
    let mut numbers = Numbers { last: u32::MAX - 1, packets: u32::MAX - 1 };
    assert!(!numbers.come_again());
    assert_eq!(numbers.one_shot(), u32::MAX);
    assert!(numbers.come_again());
}

#[test]
fn a_rank_that_two_were_to_meet_is_missing() {
    let mut pages = all_signalled();
    assert_eq!(missing_of(&pages, 1), Missing::Ranks(vec![Rank::new(3)]));
    let word = FlagPage::link_index(Link { channel: PAIRS, peer: 3 });
    pages[2][word] = 1;
    assert_eq!(missing_of(&pages, 1), Missing::Ranks(Vec::new()));
}

#[test]
fn cuda_messages_of_a_run_are_about_different_words() {
    let region = Driver::load()
        .and_then(|driver| Context::retain(&driver.device(0)?))
        .and_then(|context| DeviceRegion::allocate(&context, 16));
    let region = match region {
        Ok(region) => region,
        Err(error) => {
            println!("cuda_messages_of_a_run_are_about_different_words skipped: {error}");
            return;
        }
    };
    let word = |index: usize| region.span().part(4 * index..4 * index + 4).unwrap();
    let mut noted = Vec::new();
    for signal in [
        Signal::Set(word(0), 1),
        Signal::Set(word(1), 1),
        Signal::Set(word(0), 2),
        Signal::Wait(word(2), 1),
        Signal::Wait(word(2), 2),
        // Not before what is heard.
        Signal::Set(word(0), 3),
    ] {
        note(&mut noted, signal);
    }
    let seen: Vec<(bool, u64, u32)> = noted
        .iter()
        .map(|signal| match signal {
            Signal::Set(word, value) => (true, word.address() - region.span().address(), *value),
            Signal::Wait(word, value) => (false, word.address() - region.span().address(), *value),
        })
        .collect();
    assert_eq!(seen, [(true, 0, 2), (true, 4, 1), (false, 8, 2), (true, 0, 3)]);
}
