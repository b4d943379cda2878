//! Steps in the memory of other ranks.

use super::*;

/// A direct all-reduce by hand: a barrier, one step for each rank's shard, a barrier.
fn direct_all_reduce(ranks: usize, shard: usize) -> Vec<Vec<Step>> {
    let everyone: Box<[Rank]> = world(ranks).ranks().collect();
    let barrier = schedule(Collective::Barrier, Algorithm::Dissemination, unchunked(ranks, 0));
    let list = |rank: Rank| {
        let start = rank.index() * shard;
        let mut steps = barrier.steps(rank);
        steps.push(Step::ReduceDirect {
            range: ElemRange::new(start, start + shard),
            sources: everyone.clone(),
            targets: everyone.clone(),
            stage: Stage::Final,
        });
        steps.extend(barrier.steps(rank));
        steps
    };
    world(ranks).ranks().map(list).collect()
}

#[test]
fn a_direct_step_moves_what_is_remote_over_all_ports() {
    for (ranks, rounds) in [(2, 1.0), (4, 2.0), (8, 3.0)] {
        let one_host = Hosts::one(world(ranks));
        let simulation = by_hand(direct_all_reduce(ranks, 1000), one_host, 4).unwrap();
        assert_close(simulation.time_s, zero_copy_s(ranks, rounds));
        let sent = 2 * (ranks as u64 - 1) * 1000;
        for rank in &simulation.ranks {
            assert_eq!((rank.bytes_sent, rank.bytes_received), (sent, sent));
        }
        assert_path(&simulation);
    }
}

#[test]
fn a_direct_step_between_hosts_is_refused() {
    let error = by_hand(direct_all_reduce(4, 1000), hosts(4, 2), 4).unwrap_err();
    let (rank, peer) = (Rank::new(0), Rank::new(2));
    assert_eq!(error, SimulateError::DirectAcrossHosts { rank, peer });
}
