//! What ranks compete for: ports, network cards and slots.

use super::*;

#[test]
fn ranks_that_share_a_network_card_take_turns() {
    // 0 sends to 2, and 1 to 3.
    let steps = || {
        let receive = |from| take(from, 1000).to_vec();
        vec![
            vec![put(2, 1000)],
            vec![put(3, 1000)],
            receive(0),
            receive(1),
        ]
    };
    let apart = by_hand(steps(), hosts(4, 1), 4).unwrap();
    assert_close(apart.time_s, 1e-6 + 1e-6);
    let together = by_hand(steps(), hosts(4, 2), 4).unwrap();
    assert_close(together.time_s, 1e-6 + 2e-6);
    let ends: Vec<f64> = together.ranks.iter().map(|rank| rank.end_s).collect();
    assert_close(ends[2], 2e-6);
    assert_close(ends[3], 3e-6);
    let queued = together
        .path
        .iter()
        .find(|part| part.activity == Activity::Queue);
    let queued = queued.expect("one of the two waits for the card");
    assert!((queued.end_s - queued.start_s - 1e-6).abs() < 1e-12);
    assert_eq!(together.nics[0].frames_sent, 2);
    assert_eq!(together.nics[0].bytes_sent, 2000);
    assert_eq!(together.nics[1].bytes_received, 2000);
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
    let returns = one
        .path
        .iter()
        .filter(|part| part.activity == Activity::SlotReturn);
    assert_eq!(returns.count(), 4);
    // With enough of them the port never stops.
    for slots in [3, 4, 5, usize::MAX] {
        assert_close(with(slots).time_s, 1e-6 + 5e-6);
    }
}
