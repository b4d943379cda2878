//! Whether several ranks learn what one does with all their samples.

use anyhow::bail;
use bonfire_collective::Rank;
use bonfire_train::{Ddp, DdpConfig, GradientRoute, Loss, World};
use burn::optim::{ModuleOptimizer, SgdConfig};

use super::network::{Network, Size, samples};

const STEPS: usize = 6;
const LEARNING_RATE: f64 = 0.05;

/// How far several ranks may be from one that has all their samples, relative to the largest parameter: they
/// add in another order, and kernels for other shapes may round more coarsely (TF32).
pub(super) const TOLERANCE: f64 = 1e-2;

/// How far ways of gradients may be from each other. Equal gradients have equal averages, but gradients depend on which
/// kernels CubeCL chooses, and on what Burn fuses, which ends where gradients are taken.
const WAYS_TOLERANCE: f64 = 1e-5;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Learnt {
    pub(super) values: Vec<f32>,
}

/// How far the ways of gradients were from each other, and ranks from one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Parity {
    pub(super) parameters: usize,
    /// The largest difference between ways, relative to the largest parameter; 0 if they have the same bits.
    pub(super) apart: f64,
    /// The largest difference from one rank, relative to the largest parameter; at most [`TOLERANCE`].
    pub(super) distance: f64,
}

/// Trains a small network for some steps: the same samples in every step for any number of ranks, in unequal
/// shares, with a micro-batch that is not synchronised by itself in each second step.
pub(super) fn learn(world: &World, route: GradientRoute) -> anyhow::Result<Learnt> {
    let device = world.device();
    let size = Size::SMALL;
    // Several buckets.
    let config = DdpConfig::default().with_route(route).with_bucket_bytes_max(4 << 10);
    let mut ddp = Ddp::with_config(Network::new(size, &device), world, config)?;
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    for step in 0..STEPS {
        let batch = |part: usize| {
            let numbers: Vec<usize> = shard(world, 2 * step + part).collect();
            let count = numbers.len();
            let (input, target) = samples(numbers.into_iter(), size, &device);
            move |network: &Network| Loss::mean_over(network.loss(input, target), count)
        };
        if step % 2 == 1 {
            ddp.no_sync(batch(1))?;
        }
        let done = ddp.backward(batch(0))?;
        ddp.step(&mut optimizer, LEARNING_RATE, done.gradients)?;
    }
    Ok(Learnt { values: ddp.module().values()? })
}

/// The numbers of a rank's samples of one batch, of which rank 0 has half a batch more than its share.
fn shard(world: &World, batch: usize) -> impl Iterator<Item = usize> {
    /// Enough for as many ranks as a self-test has.
    const SAMPLES: usize = 96;
    let (rank, ranks) = (world.rank().index(), world.world_size().len());
    let owner = move |number: &usize| match number % (2 * ranks + 1) {
        last if last == 2 * ranks => 0,
        other => other % ranks,
    };
    (0..SAMPLES)
        .filter(move |number| owner(number) == rank)
        .map(move |number| batch * SAMPLES + number)
}

/// Compares what ranks have learnt on one way with each other, with the other way and with a rank alone.
pub(super) fn compare(ways: &[(&str, Vec<Learnt>)], alone: &Learnt) -> anyhow::Result<Parity> {
    let (mut apart, mut furthest) = (0.0_f64, 0.0_f64);
    let Some((first_way, [reference, ..])) = ways.first().map(|(way, ranks)| (way, &ranks[..]))
    else {
        bail!("no rank has learnt anything");
    };
    for (way, ranks) in ways {
        for (rank, learnt) in ranks.iter().enumerate() {
            if !bits(&ranks[0]).eq(bits(learnt)) {
                let rank = Rank::new(rank as u32);
                bail!("rank {rank} has other parameters than rank 0 with gradients {way}");
            }
        }
        apart = apart.max(distance(&ranks[0].values, &reference.values));
        furthest = furthest.max(distance(&ranks[0].values, &alone.values));
    }
    if furthest > TOLERANCE {
        bail!(
            "ranks are {furthest:.1e} from one rank with all their samples, and at most {TOLERANCE:.1e} is due to \
             the order of additions"
        );
    }
    if apart > WAYS_TOLERANCE {
        bail!(
            "parameters with gradients on another way than {first_way} differ by up to {apart:.1e} of the largest, and \
             at most {WAYS_TOLERANCE:.1e} is due to other kernels"
        );
    }
    Ok(Parity { parameters: alone.values.len(), apart, distance: furthest })
}

fn bits(learnt: &Learnt) -> impl Iterator<Item = u32> + '_ {
    learnt.values.iter().map(|value| value.to_bits())
}

/// The largest difference, relative to the largest value.
fn distance(one: &[f32], other: &[f32]) -> f64 {
    if one.len() != other.len() {
        return f64::INFINITY;
    }
    let largest = other.iter().fold(0.0, |most: f64, value| most.max(f64::from(value.abs())));
    let apart = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).abs() / largest;
    // A value that is not a number is as far away as can be.
    let further = |most: f64, apart: f64| {
        if apart.is_nan() { f64::INFINITY } else { most.max(apart) }
    };
    one.iter().zip(other).map(apart).fold(0.0, further)
}
