//! Gradients travel while the backward pass still runs: shown by the order of events.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients as Tape;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::{Autodiff, Flex};
use std::time::Instant;

use super::*;
use crate::reducer::trace::{Event, Trace};
use crate::{GradientCompression, GradientRoute, NormGroup, PowerSgdConfig};

/// An operation that does nothing but mark when the backward pass comes by.
#[derive(Clone, Debug)]
struct Probe {
    mark: &'static str,
    watched: Watched,
}

/// What probes look at and write to.
#[derive(Clone, Debug)]
struct Watched {
    trace: Trace,
    reducer: Arc<Mutex<Reducer>>,
}

impl Watched {
    fn new<M: Module>(ddp: &Ddp<M>) -> Self {
        Self { trace: ddp.trace(), reducer: Arc::clone(&ddp.reducer) }
    }

    /// Until the ranks know what the batches of all count: before that nothing can travel, and how
    /// long it takes is chance in passes as short as these.
    fn wait_for_the_weights(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.reducer.lock().is_ready() {
            assert!(Instant::now() < deadline, "the weights never came");
            std::thread::yield_now();
        }
    }
}

impl Backward<Flex, 1> for Probe {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, tape: &mut Tape, _checkpointer: &mut Checkpointer) {
        let gradient = tape.consume::<Flex>(&ops.node);
        self.watched.trace.mark(self.mark);
        self.watched.wait_for_the_weights();
        if let [Some(parent)] = ops.parents {
            tape.register::<Flex>(parent.id, gradient);
        }
    }
}

fn probe<const D: usize>(tensor: Tensor<D>, mark: &'static str, watched: &Watched) -> Tensor<D> {
    let watched = watched.clone();
    let primitive = tensor.try_into_primitive::<Autodiff<Flex>>().unwrap();
    let (values, node) = primitive.into_parts();
    let prepared = Probe { mark, watched }.prepare::<NoCheckpointing>([node]);
    Tensor::from_primitive::<Autodiff<Flex>>(prepared.compute_bound().stateless(values))
}

/// The model with a mark after every layer.
fn marked_loss(model: &Mlp, indices: &[usize], watched: &Watched) -> Tensor<1> {
    let (x, y) = samples(indices, &model.first.weight.device());
    let x = probe(activation::tanh(model.first.forward(x)), "first layer", watched);
    let x = probe(activation::tanh(model.second.forward(x)), "second layer", watched);
    let x = probe(model.third.forward(x), "third layer", watched);
    (x - y).powi_scalar(2).mean()
}

#[test]
fn gradients_of_the_last_layers_travel_before_the_first_layers_are_reached() {
    let low_rank = PowerSgdConfig::default().with_start_step(0);
    let low_rank = low_rank.with_compression_rate_min(0.5);
    for compression in [
        GradientCompression::None,
        GradientCompression::Fp16,
        GradientCompression::PowerSgd(low_rank),
    ] {
        travel_in_order(compression, |ddp, indices, watched| {
            ddp.backward(|model| marked_loss(model, indices, watched)).unwrap();
        });
    }
}

#[test]
fn so_do_those_of_a_step_that_runs_its_own_backward_pass() {
    use crate::loss::weights::Last;
    travel_in_order(GradientCompression::None, |ddp, indices, watched| {
        let step = |model: &Mlp| {
            let gradients = marked_loss(model, indices, watched).backward();
            GradientsParams::from_grads(gradients, model).len()
        };
        let done = ddp.run_own(indices.len(), Some(step), Last::Yes).unwrap();
        assert_eq!(done.output, Some(0), "the step itself finds no gradients");
        let count = |(gradients, _)| GradientsParams::from(gradients).len();
        assert_eq!(done.synchronised.map(count), Some(6));
    });
}

/// Three steps; in the third, buckets of one gradient each leave in the order of the backward pass.
#[track_caller]
fn travel_in_order(
    compression: GradientCompression,
    step: impl Fn(&mut Ddp<Mlp>, &[usize], &Watched) + Sync,
) {
    let traces = on_ranks(2, |world| {
        let config = DdpConfig { compression, ..smallest_buckets() };
        let mut ddp = Ddp::with_config(Mlp::new(1, &world.device()), &world, config).unwrap();
        let watched = Watched::new(&ddp);
        for number in 0..3 {
            let indices = share(&world, number, 2);
            step(&mut ddp, &indices, &watched);
        }
        let buckets = ddp.buckets();
        let named = watched.trace.events().into_iter().map(|event| match event {
            Event::Sent { bucket } => format!("sent {}", buckets[bucket].parameters[0]),
            Event::Read { bucket } => format!("read {bucket}"),
            Event::Taken { parameter } => format!("taken {}", ddp.table.get(parameter).name),
            Event::Mark(mark) => mark.to_owned(),
        });
        named.collect::<Vec<String>>()
    });
    let trace = one_of(traces);
    let position = |event: &str| {
        let found = trace.iter().position(|found| found == event);
        found.unwrap_or_else(|| panic!("no {event} in {trace:?}"))
    };
    let in_order = [
        "third layer",
        "sent third.weight",
        "second layer",
        "sent second.weight",
        "first layer",
        "sent first.weight",
    ];
    assert!(in_order.map(position).is_sorted(), "not {in_order:?} in {trace:#?}");
    let taken = trace.iter().filter(|event| event.starts_with("taken"));
    assert_eq!(taken.count(), 6, "every gradient is taken once: {trace:?}");
}

/// Buckets of one gradient each.
fn smallest_buckets() -> DdpConfig {
    DdpConfig { bucket_bytes_max: 1, first_bucket_bytes_max: 1, ..DdpConfig::default() }
}

/// A model whose fields are not in the order of their use.
#[derive(Module, Debug)]
struct Backwards {
    third: Linear,
    first: Linear,
    second: Linear,
}

#[test]
fn buckets_leave_in_the_order_of_use_and_not_of_definition() {
    let names = on_ranks(2, |world| {
        let device = world.device();
        let Mlp { first, second, third } = Mlp::new(1, &device);
        let model = Backwards { third, first, second };
        let mut ddp = Ddp::with_config(model, &world, smallest_buckets()).unwrap();
        for number in 0..3 {
            let (x, y) = samples(&share(&world, number, 2), &device);
            let loss = |model: &Backwards| {
                let x = activation::tanh(model.first.forward(x));
                let x = activation::tanh(model.second.forward(x));
                (model.third.forward(x) - y).powi_scalar(2).mean()
            };
            ddp.backward(loss).unwrap();
        }
        let buckets = ddp.buckets();
        let weights = buckets.iter().flat_map(|bucket| bucket.parameters.clone());
        weights.filter(|name| name.ends_with("weight")).collect::<Vec<_>>()
    });
    assert_eq!(one_of(names), ["third.weight", "second.weight", "first.weight"]);
}

/// Buckets that wait on a device for a rank that waits on the host for this one's layers would wait for ever if
/// this rank had to wait for its device.
#[test]
fn buckets_of_weighted_losses_stay_off_devices_while_layers_may_exchange_something() {
    for (exchanges, weighted, early) in
        [(true, true, false), (true, false, true), (false, true, true)]
    {
        on_ranks(2, |world| {
            if exchanges {
                NormGroup::of_world(&world).unwrap();
            }
            let config = DdpConfig { route: GradientRoute::Device, ..smallest_buckets() };
            let mut ddp = Ddp::with_config(Mlp::new(1, &world.device()), &world, config).unwrap();
            let watched = Watched::new(&ddp);
            for step in 0..3 {
                let indices = share(&world, step, 2);
                let loss = |model: &Mlp| marked_loss(model, &indices, &watched);
                if weighted {
                    ddp.backward(|model| Loss::mean_over(loss(model), indices.len()))
                } else {
                    ddp.backward(loss)
                }
                .unwrap();
            }
            let events = watched.trace.events();
            let first_sent = events.iter().position(|event| matches!(event, Event::Sent { .. }));
            let last_layer = events.iter().position(|event| *event == Event::Mark("first layer"));
            let case = format!("exchanges {exchanges}, weighted {weighted}: {events:?}");
            assert_eq!(first_sent < last_layer, early, "{case}");
        });
    }
}

/// Burn reshapes a weight before it meets an input of three dimensions, as a transformer's is.
#[test]
fn weights_that_are_reshaped_before_use_travel_early_too() {
    const LAYERS: usize = 12;
    on_ranks(2, |world| {
        let device = world.device();
        let layer = || LinearConfig::new(INPUTS, INPUTS).init(&device);
        let model: Vec<Linear> = (0..LAYERS).map(|_| layer()).collect();
        let mut ddp = Ddp::with_config(model, &world, smallest_buckets()).unwrap();
        let watched = Watched::new(&ddp);
        for _ in 0..3 {
            let x = Tensor::<3>::ones([2, 5, INPUTS], &device);
            ddp.backward(|model| {
                let middle = LAYERS / 2;
                let forward = |x, layers: &[Linear]| {
                    layers.iter().fold(x, |x, layer| activation::tanh(layer.forward(x)))
                };
                let x = forward(x, &model[..middle]);
                let x = probe(x, "middle", &watched);
                forward(x, &model[middle..]).mean()
            })
            .unwrap();
        }
        let events = watched.trace.events();
        let middle = events.iter().position(|event| *event == Event::Mark("middle")).unwrap();
        let sent = |events: &[Event]| {
            let sent = |event: &&Event| matches!(event, Event::Sent { .. });
            events.iter().filter(sent).count()
        };
        // Half of the gradients could have been sent by then; the places are estimates.
        assert!(sent(&events[..middle]) > 2 * LAYERS / 3, "{events:?}");
        assert_eq!(sent(&events), 2 * LAYERS);
    });
}

/// In the first step nothing is known about the graph but what the model defines: that is the order of its layers.
#[test]
fn the_first_step_overlaps_in_the_order_of_definition() {
    on_ranks(2, |world| {
        let mut ddp = Ddp::new(Mlp::new(1, &world.device()), &world).unwrap();
        let watched = Watched::new(&ddp);
        ddp.backward(|model| marked_loss(model, &[1], &watched)).unwrap();
        let events = watched.trace.events();
        let last_mark = events.iter().rposition(|event| matches!(event, Event::Mark(_)));
        let first_taken = events.iter().position(|event| matches!(event, Event::Taken { .. }));
        assert!(first_taken.is_some() && first_taken < last_mark, "{events:?}");
    });
}
