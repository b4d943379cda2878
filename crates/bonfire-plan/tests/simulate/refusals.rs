//! What cannot be simulated.

use super::*;

#[test]
fn hosts_of_other_ranks_are_refused() {
    let ring = schedule(Collective::AllReduce, Algorithm::Ring, unchunked(4, 8));
    let network = Network::one_host(world(3), LINK);
    let error = simulate(&ring, DType::F32, &network, Detail::Totals).unwrap_err();
    let world_size = world(4);
    assert_eq!(error, SimulateError::HostsLength { given: 3, world_size });
}

#[test]
fn a_cost_that_is_no_time_is_refused() {
    let ring = schedule(Collective::AllReduce, Algorithm::Ring, unchunked(4, 8));
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        let network = Network::one_host(world(4), Link::new(1e-6, bad));
        let error = simulate(&ring, DType::F32, &network, Detail::Totals).unwrap_err();
        assert!(error.to_string().starts_with("s_per_byte is "), "{error}");
    }
}

#[test]
fn a_plan_that_waits_for_ever_names_the_rank() {
    let nothing = || vec![vec![], vec![], vec![]];
    let stuck = |rank: u32, steps: Vec<Step>| {
        let mut lists = nothing();
        lists[rank as usize] = steps;
        by_hand(lists, Hosts::one(world(3)), 4).unwrap_err()
    };
    let (rank, peer) = (Rank::new(2), Rank::new(1));
    let error = stuck(2, take(1, 10).to_vec());
    assert_eq!(error, SimulateError::Stuck { rank, step: 0 });
    let error = stuck(2, vec![put(0, 1), Step::Release { peer }]);
    assert_eq!(error, SimulateError::Stuck { rank, step: 1 });
    // One frame more than there are slots, to a rank that takes none.
    let error = stuck(2, vec![put(0, 1); 5]);
    assert_eq!(error, SimulateError::Stuck { rank, step: 4 });
}

#[test]
fn a_plan_with_too_many_steps_is_refused_before_it_is_built() {
    let sizes = Sizes { ranks: 1024, count: 1 << 22, chunk: 1024 };
    let one_shot = schedule(Collective::AllReduce, Algorithm::OneShot, sizes);
    let network = Network::one_host(world(1024), LINK);
    let error = simulate(&one_shot, DType::F32, &network, Detail::Totals).unwrap_err();
    assert!(matches!(error, SimulateError::TooManySteps { .. }), "{error}");
    assert!(error.to_string().contains("larger chunks"), "{error}");
}

/// The list of one rank alone would fill any memory.
#[test]
fn a_plan_of_endless_lists_is_refused_at_once() {
    let endless = [
        (Algorithm::OneShot, Sizes { ranks: 4, count: usize::MAX, chunk: 1024 }),
        (Algorithm::ZeroCopy, Sizes { ranks: 4, count: usize::MAX, chunk: 1024 }),
        (Algorithm::Ring, Sizes { ranks: 20_000, count: 1 << 24, chunk: 1 << 16 }),
    ];
    for (algorithm, sizes) in endless {
        let ranks = sizes.ranks;
        let plan = schedule(Collective::AllReduce, algorithm, sizes);
        let network = Network::one_host(world(ranks), LINK);
        let error = simulate(&plan, DType::F32, &network, Detail::Totals).unwrap_err();
        assert!(matches!(error, SimulateError::TooManySteps { .. }), "{error}");
    }
}
