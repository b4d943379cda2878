//! Gradients in the memory of their buckets.

use burn::backend::Flex;

use super::*;
use crate::reducer::timing::Stopwatch;
use crate::reducer::trace::Event;

const PLACEMENTS: [Placement; 4] =
    [Placement::replicated(), Placement::zero1(), Placement::zero2(), Placement::zero3()];

/// The gradients of a model's parameters, each in one dimension, in the memory that it has.
fn flat(model: &Uneven, gradients: &Gradients) -> Vec<Tensor<1>> {
    struct Finder<'a>(&'a Gradients, Vec<Tensor<1>>);
    impl ModuleVisitor for Finder<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = self.0.find(param).unwrap();
            let elems = gradient.shape().num_elements();
            self.1.push(gradient.reshape([elems]));
        }
    }
    let mut finder = Finder(gradients, Vec::new());
    model.visit(&mut finder);
    finder.1
}

/// Where gradients begin in memory.
fn addresses(gradients: Vec<Tensor<1>>) -> Vec<usize> {
    let gradients = gradients.into_iter();
    let address = |gradient: Tensor<1>| {
        let tensor = gradient.try_into_primitive::<Flex>().unwrap();
        tensor.bytes().as_ptr().addr()
    };
    gradients.map(address).collect()
}

/// Where the averages are in their buckets.
fn places(ddp: &Ddp<Uneven>) -> Vec<usize> {
    let (module, none) = (ddp.module(), ddp.no_gradients());
    let mut watch = Stopwatch::default();
    let averages = ddp.reducer.lock().averages(module, none, None, &mut watch);
    addresses(flat(module, &averages.unwrap()))
}

/// The one copy is that into the bucket: what the optimizer gets lies there.
#[test]
fn a_gradient_is_copied_once() {
    for placement in PLACEMENTS {
        on_ranks(2, |world| {
            let model = Uneven::new(&world.device());
            let mut ddp = Ddp::with_config(model, &world, placed(placement)).unwrap();
            for number in 0..3 {
                let indices = share(&world, 0, 4);
                for _ in 0..2 {
                    ddp.no_sync(|model| model.loss(&indices)).unwrap();
                }
                let step = ddp.backward(|model| model.loss(&indices)).unwrap();
                let copies = ddp.trace().events();
                let is_copy = |event: &&Event| matches!(event, Event::Taken { .. });
                assert_eq!(copies.iter().filter(is_copy).count(), ddp.table.len());
                // After the second step buckets are dealt again.
                if number != 1 {
                    let gradients = flat(ddp.module(), &step.gradients);
                    assert_eq!(addresses(gradients), places(&ddp), "{placement}");
                }
            }
        });
    }
}

/// Memory of buckets is used again, unless somebody still has gradients there.
#[test]
fn gradients_that_are_kept_stay_as_they_are() {
    for placement in PLACEMENTS {
        let trained = |keep: bool| {
            on_ranks(2, |world| {
                let model = Uneven::new(&world.device());
                let mut ddp = Ddp::with_config(model, &world, placed(placement)).unwrap();
                let (mut kept, mut used) = (Vec::new(), Vec::new());
                for step in 0..5 {
                    let indices = share(&world, step, 4);
                    ddp.no_sync(|model| model.loss(&indices)).unwrap();
                    let step = ddp.backward(|model| model.loss(&indices)).unwrap();
                    let gradients = flat(ddp.module(), &step.gradients);
                    used.push(addresses(gradients.clone()));
                    if keep {
                        let values = gradient_values(ddp.module(), &step.gradients);
                        kept.push((gradients, values));
                    }
                    // Clipping writes to them, where nobody else has them.
                    let clipped = step.gradients.clip(Clip::Value(1e-4)).unwrap();
                    ddp.step(&mut sgd(), 0.1, clipped).unwrap();
                }
                for (gradients, values) in kept {
                    let gradients = gradients.into_iter();
                    let now = gradients.map(|gradient| gradient.into_data().try_to_vec().ok());
                    assert_eq!(now.collect::<Vec<_>>(), values);
                }
                let is_used_again = used[3] == used[4];
                if placement == Placement::replicated() {
                    assert_eq!(is_used_again, !keep);
                }
                bits(&ddp.whole().unwrap())
            })
        };
        assert_eq!(trained(true), trained(false), "{placement}");
    }
}
