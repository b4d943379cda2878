//! The decision on matrices as machines have them.

use super::*;

const LANES: u32 = 4;
const MIB: usize = 1 << 20;

/// Pairs at what `rate` says for a reader and an owner, give or take the noise of a measurement.
fn pairs(world: u32, rate: impl Fn(u32, u32) -> f64) -> PairBandwidths {
    let mut noise = 7_u32;
    let mut figure = |reader: u32, owner: u32| {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let percent = f64::from(noise >> 16) / 65_536.0 * 20.0 - 10.0;
        if reader == owner {
            return 0.0;
        }
        rate(reader, owner) * (1.0 + percent / 100.0)
    };
    let cells = (0..world).flat_map(|reader| (0..world).map(move |owner| (reader, owner)));
    let cells = cells.map(|(reader, owner)| figure(reader, owner)).collect();
    PairBandwidths::new(WorldSize::new(world).unwrap(), cells)
}

fn choice(world: u32, rate: impl Fn(u32, u32) -> f64) -> CudaChoice {
    CudaChoice::new(Ground::Measured(pairs(world, rate)), LANES)
}

/// How far apart on a ring.
fn distance(world: u32, a: u32, b: u32) -> u32 {
    let apart = a.abs_diff(b);
    apart.min(world - apart)
}

const ALL: [Freedom; 3] = [Freedom::Whole, Freedom::Canonical, Freedom::Any];

fn assert_direct(choice: &CudaChoice) {
    for bytes in [1, MIB, 64 * MIB, 4096 * MIB] {
        for freedom in ALL {
            let algorithm = choice.algorithm(bytes, freedom);
            assert_eq!(algorithm, CudaAlgorithm::Direct, "{bytes} bytes: {choice}");
        }
    }
}

#[test]
fn pairs_behind_one_switch_are_direct_at_every_size() {
    for world in [1, 2, 3, 4, 8, 16] {
        // NVSwitch, and a switch of PCIe.
        assert_direct(&choice(world, |_, _| 370.0));
        assert_direct(&choice(world, |_, _| 24.0));
    }
}

#[test]
fn what_shares_a_device_or_goes_through_the_host_needs_no_figures() {
    for ground in [Ground::OneDevice, Ground::Host] {
        let choice = CudaChoice::new(ground, LANES);
        assert_direct(&choice);
        assert_eq!(choice.bandwidths(), None);
    }
}

#[test]
fn where_only_neighbours_are_fast_large_sums_go_from_neighbour_to_neighbour() {
    for world in [4, 6, 8] {
        let choice = choice(world, |a, b| match distance(world, a, b) {
            1 => 45.0,
            _ => 5.0,
        });
        for bytes in [1 << 10, 64 << 10] {
            for freedom in ALL {
                let algorithm = choice.algorithm(bytes, freedom);
                assert_eq!(algorithm, CudaAlgorithm::Direct, "{world} ranks: {choice}");
            }
        }
        for bytes in [16 * MIB, 256 * MIB, 4096 * MIB] {
            let by = |freedom| choice.algorithm(bytes, freedom);
            assert_eq!(by(Freedom::Any), CudaAlgorithm::Ring, "{choice}");
            assert_eq!(by(Freedom::Canonical), CudaAlgorithm::Chain, "{choice}");
            assert_eq!(by(Freedom::Whole), CudaAlgorithm::Direct, "{choice}");
        }
    }
}

#[test]
fn two_sockets_with_one_link_between_them_take_a_ring_for_large_sums_in_any_order() {
    // Four devices on each; the more pairs of a round cross, the less each has of the link.
    let choice = choice(8, |reader, owner| {
        let apart = (reader + 8 - owner) % 8;
        let crosses = reader / 4 != owner / 4;
        if crosses { 20.0 / f64::from(apart.min(8 - apart)) } else { 24.0 }
    });
    let by = |bytes, freedom| choice.algorithm(bytes, freedom);
    assert_eq!(by(256 << 10, Freedom::Any), CudaAlgorithm::Direct, "{choice}");
    assert_eq!(by(256 * MIB, Freedom::Any), CudaAlgorithm::Ring, "{choice}");
}

#[test]
fn bridges_between_pairs_do_not_help_who_must_cross_beside_them() {
    // NVLink within {0, 1} and {2, 3}, PCIe between: a ring crosses it, too.
    let choice = choice(4, |a, b| if a / 2 == b / 2 { 100.0 } else { 22.0 });
    assert_direct(&choice);
}

#[test]
fn one_slow_hop_between_neighbours_slows_rings_and_chains() {
    let choice = choice(4, |a, b| if a.min(b) == 1 && a.max(b) == 2 { 3.0 } else { 45.0 });
    assert_direct(&choice);
}

#[test]
fn a_chain_does_without_a_fast_way_from_the_last_to_the_first() {
    let choice = choice(4, |a, b| if a.abs_diff(b) == 1 { 45.0 } else { 2.0 });
    assert_eq!(choice.algorithm(256 * MIB, Freedom::Canonical), CudaAlgorithm::Chain, "{choice}");
    assert_eq!(choice.algorithm(256 * MIB, Freedom::Any), CudaAlgorithm::Direct, "{choice}");
}

#[test]
fn sizes_change_at_powers_of_two_and_never_back() {
    let choice = choice(4, |a, b| if distance(4, a, b) == 1 { 45.0 } else { 5.0 });
    for from in [choice.chain_from(), choice.ring_from()] {
        assert!(from.unwrap().is_power_of_two(), "{choice}");
    }
    for freedom in ALL {
        let mut last = CudaAlgorithm::Direct;
        for bytes in (10..40).map(|shift| 1_usize << shift) {
            let now = choice.algorithm(bytes, freedom);
            assert!(last == CudaAlgorithm::Direct || now == last, "{choice}");
            last = now;
        }
    }
}

#[test]
fn noise_of_a_tenth_changes_nothing() {
    let measured = |seed: u32| {
        choice(8, |a, b| {
            let wobble = f64::from((a * 31 + b * 17 + seed) % 21) / 100.0 - 0.1;
            let rate = if distance(8, a, b) == 1 { 45.0 } else { 5.0 };
            rate * (1.0 + wobble)
        })
    };
    let first = measured(0);
    for seed in 1..50 {
        let other = measured(seed);
        for bytes in [64 << 10, 64 * MIB, 1024 * MIB] {
            for freedom in ALL {
                let pair = [&first, &other].map(|choice| choice.algorithm(bytes, freedom));
                assert_eq!(pair[0], pair[1], "{bytes} bytes: {first} and {other}");
            }
        }
    }
}

#[test]
fn what_is_asked_for_is_done_at_every_size() {
    for asked in [CudaAlgorithm::Direct, CudaAlgorithm::Ring, CudaAlgorithm::Chain] {
        let choice = CudaChoice::new(Ground::Asked(asked), LANES);
        for freedom in ALL {
            assert_eq!(choice.algorithm(8, freedom), asked);
            assert_eq!(choice.algorithm(256 * MIB, freedom), asked);
        }
    }
    // What is too large for a one-shot is direct.
    let choice = CudaChoice::new(Ground::Asked(CudaAlgorithm::OneShot), LANES);
    assert_direct(&choice);
}

#[test]
fn sums_of_halves_round_once_and_what_rounds_nothing_is_free() {
    use FoldOrder::{Any, Canonical};
    for dtype in [DType::F16, DType::BF16] {
        let of = |order, reduce| Freedom::of(order, dtype, reduce);
        assert_eq!(of(Canonical, ReduceOp::Mean), Freedom::Whole, "{dtype}");
        assert_eq!(of(Canonical, ReduceOp::Max), Freedom::Any, "{dtype}");
        assert_eq!(of(Any, ReduceOp::Sum), Freedom::Any, "{dtype}");
    }
    for dtype in [DType::F32, DType::F64] {
        let freedom = Freedom::of(Canonical, dtype, ReduceOp::Mean);
        assert_eq!(freedom, Freedom::Canonical, "{dtype}");
    }
    let freedom = Freedom::of(Canonical, DType::I32, ReduceOp::Sum);
    assert_eq!(freedom, Freedom::Any);
}

#[test]
fn the_more_ranks_send_everything_the_sooner_two_shots_take_over() {
    // Two ranks take one-shots as far as there are any.
    let two = choice(2, |_, _| 370.0).two_shot_from().unwrap();
    assert!(two > crate::CudaOptions::default().one_shot_bytes_max, "{two} bytes");
    let [four, eight] = [4, 8].map(|world| choice(world, |_, _| 370.0).two_shot_from().unwrap());
    assert!(eight <= four, "{eight} and {four} bytes");
    // The faster the links, the more bytes a wait is worth.
    let slow = choice(8, |_, _| 24.0).two_shot_from().unwrap();
    assert!(slow < eight, "{slow} and {eight} bytes");
    assert!(choice(8, |_, _| 24.0).prefers_two_shot(slow));
    assert!(!choice(8, |_, _| 24.0).prefers_two_shot(slow - 1));
    let unmeasured = CudaChoice::new(Ground::OneDevice, LANES);
    assert!(!unmeasured.prefers_two_shot(usize::MAX));
}
