use proptest::prelude::*;

use super::*;
use crate::{Layout, Rank, Sharding};

fn parameter(name: &str, shape: &[usize], moments: Option<u32>) -> Parameter {
    Parameter { name: name.to_owned(), shape: shape.to_vec(), dtype: DType::F32, moments }
}

fn training(shapes: &[Vec<usize>], ranks: u32) -> Training {
    let parameters = shapes.iter().map(|shape| parameter("p", shape, Some(2)));
    Training::new(parameters.collect(), WorldSize::new(ranks).unwrap())
}

fn of(memory: &RankMemory, phase: Phase) -> Held {
    let found = memory.phases.iter().find(|(when, _)| *when == phase);
    found.unwrap().1
}

const NAMES: [&str; 6] = ["replicated", "zero1", "zero2", "zero3", "zero1-whole", "zero2-whole"];

#[test]
fn gradients_of_a_lone_rank_meet_activations() {
    for (ranks, expected) in [(1, 30), (2, 10)] {
        let mut training = training(&[vec![10]], ranks);
        training.activations =
            Activations { alone: Bytes::new(10), with_gradients: Bytes::new(30) };
        for name in NAMES {
            let held = of(&training.memory(name.parse().unwrap()), Phase::Pass);
            assert_eq!(held.activations, Bytes::new(expected), "{name}");
        }
    }
}

#[test]
fn one_of_several_ranks_has_more_than_a_lone_process() {
    let program = |ranks| {
        let mut training = training(&[vec![10]], ranks);
        training.program = Bytes::new(1 << 30);
        training.memory(Placement::replicated()).peak().1.program
    };
    assert_eq!(program(1), Bytes::new(1 << 30));
    assert!(program(2) > program(1) && program(2) == program(8));
}

/// Of matrices whose rows divide, as the paper has it.
#[test]
fn states_follow_the_table_of_the_paper() {
    let elems = 2 * 1024 * 1024;
    for ranks in [2, 4, 8] {
        let training = training(&vec![vec![1024, 1024]; 2], ranks);
        let n = u64::from(ranks);
        for (name, expected) in [
            ("replicated", 16 * elems),
            ("zero1", 8 * elems + 8 * elems / n),
            ("zero2", 4 * elems + 12 * elems / n),
            ("zero3", 16 * elems / n),
        ] {
            let held = of(&training.memory(name.parse().unwrap()), Phase::Gradients);
            let states = held.parameters + held.gradients + held.optimizer;
            assert_eq!(states.get(), expected, "{name} on {ranks} ranks");
        }
    }
}

#[test]
fn gradients_lie_in_their_buckets() {
    // Eight buckets of 4 MiB, and a bias in the first one's.
    let mut shapes = vec![vec![1024, 1024]; 8];
    shapes.push(vec![10]);
    let mut training = training(&shapes, 2);
    training.caps.bytes_max = 4 << 20;
    let buckets = |training: &Training, name: &str, phase| {
        let held = of(&training.memory(name.parse().unwrap()), phase);
        (held.buckets + held.gradients).get()
    };
    let all = (8 << 22) + 40;
    for phase in [Phase::Pass, Phase::Gradients, Phase::Step] {
        assert_eq!(buckets(&training, "replicated", phase), all);
        assert_eq!(buckets(&training, "zero1", phase), all);
    }
    // Memory for one that fills and two on their way, and the rows of all.
    let lent = (3 << 22) + 40;
    assert_eq!(buckets(&training, "zero2", Phase::Pass), lent);
    assert_eq!(buckets(&training, "zero2", Phase::Gradients), lent + (8 << 21));
    assert_eq!(buckets(&training, "zero3", Phase::Pass), lent + (8 << 21));
    training.micro_batches = 2;
    assert_eq!(buckets(&training, "zero2", Phase::Pass), all);
    assert_eq!(buckets(&training, "replicated", Phase::Pass), all);
}

#[test]
fn a_lone_rank_has_no_buckets_and_every_placement_is_the_same() {
    let training = training(&[vec![2048, 64], vec![64]], 1);
    let whole = training.memory(Placement::replicated());
    assert_eq!(of(&whole, Phase::Gradients).buckets, Bytes::default());
    assert!(whole.phases.iter().all(|(_, held)| held.seen == Bytes::default()));
    for name in NAMES {
        let memory = training.memory(name.parse().unwrap());
        let held = of(&memory, Phase::Gradients);
        let expected = of(&whole, Phase::Gradients);
        assert_eq!(held.gradients + held.optimizer, expected.gradients + expected.optimizer);
    }
}

#[test]
fn frozen_parameters_are_whole_and_have_nothing_else() {
    let trained = parameter("head", &[4096, 16], Some(2));
    let frozen = parameter("body", &[4096, 4096], None);
    let ranks = WorldSize::new(4).unwrap();
    let alone = Training::new(vec![trained.clone()], ranks);
    let both = Training::new(vec![frozen.clone(), trained], ranks);
    for name in NAMES {
        let placement = name.parse().unwrap();
        let (alone, both) = (alone.memory(placement), both.memory(placement));
        for ((_, alone), (_, both)) in alone.phases.iter().zip(&both.phases).skip(1) {
            let expected = Held {
                parameters: alone.parameters + Bytes::of(frozen.elems() as u64, DType::F32),
                ..*alone
            };
            assert_eq!(*both, expected, "{name}");
        }
    }
}

#[test]
fn elements_of_16_bits_have_masters_in_32() {
    let mut parameter = parameter("p", &[1 << 20], Some(2));
    let state = |parameter: &Parameter| {
        let training = Training::new(vec![parameter.clone()], WorldSize::new(1).unwrap());
        let held = of(&training.memory(Placement::replicated()), Phase::Step);
        held.optimizer.get() >> 20
    };
    for (dtype, moments, expected) in [
        (DType::F32, 2, 8),
        (DType::F32, 0, 0),
        (DType::BF16, 2, 12),
        (DType::F16, 1, 8),
        (DType::F64, 2, 16),
    ] {
        parameter = Parameter { dtype, moments: Some(moments), ..parameter };
        assert_eq!(state(&parameter), expected, "{dtype}, {moments} moments");
    }
}

#[test]
fn groups_of_ranks_hold_what_as_many_ranks_alone_would() {
    let shapes = [vec![1024, 512], vec![4096]];
    let mut eight = training(&shapes, 8);
    eight.ranks_per_host = WorldSize::new(2).unwrap();
    let states = |training: &Training, name: &str| {
        let held = of(&training.memory(name.parse().unwrap()), Phase::Gradients);
        (held.parameters, held.gradients, held.optimizer)
    };
    for (groups, alone) in [("zero3@host", "zero3"), ("zero2@2", "zero2")] {
        assert_eq!(states(&eight, groups), states(&training(&shapes, 2), alone));
    }
}

#[test]
fn the_whole_model_is_there_at_the_start_and_for_an_evaluation() {
    let mut training = training(&vec![vec![1024, 1024]; 8], 8);
    let all = Bytes::new(8 << 22);
    let zero3 = training.memory(Placement::zero3());
    assert_eq!(of(&zero3, Phase::Start).parameters, all);
    training.start = Start::OneByOne;
    training.evaluation = Evaluation::Whole;
    let zero3 = training.memory(Placement::zero3());
    assert_eq!(of(&zero3, Phase::Start).parameters, Bytes::new(1 << 22));
    assert_eq!(of(&zero3, Phase::Whole).parameters, all + Bytes::new(1 << 22));
    let zero2 = training.memory(Placement::zero2());
    assert!(zero2.phases.iter().all(|(phase, _)| *phase != Phase::Whole));
}

#[test]
fn a_table_says_what_fits() {
    let mut training = training(&vec![vec![1024, 1024]; 8], 8);
    training.activations = Bytes::new(3 << 20).into();
    let placements = NAMES.map(|name| name.parse().unwrap());
    let table = training.table(placements, Some(Bytes::new(100 << 20)));
    let fitting: Vec<_> = table.fitting().map(|row| row.placement.to_string()).collect();
    assert!(fitting.contains(&"zero3".to_owned()), "{table}");
    assert!(!fitting.contains(&"replicated".to_owned()), "{table}");
    let text = table.to_string();
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(text.contains("8.4 million parameters") && text.contains("fits 100 MiB"), "{text}");
    assert!(line("replicated ").ends_with(" no"), "{text}");
    assert!(line("zero3 ").ends_with(" yes"), "{text}");
    assert_eq!(training.table([], None).rows, []);
}

proptest! {
    /// Whatever the shapes: what is sharded never takes more, all ranks together have each sharded state once, and
    /// buckets have room for the gradients.
    #[test]
    fn counts_are_consistent(
        shapes in prop::collection::vec(prop::collection::vec(1_usize..100, 0..4), 1..12),
        ranks in 1_u32..9,
        micro_batches in 1_u64..3,
        activations in 0_u64..1 << 20,
    ) {
        let mut training = training(&shapes, ranks);
        training.micro_batches = micro_batches;
        training.activations = Bytes::new(activations).into();
        training.caps = Caps { first_bytes_max: 1 << 12, bytes_max: 1 << 14 };
        let elems: usize = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        let all = Bytes::of(elems as u64, DType::F32);
        let mut last = Bytes::new(u64::MAX);
        for name in ["replicated", "zero1", "zero2", "zero3"] {
            let placement: Placement = name.parse().unwrap();
            let memory = training.memory(placement);
            let (_, peak) = memory.peak();
            prop_assert!(memory.phases.iter().all(|(_, held)| held.total() <= peak.total()));
            prop_assert!(memory.resident() >= peak.total());
            let held = of(&memory, Phase::Gradients);
            let states = held.parameters + held.gradients + held.optimizer;
            prop_assert!(states <= last, "{name}");
            last = states;
            let layout = Layout::new(shapes.iter().map(Vec::as_slice), placement, training.ranks);
            let most = training.ranks.ranks().map(|rank: Rank| layout.held(Sharding::Sharded, rank));
            let most = most.max().unwrap() as u64;
            let optimizer = if placement.is_sharded() { most } else { elems as u64 };
            prop_assert!(held.optimizer.get() <= 8 * optimizer);
            prop_assert!(held.optimizer.get() * u64::from(ranks) >= 2 * all.get());
            if ranks > 1 && placement.gradients == Sharding::Replicated {
                prop_assert!(held.buckets + held.gradients >= all);
            }
            prop_assert!(of(&memory, Phase::Pass).activations.get() == activations);
        }
    }
}
