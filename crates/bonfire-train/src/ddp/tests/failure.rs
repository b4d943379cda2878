//! What one rank does wrong, the others hear of.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use bonfire_collective::panic_message;

use super::*;
use crate::Placement;

fn peer_failed(error: &TrainError) -> Option<(u32, &str)> {
    match error {
        TrainError::Collective(CollectiveError::PeerFailed { rank, cause }) => {
            Some((rank.get(), cause))
        }
        _ => None,
    }
}

#[test]
fn a_model_of_another_shape_is_a_typed_error_on_every_rank() {
    let errors = on_ranks(3, |world| {
        let width = if world.rank().get() == 2 { 5 } else { 4 };
        let model: Linear = LinearConfig::new(3, width).init(&world.device());
        Ddp::new(model, &world).unwrap_err()
    });
    for error in errors {
        let TrainError::ModelMismatch(difference) = &error else {
            panic!("expected a mismatch, got {error}");
        };
        assert_eq!(difference.subject, "parameter weight");
        assert_eq!((difference.rank.get(), difference.other_rank.get()), (0, 2));
        let message = error.to_string();
        assert!(message.contains("[3, 4]") && message.contains("[3, 5]"), "{message}");
    }
}

#[test]
fn other_bucket_sizes_on_one_rank_are_found_at_the_start() {
    let errors = on_ranks(2, |world| {
        let config =
            DdpConfig { bucket_bytes_max: 1000 + world.rank().index(), ..DdpConfig::default() };
        Ddp::with_config(Mlp::new(1, &world.device()), &world, config).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, TrainError::ModelMismatch(_)), "{error}");
    }
}

#[test]
fn an_error_of_one_forward_pass_ends_the_step_of_all() {
    let config = small_buckets();
    let errors = on_ranks(3, |world| {
        let model = Mlp::new(1, &world.device());
        let mut ddp = Ddp::with_config(model, &world, config.clone()).unwrap();
        let mut step = |indices: &[usize]| {
            ddp.backward(|model| {
                let tired = indices[0] >= 4 && world.rank().get() == 1;
                if tired { Err("out of data") } else { Ok(model.loss(indices)) }
            })
        };
        // A slow rank may still be in the first step when it hears of the second.
        let first = step(&[0, 1]).and_then(|_| step(&[4, 5])).unwrap_err();
        // The group has ended: there is no second try.
        let second = step(&[0, 1]).unwrap_err();
        assert!(peer_failed(&second).is_some(), "{second}");
        first
    });
    assert!(matches!(errors[1], TrainError::Forward(_)), "{}", errors[1]);
    for other in [0, 2] {
        let (rank, cause) = peer_failed(&errors[other]).unwrap();
        assert_eq!(rank, 1);
        assert!(cause.contains("out of data"), "{cause}");
    }
}

#[test]
fn a_panic_in_one_forward_pass_is_a_peer_failure_on_the_others() {
    let outcomes = on_ranks(2, |world| {
        let mut ddp = Ddp::new(Mlp::new(1, &world.device()), &world).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            ddp.backward(|model| {
                assert!(world.is_main(), "this rank gives up");
                model.loss(&[1])
            })
        }));
        outcome.map(|result| result.unwrap_err())
    });
    assert!(outcomes[1].is_err(), "the panic goes on where it happened");
    let error = outcomes[0].as_ref().unwrap();
    let (rank, cause) = peer_failed(error).unwrap();
    assert_eq!(rank, 1);
    assert!(cause.contains("this rank gives up"), "{cause}");
}

#[test]
fn survivors_of_a_rank_that_dies_in_a_pass_of_zero3_show_no_panic() {
    const CAUSE: &str = "the battery of rank 1 is empty";
    static IS_SHOWN: AtomicBool = AtomicBool::new(false);
    let shows = take_hook();
    set_hook(Box::new(move |panic| {
        IS_SHOWN.fetch_or(panic_message(panic.payload()).contains(CAUSE), Ordering::Relaxed);
        shows(panic);
    }));
    let all_run_the_pass = Barrier::new(3);
    let errors = on_ranks(3, |world| {
        let config = small_buckets().with_placement(Placement::zero3());
        let model = placement::Uneven::new(&world.device());
        let mut ddp = Ddp::with_config(model, &world, config).unwrap();
        let pass = |model: &placement::Uneven| {
            all_run_the_pass.wait();
            if world.rank().get() == 1 {
                world.group().abort(CAUSE);
            }
            model.loss(&[world.rank().index()])
        };
        ddp.backward(pass).unwrap_err().to_string()
    });
    assert!(errors[0].contains(CAUSE) && errors[2].contains(CAUSE), "{errors:?}");
    assert!(!IS_SHOWN.load(Ordering::Relaxed), "it was printed as a panic");
}

#[test]
fn weighting_some_losses_of_a_step_only_is_an_error() {
    on_ranks(1, |world| {
        let mut ddp = Ddp::new(Mlp::new(1, &world.device()), &world).unwrap();
        ddp.no_sync(|model| model.loss(&[1])).unwrap();
        let error = ddp.backward(|model| Loss::mean_over(model.loss(&[1]), 1)).unwrap_err();
        assert!(matches!(error, TrainError::MixedWeights), "{error}");
    });
}

#[test]
fn a_backward_pass_too_many_is_found_at_once_and_named_with_its_line_and_bucket() {
    for placement in [Placement::replicated(), Placement::zero1()] {
        let errors = on_ranks(2, |world| {
            let config = small_buckets().with_placement(placement);
            let model = Mlp::new(1, &world.device());
            let mut ddp = Ddp::with_config(model, &world, config).unwrap();
            let loss = |model: &Mlp| model.loss(&[1, 2]);
            for step in 0..5 {
                let done = ddp.backward(loss)?;
                if step == 2 && world.is_main() {
                    ddp.backward(loss)?;
                }
                ddp.step(&mut sgd(), 0.1, done.gradients)?;
            }
            world.group().barrier()?;
            Ok::<_, TrainError>(())
        });
        let parts = [
            "rank 0 is in Ddp::backward (bucket 0: ",
            "of step 2 (",
            "rank 1 is in ",
            concat!(" at ", file!()),
            "Do all ranks have equally many batches?",
        ];
        assert_each_says(errors.into_iter().map(Result::unwrap_err), &parts);
    }
}

#[test]
fn a_rank_with_more_batches_hears_which_call_it_is_alone_in() {
    let errors = on_ranks(2, |world| {
        let mut ddp = Ddp::new(Mlp::new(1, &world.device()), &world).unwrap();
        for _ in 0..2 + world.rank().get() {
            ddp.backward(|model| model.loss(&[1, 2]))?;
        }
        world.group().barrier()?;
        Ok::<_, TrainError>(())
    });
    let parts = ["rank 1 is in Ddp::backward (bucket 0: ", "barrier #"];
    assert_each_says(errors.into_iter().map(Result::unwrap_err), &parts);
}

/// A rank whose last step had no samples would end its process without leaving the group, and the others would fail.
#[test]
fn a_pass_without_samples_does_not_hold_the_group_after_its_model() {
    let held = on_ranks(2, |world| {
        let mut ddp = Ddp::new(Mlp::new(1, &world.device()), &world).unwrap();
        let samples = usize::from(world.is_main());
        let step = ddp.backward(|model| Loss::mean_over(model.loss(&[1]), samples));
        drop(step.unwrap());
        let reducer = Arc::downgrade(&ddp.reducer);
        drop(ddp);
        reducer.upgrade().is_some()
    });
    assert_eq!(held, [false, false]);
}
