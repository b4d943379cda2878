use super::*;

const FLOATS: DType = DType::F32;

/// As between two processes of this machine, or two machines on a fast network.
fn figures() -> LinkFigures {
    let link = |alpha_s, beta_s_per_byte| LinkCosts { alpha_s, beta_s_per_byte };
    LinkFigures {
        intra_host: link(1e-6, 0.1e-9),
        inter_host: link(20e-6, 1e-9),
        gamma_s_per_byte: 0.05e-9,
    }
}

fn selector(hosts: &[u32], options: GroupOptions) -> Selector {
    Selector::new(Rank::new(0), Topology::of(hosts), options, 256 << 10)
}

fn any_order() -> GroupOptions {
    GroupOptions { order: FoldOrder::Any, ..GroupOptions::default() }
}

fn sum(dtype: DType, count: usize) -> Question<'static> {
    Question {
        collective: Collective::AllReduce,
        reduce: Some(ReduceOp::Sum),
        dtype,
        count,
        partition: &Partition::Balanced,
    }
}

fn gather(count: usize) -> Question<'static> {
    Question { collective: Collective::AllGather, reduce: None, ..sum(FLOATS, count) }
}

#[test]
fn what_is_asked_for_is_used_where_it_exists() {
    let options = GroupOptions {
        algorithm: Some(Algorithm::Ring),
        overrides: "all_gather=one_shot".parse().unwrap(),
        ..GroupOptions::default()
    };
    let mut selector = selector(&[0, 0, 0], options);
    let barrier = Question { collective: Collective::Barrier, reduce: None, ..sum(DType::U8, 0) };
    for (question, expected) in [
        (sum(FLOATS, 4), Algorithm::Ring),
        (gather(12), Algorithm::OneShot),
        (barrier, Algorithm::Dissemination),
    ] {
        assert!(!selector.wants_figures(&question), "nothing depends on them");
        assert_eq!(selector.select(&question), expected);
        assert_eq!(selector.known(&question), Some(expected));
    }
}

#[test]
fn sums_of_floats_keep_the_canonical_order_unless_any_will_do() {
    let floats = sum(FLOATS, 1 << 20);
    let canonical = selector(&[0; 4], GroupOptions::default());
    for algorithm in canonical.allowed(&floats) {
        assert!(floats.is_canonical_by(algorithm), "{algorithm}");
    }
    assert!(!floats.is_canonical_by(Algorithm::Ring));
    let any = selector(&[0; 4], any_order());
    assert!(any.allowed(&floats).contains(&Algorithm::Ring));
    // Whatever rounds nothing has the same bits in every order.
    let exact = [
        sum(DType::I32, 1 << 20),
        gather(1 << 20),
        Question { reduce: Some(ReduceOp::Max), ..floats },
    ];
    for question in exact {
        assert_eq!(canonical.allowed(&question), any.allowed(&question));
    }
}

#[test]
fn small_messages_take_one_round_and_large_ones_the_fewest_bytes() {
    let mut selector = selector(&[0; 4], GroupOptions::default());
    assert!(selector.wants_figures(&sum(FLOATS, 1)));
    selector.learn(figures());
    assert!(!selector.wants_figures(&sum(FLOATS, 1)));
    assert_eq!(selector.select(&sum(FLOATS, 1)), Algorithm::OneShot);
    assert_eq!(selector.select(&sum(FLOATS, 1 << 22)), Algorithm::TwoShot);
}

/// The fewest bytes between hosts, where they have several ranks each. Folds of 16-bit floats run in
/// another type, so that a chain would round them on the way.
#[test]
fn several_hosts_take_the_chain_where_it_has_the_bits_of_one() {
    let mut two = selector(&[0, 0, 0, 0, 1, 1, 1, 1], GroupOptions::default());
    two.learn(figures());
    let large = |dtype| sum(dtype, 1 << 22);
    assert_eq!(two.select(&large(FLOATS)), Algorithm::Chain);
    assert_eq!(two.known(&large(DType::BF16)), None, "another choice");
    assert_eq!(two.select(&large(DType::BF16)), Algorithm::TwoShot);
    assert_eq!(two.select(&sum(FLOATS, 1)), Algorithm::OneShot);
    let scatter = Question { collective: Collective::ReduceScatter, ..large(FLOATS) };
    assert_eq!(two.select(&scatter), Algorithm::Chain);
    assert_eq!(two.select(&gather(1 << 22)), Algorithm::Hierarchical);
    // One rank each, or ranks that are assigned to hosts in turn: the chain would only be longer.
    for hosts in [[0, 1, 2, 3], [0, 1, 0, 1]] {
        let mut assigned = selector(&hosts, GroupOptions::default());
        assigned.learn(figures());
        assert_eq!(assigned.select(&large(FLOATS)), Algorithm::TwoShot, "{hosts:?}");
    }
    // Where ranks had to wait for a core, too.
    let mut busy = selector(&[0, 0, 0, 0, 1, 1, 1, 1], GroupOptions::default());
    let mut late = figures();
    late.intra_host.alpha_s = 5e-3;
    busy.learn(late);
    assert_eq!(busy.select(&large(FLOATS)), Algorithm::Chain);
    let one = selector(&[0; 4], GroupOptions::default());
    assert!(!one.allowed(&large(FLOATS)).contains(&Algorithm::Chain));
}

#[test]
fn operations_of_about_one_size_share_a_choice_whichever_comes_first() {
    let choices = |counts: &[usize]| {
        let mut selector = selector(&[0, 0, 1, 1], any_order());
        selector.learn(figures());
        let mut choices: Vec<(usize, Algorithm)> = counts
            .iter()
            .map(|count| {
                let question = sum(FLOATS, *count);
                let known = selector.known(&question);
                (*count, known.unwrap_or_else(|| selector.select(&question)))
            })
            .collect();
        choices.sort();
        choices
    };
    let counts: Vec<usize> = (0..22).flat_map(|bit| [1 << bit, (1 << bit) + 1]).collect();
    let mut reversed = counts.clone();
    reversed.reverse();
    assert_eq!(choices(&counts), choices(&reversed));
}

#[test]
fn every_operation_gets_an_algorithm_that_has_a_plan() {
    let root = Rank::new(2);
    let collectives = [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast { root },
        Collective::Barrier,
        Collective::Reduce { root },
        Collective::Gather { root },
        Collective::Scatter { root },
        Collective::AllToAll,
        Collective::Transfer { source: root, target: Rank::new(0) },
        Collective::Exchange { first: Rank::new(0), second: root },
    ];
    for hosts in [[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 2]] {
        for order in [FoldOrder::Canonical, FoldOrder::Any] {
            let options = GroupOptions { order, ..GroupOptions::default() };
            let mut selector = selector(&hosts, options);
            selector.learn(figures());
            for collective in collectives {
                for count in [0, 16, 1 << 16, 1 << 24] {
                    let is_barrier = collective == Collective::Barrier;
                    let question = Question {
                        collective,
                        reduce: collective.reduces().then_some(ReduceOp::Sum),
                        count: if is_barrier { 0 } else { count },
                        ..sum(FLOATS, 0)
                    };
                    let algorithm = selector.select(&question);
                    assert_ne!(algorithm, Algorithm::ZeroCopy);
                    let shape = selector.shape(&question, question.count, algorithm);
                    assert!(Schedule::new(shape).is_ok(), "{collective} by {algorithm}");
                }
            }
        }
    }
}

#[test]
fn a_rank_that_asks_for_the_impossible_chooses_later_as_the_others() {
    let broadcast = |root| Question {
        collective: Collective::Broadcast { root: Rank::new(root) },
        reduce: None,
        ..sum(FLOATS, 1 << 22)
    };
    let [mut careless, mut careful] = [(); 2].map(|()| {
        let mut selector = selector(&[0; 4], GroupOptions::default());
        selector.learn(figures());
        selector
    });
    careless.select(&broadcast(9));
    assert_eq!(careless.known(&broadcast(1)), None);
    // Nor does it measure anything, for which the others are not there.
    let unequal = Question { collective: Collective::AllToAll, reduce: None, ..sum(FLOATS, 17) };
    let fresh = selector(&[0; 4], GroupOptions::default());
    assert!(!fresh.wants_figures(&unequal) && !fresh.wants_figures(&broadcast(9)));
    assert!(fresh.wants_figures(&broadcast(1)));
    assert_eq!(careless.select(&broadcast(1)), careful.select(&broadcast(1)));
}

#[test]
fn sizes_are_written_for_people() {
    let sizes = [1, 1023, 1024, 1 << 20, 5 << 30].map(|bytes| Size(bytes).to_string());
    assert_eq!(sizes, ["1 B", "1023 B", "1 KiB", "1 MiB", "5 GiB"]);
}
