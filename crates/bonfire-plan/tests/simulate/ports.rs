//! What ranks compete for: ports, network cards and slots.

use super::*;

/// Ranks 0 and 1 on one host send to 2 and 3 on another.
fn sent_by_two(bytes: [usize; 2], per_host: usize) -> Simulation {
    let steps = vec![
        vec![put(2, bytes[0])],
        vec![put(3, bytes[1])],
        take(0, bytes[0]).to_vec(),
        take(1, bytes[1]).to_vec(),
    ];
    by_hand(steps, hosts(4, per_host), 4).unwrap()
}

#[test]
fn links_share_a_network_card_equally() {
    let apart = sent_by_two([1000, 1000], 1);
    assert_close(apart.time_s, 1e-6 + 1e-6);
    let together = sent_by_two([1000, 1000], 2);
    for rank in &together.ranks[2..] {
        assert_close(rank.end_s, 1e-6 + 2e-6);
    }
    let queued = together.path.iter().find(|part| part.activity == Activity::Queue);
    let queued = queued.expect("each takes longer because of the other");
    assert!((queued.end_s - queued.start_s - 1e-6).abs() < 1e-12);
    assert_eq!(together.nics[0].frames_sent, 2);
    assert_eq!(together.nics[0].bytes_sent, 2000);
    assert_eq!(together.nics[1].bytes_received, 2000);
}

#[test]
fn the_longer_frame_has_the_card_for_itself_when_the_shorter_has_passed() {
    let simulation = sent_by_two([1000, 3000], 2);
    assert_close(simulation.ranks[2].end_s, 1e-6 + 2e-6);
    assert_close(simulation.ranks[3].end_s, 1e-6 + 4e-6);
}

#[test]
fn a_link_gets_one_share_however_many_frames_it_has() {
    // Rank 0 sends three frames, and rank 1 one.
    let receives = || (0..3).flat_map(|_| take(0, 1000)).collect::<Vec<_>>();
    let steps = vec![vec![put(2, 1000); 3], vec![put(3, 1000)], receives(), take(1, 1000).to_vec()];
    let simulation = by_hand(steps, hosts(4, 2), 4).unwrap();
    assert_close(simulation.ranks[3].end_s, 1e-6 + 2e-6);
    assert_close(simulation.ranks[2].end_s, 1e-6 + 4e-6);
}

#[test]
fn who_comes_later_shares_what_is_left() {
    // Rank 1 sends when it has 1000 bytes of rank 0, which takes 2 us; by then rank 0 has sent 2000 bytes of 3000 to rank 2.
    let steps = vec![
        vec![put(1, 1000), put(2, 3000)],
        [take(0, 1000).to_vec(), vec![put(3, 1000)]].concat(),
        take(0, 3000).to_vec(),
        take(1, 1000).to_vec(),
    ];
    let simulation = by_hand(steps, hosts(4, 2), 4).unwrap();
    assert_close(simulation.ranks[2].end_s, 1e-6 + 4e-6);
    assert_close(simulation.ranks[3].end_s, 1e-6 + 4e-6);
}

#[test]
fn frames_to_one_rank_queue_at_its_port() {
    let mut receives = Vec::new();
    (1..4).for_each(|rank| receives.extend(take(rank, 1000)));
    let sends = || vec![put(0, 1000)];
    let steps = vec![receives, sends(), sends(), sends()];
    let simulation = by_hand(steps, Hosts::one(world(4)), 4).unwrap();
    assert_close(simulation.time_s, 1e-6 + 3e-6);
    assert_close(simulation.ranks[0].blocked_s, simulation.time_s);
    assert_eq!(simulation.ranks[0].bytes_received, 3000);
}

#[test]
fn opposite_directions_do_not_disturb_each_other() {
    let one = |peer| {
        let mut steps = vec![put(peer, 1000)];
        steps.extend(take(peer, 1000));
        steps
    };
    for per_host in [1, 2] {
        let steps = vec![one(1), one(0)];
        let simulation = by_hand(steps, hosts(2, per_host), 4).unwrap();
        assert_close(simulation.time_s, 2e-6);
    }
}

#[test]
fn few_slots_make_a_sender_wait_for_their_return() {
    let steps = || {
        let mut receives = Vec::new();
        (0..5).for_each(|_| receives.extend(take(0, 1000)));
        vec![vec![put(1, 1000); 5], receives]
    };
    let with = |slots| by_hand(steps(), Hosts::one(world(2)), slots).unwrap();
    // Stop and wait: each frame but the first follows the return of the only slot.
    let one = with(1);
    assert_close(one.time_s, 5.0 * 2e-6 + 4.0 * 1e-6);
    let returns = one.path.iter().filter(|part| part.activity == Activity::SlotReturn);
    assert_eq!(returns.count(), 4);
    // With enough of them the port never stops.
    for slots in [3, 4, 5, usize::MAX] {
        assert_close(with(slots).time_s, 1e-6 + 5e-6);
    }
}
