//! Segments whose parameters are cut, beside parameters outside of them that are cut, too.

use bonfire_optim::Offload;

use super::*;
use crate::{GradientRoute, Placement};

const WIDTH: usize = 64;

/// Three of its weights are cut.
#[derive(Module, Debug)]
struct Cut {
    first: Linear,
    blocks: Vec<Linear>,
    looked_at: Linear,
}

impl Cut {
    fn new(device: &Device) -> Self {
        let layer = |inputs| LinearConfig::new(inputs, WIDTH).init(device);
        let model = Self {
            first: layer(4 * INPUTS),
            blocks: vec![layer(WIDTH), layer(WIDTH), layer(WIDTH)],
            looked_at: layer(WIDTH),
        };
        seeded(model, 8)
    }

    /// Gradients of a parameter that is used often are summed in its own type where it is cut, and in that of the
    /// passes where it is not: in 16 bits that is not the same.
    fn forward(&self, x: Tensor<2>, blocks: Blocks, often: Often) -> Tensor<2> {
        let run = |block: &Linear, x: Tensor<2>| match blocks {
            Blocks::Plain => activation::tanh(block.forward(x)),
            Blocks::Segments => recompute(block, x, |block, x| activation::tanh(block.forward(x))),
        };
        let x = self.first.forward(x);
        let x = run(&self.blocks[1], run(&self.blocks[0], x));
        // A block may be in several segments, and outside of them.
        let (x, last) = match often {
            Often::Yes => (self.blocks[1].forward(run(&self.blocks[0], x)), 0),
            Often::No => (x, 2),
        };
        let part = (self.blocks[last].clone(), self.looked_at.clone());
        let look = |(block, looked_at): &(Linear, Linear), x: Tensor<2>| {
            let seen = looked_at.forward(x.clone()).detach();
            block.forward(x) + seen
        };
        match blocks {
            Blocks::Plain => look(&part, x),
            Blocks::Segments => recompute(&part, x, move |part, x| recompute(part, x, look)),
        }
    }
}

/// Whether a parameter is used more than once in a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Often {
    Yes,
    No,
}

/// The parameters after some steps, which parameters are cut, and how often the last step gathered each.
fn trained(
    ranks: u32,
    config: DdpConfig,
    offload: Option<&Offload>,
    blocks: Blocks,
) -> (Bits, Vec<(String, usize)>) {
    let results = on_ranks(ranks, |world| {
        let device = world.device();
        let model = Cut::new(&device);
        let mut ddp =
            Ddp::with_config(model, &world, config.clone().with_offload(offload.cloned())).unwrap();
        let adamw = bonfire_optim::AdamWConfig::new().build();
        let mut optimizer = ModuleOptimizer::from(adamw.with_offload(offload.cloned()));
        let mut gathers = Vec::new();
        for step in 0..4 {
            let loss = |model: &Cut, micro_batch: usize| {
                let (x, _) = samples(&share(&world, 2 * step + micro_batch, 3), &device);
                let x = config.precision.cast(x.repeat_dim(1, 4));
                let often = match config.precision {
                    Precision::F32 => Often::Yes,
                    _ => Often::No,
                };
                let output = model.forward(x, blocks, often);
                output.cast(FloatDType::F32).square().mean()
            };
            ddp.no_sync(|model| loss(model, 0)).unwrap();
            take_step(&mut ddp, &mut optimizer, 1e-2, |model| loss(model, 1));
            if let Some(gatherer) = &ddp.gatherer {
                let last = gatherer.last_gathers();
                let cut = (0..ddp.table.len()).filter(|&index| ddp.shards.is_cut(index));
                let count = |index| last.iter().filter(|&&found| found == index).count();
                let named = |index: usize| (ddp.table.get(index).name.clone(), count(index));
                gathers = cut.map(named).collect();
                assert_eq!(gatherer.has_lane(), config.route == GradientRoute::Device);
            }
        }
        (bits(&ddp.whole().unwrap()), gathers)
    });
    one_of(results)
}

/// Trains sharded to the bits of replicas, and gathers forwards and backwards.
fn check(ranks: u32, config: DdpConfig, offload: Option<&Offload>) {
    let sharded = config.clone().with_placement(Placement::zero3());
    for blocks in [Blocks::Segments, Blocks::Plain] {
        let what = format!("{blocks:?}, {ranks} ranks, {:?}", config.precision);
        let (expected, _) = trained(ranks, config.clone(), None, blocks);
        let (found, gathers) = trained(ranks, sharded.clone(), offload, blocks);
        assert!(found == expected, "{what}");
        let cut = |name: &str| gathers.iter().find(|(found, _)| found == name);
        // Each use gathers forwards, and a second run gathers again; so does a backward step that needs the weight.
        for (name, fewest) in [("first.weight", 1), ("blocks.0.weight", 2), ("blocks.1.weight", 2)]
        {
            let found = cut(name).map(|(_, count)| *count);
            // A plain block keeps what is cast.
            let fewest = if blocks == Blocks::Segments { fewest } else { 1 };
            assert!(found >= Some(fewest), "{what}: {name} of {gathers:?}");
        }
    }
}

#[test]
fn zero3_with_segments_ends_and_trains_the_bits_of_replicas() {
    for ranks in [2, 3] {
        check(ranks, small_buckets(), None);
    }
}

#[test]
fn zero3_with_segments_trains_the_same_bits_on_devices() {
    check(3, small_buckets().with_route(GradientRoute::Device), None);
}

#[test]
fn so_it_does_in_16_bits_and_with_parameters_in_files() {
    for precision in precision::PRECISIONS {
        check(2, small_buckets().with_precision(precision), None);
    }
    let folder = tempfile::tempdir().unwrap();
    let offload = Offload::to_files(folder.path()).unwrap().with_parameters();
    check(2, small_buckets(), Some(&offload));
}
