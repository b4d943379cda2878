//! What goes wrong is named on all ranks.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bonfire_collective::Rank;

use super::*;

type Outcome<T> = Result<T, PipelineError>;

#[derive(Clone, Copy)]
enum Way {
    Threads,
    /// As processes do, with connections of their own, though they are threads here.
    Processes,
}

/// What each rank comes to that calls `body` with its pipeline; nothing where that panics.
fn outcomes<T: Send>(
    ranks: u32,
    (kind, way): (Kind, Way),
    body: impl Fn(&mut Pipeline<Part>, &World) -> Outcome<T> + Sync,
) -> Vec<Option<Outcome<T>>> {
    let schedule = schedule(kind, ranks);
    let body = &body;
    let rank = |group| {
        let world = world(group);
        let stages = parts(&schedule, &world);
        // The pipeline and the world end with the panic, as in a thread of a program.
        let schedule = schedule.clone();
        let run = move || {
            let mut pipeline = Pipeline::new(stages, schedule, &world)?;
            body(&mut pipeline, &world)
        };
        catch_unwind(AssertUnwindSafe(run)).ok()
    };
    match way {
        Way::Threads => local(ranks, GroupOptions::default(), rank),
        Way::Processes => connected(ranks, GroupOptions::default(), rank),
    }
}

/// That all ranks but one hear of the failure of that one, whose words these are among.
fn assert_named<T>(outcomes: Vec<Option<Outcome<T>>>, culprit: u32, words: &str) {
    let ranks = (0..).map(Rank::new).zip(outcomes);
    for (me, outcome) in ranks.filter(|(rank, _)| rank.get() != culprit) {
        let error = outcome.expect("only one rank panics").err();
        match error.expect("no rank gets through") {
            PipelineError::Collective(CollectiveError::PeerFailed { rank, cause }) => {
                assert_eq!(rank.get(), culprit, "rank {me}: {cause}");
                assert!(cause.contains(words), "rank {me}: {cause}");
            }
            other => panic!("rank {me}: {other}"),
        }
    }
}

#[test]
fn a_panic_in_a_stage_is_named_with_its_pass() {
    let [one, both] = [Kind::OneForwardOneBackward, Kind::ZeroBubbleV];
    for how in [(one, Way::Threads), (both, Way::Threads), (one, Way::Processes)] {
        let all = outcomes(4, how, |pipeline, world| {
            let batches = batches(0, 2, &world.device().autodiff());
            pipeline.backward(&batches, |part, pass| {
                let is_it = (pass.stage(), pass.micro_batch_number()) == (2, 3);
                assert!(!is_it, "a wrong number");
                part.stage(pass)
            })
        });
        assert!(all[2].is_none());
        assert_named(all, 2, "panicked in 2F3: a wrong number");
    }
}

#[test]
fn an_error_of_a_stage_is_named_with_its_pass() {
    let all = outcomes(3, (Kind::OneForwardOneBackward, Way::Threads), |pipeline, world| {
        let batches = batches(0, 2, &world.device().autodiff());
        pipeline.backward(&batches, |part, pass| match (pass.stage(), pass.micro_batch_number()) {
            (0, 5) => Err("no such word".into()),
            _ => Ok::<_, Box<dyn Error + Send + Sync>>(part.stage(pass)?),
        })
    });
    let Some(Err(PipelineError::Forward { pass, source })) = &all[0] else { panic!("{all:?}") };
    assert_eq!([pass.to_string(), source.to_string()], ["0F5", "no such word"]);
    assert_named(all, 0, "the forward pass 0F5 failed: no such word");
}

#[test]
fn a_rank_that_leaves_is_named() {
    let all = outcomes(3, (Kind::GPipe, Way::Processes), |pipeline, world| {
        if pipeline.schedule().owner(1) == world.rank() {
            panic!("enough");
        }
        pipeline.backward(&batches(0, 2, &world.device().autodiff()), Part::stage)
    });
    assert_named(all, 1, "panic");
}

#[test]
fn a_shorter_micro_batch_is_named() {
    let all = outcomes(3, (Kind::GPipe, Way::Threads), |pipeline, world| {
        let mut two = batches(0, 2, &world.device().autodiff());
        two[7] = batches(0, 1, &world.device().autodiff()).remove(7);
        pipeline.backward(&two, Part::stage)
    });
    let Some(Err(PipelineError::OtherOutput { stage: 0, micro_batch: 7, .. })) = &all[0] else {
        panic!("{all:?}");
    };
    let words = "hands on f32 [1, 3, 24] for micro-batch 7, where it handed on f32 [2, 3, 24]";
    assert_named(all, 0, words);
}

#[test]
fn a_shape_is_for_all_steps() {
    let all = outcomes(2, (Kind::OneForwardOneBackward, Way::Threads), |pipeline, world| {
        pipeline.backward(&batches(0, 2, &world.device().autodiff()), Part::stage)?;
        pipeline.backward(&batches(1, 1, &world.device().autodiff()), Part::stage)
    });
    assert_named(all, 0, "let all micro-batches have the same size");
}

#[test]
fn too_few_micro_batches_are_named() {
    let all = outcomes(2, (Kind::OneForwardOneBackward, Way::Threads), |pipeline, world| {
        let mut batches = batches(0, 2, &world.device().autodiff());
        if world.is_main() {
            batches.pop();
        }
        pipeline.backward(&batches, Part::stage)
    });
    assert_named(all, 0, "7 micro-batches and the schedule is for 8");
}

#[test]
fn what_is_no_loss_and_what_is_no_input_is_named() {
    let all = outcomes(2, (Kind::GPipe, Way::Threads), |pipeline, world| {
        let batches = batches(0, 2, &world.device().autodiff());
        pipeline.backward(&batches, |part, pass| {
            let output = part.stage(pass)?;
            Ok::<_, PipelineError>(if pass.is_last() {
                output.and(Tensor::<1>::zeros([2], &world.device()))
            } else {
                output
            })
        })
    });
    assert_named(all, 1, "the last stage returns f32 [1] and f32 [2], which is not a loss");

    let all = outcomes(2, (Kind::GPipe, Way::Threads), |pipeline, world| {
        let batches = batches(0, 2, &world.device().autodiff());
        pipeline.backward(&batches, |part, pass| {
            if pass.is_last() {
                let _: Tensor<2> = pass.input()?;
            }
            part.stage(pass)
        })
    });
    let words = "asks for a tensor of 2 dimensions as its input 0, and is given f32 [2, 3, 24]";
    assert_named(all, 1, words);
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |ranks, words, make: &(dyn Fn(World) -> Outcome<Pipeline<Part>> + Sync)| {
        assert_each_says(on_ranks(ranks, |world| make(world).unwrap_err()), &[words]);
    };
    // A schedule for other ranks.
    refused(2, "is for 3 ranks", &|world| {
        let schedule = schedule(Kind::GPipe, 3);
        Pipeline::new(parts(&schedule, &world), schedule, &world)
    });
    // Another schedule than that of rank 0.
    refused(2, "rank 1 has another schedule", &|world| {
        let kind = [Kind::GPipe, Kind::OneForwardOneBackward][world.rank().index()];
        let schedule = schedule(kind, 2);
        Pipeline::new(parts(&schedule, &world), schedule, &world)
    });
    // A stage too many.
    refused(2, "was given 2 stages", &|world| {
        let schedule = schedule(Kind::GPipe, 2);
        let mut stages = parts(&schedule, &world);
        if world.is_main() {
            stages.push(stages[0].clone());
        }
        Pipeline::new(stages, schedule, &world)
    });
    // Parameters in shards.
    refused(1, "cannot have placement zero3", &|world| {
        let schedule = schedule(Kind::GPipe, 1);
        let config = DdpConfig::default().with_placement(Placement::zero3());
        let axes = Axes { stages: &world, data: &world };
        Pipeline::with_config(parts(&schedule, &world), schedule, axes, config)
    });
}
