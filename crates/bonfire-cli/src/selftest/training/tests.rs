//! The trials on the CPU.

use std::time::Duration;

use bonfire_collective::WorldSize;
use bonfire_testkit::Watchdog;
use bonfire_train::{DeviceKind, GradientRoute};

use super::network::Size;
use super::pace::pace;
use super::parity::{Learnt, TOLERANCE, compare, learn};
use super::place::{Place, on_threads};

const LIMIT: Duration = Duration::from_secs(120);

fn place() -> Place {
    Place { kind: DeviceKind::Cpu, timeout: Duration::from_secs(60) }
}

fn learnt(ranks: u32) -> Vec<Learnt> {
    let ranks = WorldSize::new(ranks).unwrap();
    on_threads(&place(), ranks, |world| learn(world, GradientRoute::Host)).unwrap()
}

#[test]
fn several_ranks_learn_what_one_does() {
    let _watchdog = Watchdog::start("parity of ranks", LIMIT);
    let alone = learnt(1);
    for ranks in [2, 3] {
        let parity = compare(&[("through the host", learnt(ranks))], &alone[0]).unwrap();
        assert_eq!(parity.parameters, Size::SMALL.parameters());
        assert!(parity.distance < 1e-4, "{}", parity.distance);
    }
}

#[test]
fn what_differs_is_named() {
    let of = |value: f32| Learnt { values: vec![1.0, value] };
    let wrong = |ways: &[(&str, Vec<Learnt>)]| match compare(ways, &of(0.5)) {
        Err(what) => what.to_string(),
        Ok(parity) => panic!("{parity:?}"),
    };
    let what = wrong(&[("here", vec![of(0.5), of(0.500_001)])]);
    assert!(
        what.starts_with("rank 1 has other parameters than rank 0 with gradients here"),
        "{what}"
    );
    let what = wrong(&[("here", vec![of(0.5)]), ("there", vec![of(0.501)])]);
    assert!(what.starts_with("parameters with gradients on another way"), "{what}");
    let near = [("here", vec![of(0.5)]), ("there", vec![of(0.500_000_1)])];
    assert!(compare(&near, &of(0.5)).unwrap().apart > 0.0);
    let far = 0.5 + 2.0 * TOLERANCE as f32;
    assert!(wrong(&[("here", vec![of(far)])]).contains("from one rank"));
    assert!(wrong(&[("here", vec![of(f32::NAN)])]).contains("from one rank"));
    assert!(compare(&[("here", vec![of(0.500_01)])], &of(0.5)).is_ok());
}

#[test]
fn steps_are_timed_with_one_rank_and_with_two() {
    let _watchdog = Watchdog::start("the pace of ranks", LIMIT);
    for ranks in [1, 2] {
        let ranks = WorldSize::new(ranks).unwrap();
        for pace in on_threads(&place(), ranks, |world| pace(world, Size::SMALL, 3)).unwrap() {
            assert!(pace.plain > Duration::ZERO && pace.ratio > 0.0, "{pace:?}");
            assert!(pace.synchronised > Duration::ZERO, "{pace:?}");
            assert_eq!(pace.communication.is_some(), ranks.get() > 1, "{pace:?}");
        }
    }
}
