//! Whatever shape there is a plan for, the plan is right and its estimate is a time.

mod support;

use bonfire_plan::{
    Collective, DType, Hosts, LinkCosts, LinkFigures, Partition, Role, Schedule, ScheduleShape,
    estimate,
};
use proptest::prelude::*;
use support::{Noise, Sizes, all_kinds, compute, possible_count, prove, shape};

const RANKS_MAX: usize = 20;

const FIGURES: LinkFigures = LinkFigures {
    intra_host: LinkCosts { alpha_s: 1e-6, beta_s_per_byte: 1e-10 },
    inter_host: LinkCosts { alpha_s: 2e-5, beta_s_per_byte: 1e-9 },
    gamma_s_per_byte: 1e-10,
};

/// Blocks of any length, for the collectives that have them.
fn partition(collective: Collective, ranks: usize, noise: &mut Noise) -> Option<Partition> {
    let mut lengths = |blocks: usize| {
        let length = |_| match noise.next() % 40 {
            length if length < 20 => length as usize,
            _ => 0,
        };
        (0..blocks).map(length).collect()
    };
    match collective {
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::Gather { .. }
        | Collective::Scatter { .. } => Some(Partition::Ragged(lengths(ranks))),
        Collective::AllToAll => Some(Partition::Matrix(lengths(ranks * ranks))),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn every_shape_with_a_plan_holds(
        ranks in 1..=RANKS_MAX,
        kind in any::<usize>(),
        count in 0..200_usize,
        chunk in 1..60_usize,
        hosts in prop::collection::vec(0..4_u32, RANKS_MAX),
        is_ragged in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let kinds = all_kinds(ranks);
        let (collective, algorithm) = kinds[kind % kinds.len()];
        let count = possible_count(collective, ranks, count);
        let mut shape = ScheduleShape {
            hosts: Hosts::new(hosts[..ranks].to_vec()),
            ..shape(collective, algorithm, Sizes { ranks, count, chunk })
        };
        let ragged = partition(collective, ranks, &mut Noise(seed)).filter(|_| is_ragged);
        if let Some(Partition::Ragged(lengths) | Partition::Matrix(lengths)) = &ragged {
            shape.count = lengths.iter().sum();
        }
        shape.partition = ragged.unwrap_or_default();
        let Ok(schedule) = Schedule::new(shape.clone()) else {
            // Only blocks of any length have no plan by every algorithm.
            prop_assert_ne!(shape.partition, Partition::Balanced);
            return Ok(());
        };
        prove(&schedule);
        compute(&schedule, seed);
        let time_s = estimate(&shape, DType::F32, &FIGURES);
        prop_assert!(time_s.is_finite() && time_s >= 0.0, "{time_s} s");
        // What ranks bring, or end with, is all there is.
        let held = |role| -> usize {
            let extents = schedule.world_size().ranks().map(|rank| schedule.extent(rank, role));
            extents.flatten().map(|range| range.len()).sum()
        };
        prop_assert!(held(Role::Input).max(held(Role::Output)) >= schedule.space().len());
    }
}
