//! Whole models, trained together and alone.

use burn::nn;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::DType;

use super::*;
use crate::Loss;

const SIDE: usize = 6;
const CHANNELS: usize = 4;
const CLASSES: usize = 3;
const WHOLE: usize = 8;
const STEPS: usize = 20;
const RATE: f64 = 0.05;

/// A small network with a norm after a convolution and one after a linear layer.
#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    norm: BatchNorm,
    hidden: Linear,
    last_norm: BatchNorm,
    head: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let inside = CHANNELS * (SIDE - 2) * (SIDE - 2);
        let model = Self {
            conv: Conv2dConfig::new([1, CHANNELS], [3, 3]).init(device),
            norm: BatchNormConfig::new(CHANNELS).init(device),
            hidden: LinearConfig::new(inside, HIDDEN).init(device),
            last_norm: BatchNormConfig::new(HIDDEN).init(device),
            head: LinearConfig::new(HIDDEN, CLASSES).init(device),
        };
        seeded(model, 5)
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = activation::tanh(self.norm.forward(self.conv.forward(x)));
        let x = self.hidden.forward(x.flatten(1, 3));
        self.head.forward(activation::tanh(self.last_norm.forward(x)))
    }

    /// The mean over samples `start` to `end` of a step.
    fn loss(&self, step: usize, part: (usize, usize), options: (&Device, DType)) -> Tensor<1> {
        let rows = |seed: u64, shape: &[usize]| {
            let all = uniform(seed + 10 * step as u64, &[&[WHOLE], shape].concat());
            let elems: usize = shape.iter().product();
            let values = all[part.0 * elems..part.1 * elems].to_vec();
            TensorData::new(values, [&[part.1 - part.0], shape].concat())
        };
        let x = Tensor::<4>::from_data(rows(7, &[1, SIDE, SIDE]), options);
        let y = Tensor::<2>::from_data(rows(8, &[CLASSES]), options);
        (self.forward(x) - y).square().mean()
    }
}

/// What a rank without samples does.
#[derive(Clone, Copy)]
enum Without {
    /// Leaves the model alone.
    Nothing,
    /// Runs it with an empty batch.
    Empty,
}

/// The samples of a rank in a step of [`WHOLE`] samples, given how many each rank has.
fn part(parts: &[usize], rank: usize) -> (usize, usize) {
    let start = parts[..rank].iter().sum();
    (start, start + parts[rank])
}

/// Trains with as many samples per rank as `parts` says of each step.
fn train_together(
    ranks: u32,
    averaging: impl Into<Averaging>,
    without: Without,
    parts: impl Fn(usize) -> Vec<usize> + Sync,
) -> Vec<Net> {
    let averaging = averaging.into();
    on_ranks(ranks, |world| {
        let device = world.device();
        let model = convert_sync_batch_norm(Net::new(&device), &world).unwrap();
        let mut ddp = Averager::new(model, &world, averaging.clone());
        for step in 0..STEPS {
            let parts = parts(step);
            assert_eq!(parts.iter().sum::<usize>(), WHOLE);
            let part = part(&parts, world.rank().index());
            let samples = part.1 - part.0;
            let gradients = ddp.backward(|model| {
                let loss = match (samples, without) {
                    (0, Without::Nothing) => Tensor::zeros([1], &device),
                    _ => model.loss(step, part, (&device, DType::F32)),
                };
                Loss::mean_over(loss, samples)
            });
            ddp.step(&mut sgd(), RATE, gradients.unwrap().gradients).unwrap();
        }
        ddp.into_module()
    })
}

/// Trains on one rank, with norms that know nothing of others.
fn train_alone(dtype: DType) -> Net {
    let device = Device::flex();
    let mut model = cast(Net::new(&device), dtype).train();
    for step in 0..STEPS {
        let loss = model.loss(step, (0, WHOLE), (&device, dtype));
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = sgd().step(RATE, model, gradients);
    }
    model
}

fn largest_distance(left: &[(String, Vec<f64>)], right: &[(String, Vec<f64>)]) -> f64 {
    let pairs = left.iter().zip(right);
    let apart = pairs.flat_map(|((_, left), (_, right))| {
        assert_eq!(left.len(), right.len());
        left.iter().zip(right).map(|(left, right)| (left - right).abs())
    });
    apart.fold(0.0, f64::max)
}

/// How many samples each rank has in a step.
type Parts = fn(usize) -> Vec<usize>;

/// How much further from the exact run several ranks may be than one rank is. Both round at every
/// operation; they differ in the order of sums, of which the ranks do most in f64.
const AS_EXACT_AS_ONE: f64 = 4.0;

#[test]
fn several_ranks_train_what_one_rank_trains_with_the_whole_batch() {
    let exact = named_values(&train_alone(DType::F64));
    let allowed =
        AS_EXACT_AS_ONE * largest_distance(&named_values(&train_alone(DType::F32)), &exact);
    let moved = largest_distance(&named_values(&Net::new(&Device::flex())), &exact);
    assert!(allowed < moved / 1000.0, "{allowed} would hide errors in {moved}");
    let uneven: Parts = |step| match step % 3 {
        0 => vec![5, 3],
        1 => vec![1, 7],
        _ => vec![8, 0],
    };
    let runs: [(u32, Parts); 4] = [
        (2, |_| vec![4, 4]),
        (4, |_| vec![2, 2, 2, 2]),
        (2, uneven),
        (3, |step| if step < 10 { vec![3, 3, 2] } else { vec![0, 8, 0] }),
    ];
    for (run, (ranks, parts)) in runs.into_iter().enumerate() {
        let models = train_together(ranks, small_buckets(), Without::Nothing, parts);
        assert_same(&models.iter().map(bits).collect::<Vec<_>>());
        let apart = largest_distance(&named_values(&models[0]), &exact);
        assert!(apart <= allowed, "run {run}: {apart} from the exact run, not {allowed}");
    }
}

#[test]
fn without_the_exchange_several_ranks_train_something_else() {
    let exact = named_values(&train_alone(DType::F64));
    let models = on_ranks(2, |world| {
        let device = world.device();
        let mut ddp = Ddp::new(Net::new(&device), &world).unwrap();
        for step in 0..STEPS {
            let part = part(&[4, 4], world.rank().index());
            descend(&mut ddp, RATE, |model| model.loss(step, part, (&device, DType::F32)));
        }
        named_values(ddp.module())
    });
    let moved = largest_distance(&named_values(&Net::new(&Device::flex())), &exact);
    assert!(largest_distance(&models[0], &exact) > moved / 1000.0);
}

#[test]
fn buckets_and_single_parameters_and_empty_batches_give_the_same_bits() {
    let parts = |step: usize| {
        if step.is_multiple_of(2) { vec![6, 2] } else { vec![0, 8] }
    };
    let with =
        |averaging: Averaging, without| bits(&train_together(2, averaging, without, parts)[0]);
    let reference = with(small_buckets().into(), Without::Nothing);
    let single = Averaging::per_parameter(DdpConfig::default());
    assert!(with(single, Without::Nothing) == reference, "single parameters");
    assert!(with(small_buckets().into(), Without::Empty) == reference, "empty batches");
}

#[test]
fn ranks_with_unequal_numbers_of_micro_batches_do_not_wait_for_ever() {
    let config = small_buckets();
    let models = on_ranks(2, |world| {
        let device = world.device();
        let options = (&device, DType::F32);
        let model = convert_sync_batch_norm(Net::new(&device), &world).unwrap();
        let mut ddp = Ddp::with_config(model, &world, config.clone()).unwrap();
        for step in 0..4 {
            let weighted = |model: &Net, part: (usize, usize)| {
                Loss::mean_over(model.loss(step, part, options), part.1 - part.0)
            };
            if world.is_main() {
                ddp.no_sync(|model| weighted(model, (0, 2))).unwrap();
                ddp.no_sync(|model| weighted(model, (2, 4))).unwrap();
            }
            descend(&mut ddp, RATE, |model| weighted(model, (4, 8)));
        }
        bits(ddp.module())
    });
    assert_same(&models);
}

#[test]
fn a_rank_that_fails_ends_the_exchanges_of_the_others() {
    let errors = on_ranks(3, |world| {
        let device = world.device();
        let model = convert_sync_batch_norm(Net::new(&device), &world).unwrap();
        // Rank 1 may have failed before the others have heard that all are ready.
        let mut ddp = match Ddp::new(model, &world) {
            Ok(ddp) => ddp,
            Err(error) => return error,
        };
        let part = part(&[3, 3, 2], world.rank().index());
        let gradients = ddp.backward(|model| {
            if world.rank().get() == 1 {
                return Err("no data today");
            }
            Ok(model.loss(0, part, (&device, DType::F32)))
        });
        gradients.map(drop).unwrap_err()
    });
    assert!(matches!(errors[1], TrainError::Forward(_)), "{}", errors[1]);
    for rank in [0, 2] {
        let TrainError::Collective(CollectiveError::PeerFailed { rank, cause }) = &errors[rank]
        else {
            panic!("rank {rank}: {}", errors[rank]);
        };
        assert_eq!(rank.get(), 1);
        assert!(cause.contains("no data today"), "{cause}");
    }
}

#[test]
fn ranks_at_different_layers_are_an_error_on_all() {
    let errors = on_ranks(2, |world| {
        let device = world.device();
        let group = NormGroup::of_world(&world).unwrap();
        let layers = [2, 3]
            .map(|features| BatchNormConfig::new(features).init_synchronized(&device, &group));
        let mut ddp = Ddp::new(layers.to_vec(), &world).unwrap();
        let own = world.rank().index();
        let x = Tensor::<2>::ones([4, own + 2], &device.autodiff());
        let gradients = ddp.backward(|layers| layers[own].forward(x).mean());
        gradients.map(drop).unwrap_err()
    });
    // A rank may hear of the other's end first, with its words.
    let is_own = |error: &TrainError| matches!(error, TrainError::NormMismatch(_));
    assert!(errors.iter().any(is_own), "{errors:?}");
    for error in &errors {
        let said = "rank 0 is in the forward pass of a layer of 2 features, but rank 1 in the forward pass \
                    of a layer of 3 features";
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn a_layer_of_burn_is_refused_by_name() {
    #[derive(Module, Debug)]
    struct Backbone {
        norms: Vec<nn::BatchNorm>,
    }
    on_ranks(2, |world| {
        let device = world.device();
        let model = Backbone { norms: vec![nn::BatchNormConfig::new(2).init(&device)] };
        let error = convert_sync_batch_norm(model, &world).unwrap_err();
        assert!(error.to_string().starts_with("layer \"norms.0\" is burn::nn::BatchNorm"));
    });
}

#[test]
fn a_converted_model_still_loads_a_record_and_stays_converted() {
    on_ranks(2, |world| {
        let device = world.device();
        let record = Net::new(&device).into_record();
        let model = convert_sync_batch_norm(Net::new(&device), &world).unwrap();
        let model = model.load_record(record).train().valid().train();
        assert_eq!(model.norm.synchronized_ranks(), Some(2));
        assert_eq!(bits(&model), bits(&Net::new(&device)));
        let display = format!("{model}");
        assert!(display.contains("synchronized_ranks: 2"), "{display}");
    });
}
