//! Gradients rounded to 16 bits.

use super::*;

/// What the definition says: shares are rounded, added in rank order in f32, and rounded.
fn definition(shares: &[f32]) -> f32 {
    let count = shares.len() as f64;
    let share = |value: &f32| f16::from_f32((f64::from(*value) * (1.0 / count)) as f32).to_f32();
    let sum = shares.iter().map(share).reduce(|sum, share| sum + share);
    f16::from_f32(sum.unwrap()).to_f32()
}

/// By the definition to the bit; and next to the mean in f64, each of the roundings being off by at
/// most 2^-11 of its value or half the smallest number.
#[test]
fn half_precision_averages_are_rounded_as_defined() {
    for ranks in [2, 3, 5] {
        let gradients = |rank: usize, step: usize| {
            Gradients3::random((rank * 10 + step) as u64, [1.0, 1e-6, 3e4][step])
        };
        let found = averages(ranks, GradientCompression::Fp16, 3, gradients);
        for (step, found) in found.iter().enumerate() {
            let own: Vec<Gradients3> =
                (0..ranks as usize).map(|rank| gradients(rank, step)).collect();
            for (parameter, found) in found.0.iter().enumerate() {
                for (index, found) in found.iter().enumerate() {
                    let shares: Vec<f32> = own.iter().map(|own| own.0[parameter][index]).collect();
                    assert_eq!(*found, definition(&shares), "{ranks} ranks, {shares:?}");
                    let count = f64::from(ranks);
                    let mean: f64 = shares.iter().map(|s| f64::from(*s) / count).sum();
                    let sizes: f64 = shares.iter().map(|s| f64::from(s.abs()) / count).sum();
                    let unit = f64::powi(2.0, -11) + f64::from(f32::EPSILON);
                    let smallest = f64::powi(2.0, -24);
                    let bound = 2.0 * unit * (1.0 + unit) * sizes + (count + 1.0) * smallest;
                    assert!((f64::from(*found) - mean).abs() <= bound, "{found} is not {mean}");
                }
            }
        }
    }
}

/// The sum over the ranks does not fit into f16, the mean does; a larger mean does not.
#[test]
fn gradients_are_divided_before_they_are_added() {
    let constant = |value: f32| {
        let mut gradients = Gradients3::random(0, 1.0);
        gradients.0.iter_mut().for_each(|values| values.fill(value));
        gradients
    };
    let values = |value| averages(4, GradientCompression::Fp16, 1, |_, _| constant(value));
    assert_eq!(values(60_000.0)[0], constant(60_000.0));
    assert_eq!(values(70_000.0)[0], constant(f32::INFINITY));
}

#[test]
fn buckets_of_sixteen_bits_give_the_bits_of_single_parameters() {
    for compression in [GradientCompression::Fp16, GradientCompression::Bf16] {
        for ranks in [2, 3] {
            let with = |averaging: Averaging| {
                on_ranks(ranks, |world| bits(&train(&world, averaging.clone(), 5, 3, 0.05)))
            };
            let config = DdpConfig::default().with_compression(compression);
            let reference = with(Averaging::per_parameter(config));
            assert_same(&reference);
            assert!(with(compressed(compression).into()) == reference);
        }
    }
}

/// Accumulated and weighted gradients are compressed once, after all that.
#[test]
fn micro_batches_and_weights_are_compressed_like_anything_else() {
    let with = |averaging: Averaging| {
        on_ranks(2, |world| {
            let mut ddp = Averager::new(Mlp::new(1, &world.device()), &world, averaging.clone());
            let sizes = [[3, 1], [2, 4]][world.rank().index()];
            let loss = |model: &Mlp, size: usize| {
                let indices: Vec<usize> = (0..size).collect();
                Loss::mean_over(model.loss(&indices), size)
            };
            ddp.no_sync(|model| loss(model, sizes[0])).unwrap();
            let gradients = ddp.backward(|model| loss(model, sizes[1])).unwrap().gradients;
            gradient_values(ddp.module(), &gradients)
        })
    };
    let config = DdpConfig::default().with_compression(GradientCompression::Fp16);
    let bucketed = with(compressed(GradientCompression::Fp16).into());
    assert_eq!(bucketed, with(Averaging::per_parameter(config)));
}

/// What two ranks together send in each of four steps.
fn bytes_sent(compression: GradientCompression) -> [u64; 4] {
    let options = GroupOptions::default().with_transport(Some(TransportKind::Tcp));
    let sent = connected(2, options, |group| {
        let world = world(group);
        let config = compressed(compression);
        let mut ddp = Ddp::with_config(Mlp::new(1, &world.device()), &world, config).unwrap();
        std::array::from_fn(|step| {
            let before = world.group().traffic().payload_bytes_sent;
            let indices = share(&world, step, 2);
            ddp.backward(|model| model.loss(&indices)).unwrap();
            world.group().traffic().payload_bytes_sent - before
        })
    });
    let [first, second]: [[u64; 4]; 2] = sent.try_into().unwrap();
    std::array::from_fn(|step| first[step] + second[step])
}

/// Two ranks send each other everything once, whatever the algorithm.
#[test]
fn the_bytes_on_the_wire_are_as_few_as_promised() {
    let plain = bytes_sent(GradientCompression::None);
    let matrices = [(INPUTS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, OUTPUTS)];
    let weights: usize = matrices.iter().map(|(rows, cols)| rows * cols).sum();
    let factors: usize = matrices.iter().map(|(rows, cols)| rows + cols).sum();
    let all = weights + 2 * HIDDEN + OUTPUTS;
    // Flags travel as elements, with the last bucket. Where something is compressed they are an operation of their own.
    let (flags, verdict) = (4 * (64 + 6), 8 * (2 + 6));
    // With the second step buckets are dealt again: it tells in which order, too.
    let steps = [0, 2, 3].map(|step| plain[step]);
    assert_eq!(steps, [2 * (4 * all + flags) as u64; 3]);
    for (compression, saved) in [
        (GradientCompression::Fp16, 2 * all),
        (GradientCompression::Bf16, 2 * all),
        (GradientCompression::PowerSgd(power_sgd(1)), 4 * (weights - factors)),
    ] {
        let expected = plain.map(|plain| plain - 2 * (saved + flags - verdict) as u64);
        assert_eq!(bytes_sent(compression), expected, "{compression:?}");
    }
}
