//! Trains the smallest language model, which looks at one character: the listing on text.

use std::num::NonZeroUsize;

use bonfire::prelude::*;
use bonfire::{Text, TextBatch};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::Tensor;

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

/// The scores of the next character, by the one before it.
fn loss(model: &Embedding, batch: TextBatch) -> Tensor<1> {
    let scores = model.forward(batch.tokens).flatten::<2>(0, 1);
    let loss = CrossEntropyLossConfig::new().init(&scores.device());
    loss.forward(scores, batch.targets.flatten(0, 1))
}

// ANCHOR: windows
fn train(world: World) -> anyhow::Result<()> {
    // `Text::read("tinyshakespeare.txt")?` stands here as well.
    let text = Text::new("a rhyme", &"one two three four five\n".repeat(50))?;
    let (training, validation) = text.split(200);
    let (training, validation) = (training.windows(16)?, validation.windows(16)?);
    let dealt = |len, order, remainder| {
        let (rank, world_size) = (world.rank(), world.world_size());
        let sampler = SamplerConfig {
            len,
            rank,
            world_size,
            order,
            remainder,
        };
        Loader::new(
            DistributedSampler::new(sampler),
            NonZeroUsize::MIN,
            LastBatch::Keep,
        )
    };
    let mut loader = dealt(training.len(), Order::Shuffled { seed: 7 }, Remainder::Pad);
    let mut judge = dealt(validation.len(), Order::Sequential, Remainder::Exact);
    // ANCHOR_END: windows

    let device = world.device();
    let characters = text.vocabulary().len();
    let model: Embedding = EmbeddingConfig::new(characters, characters).init(&device);
    let mut ddp = Ddp::new(model, &world)?;
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    // ANCHOR: epochs
    for _ in 0..4 {
        for indices in loader.next_epoch() {
            let batch = training.batch(&indices, &device);
            let step = ddp.backward(|model| loss(model, batch))?;
            ddp.step(&mut optimizer, 0.05, step.gradients);
        }
    }
    let mut mean = WeightedMean::new();
    for indices in judge.next_epoch() {
        let batch = validation.batch(&indices, &device);
        let loss = loss(ddp.module(), batch);
        mean.add(loss.into_scalar::<f64>(), indices.len());
    }
    let nats = mean.over_ranks(&world)?.unwrap_or(f64::NAN);
    anyhow::ensure!(nats < 0.5 * (characters as f64).ln(), "{nats} nats");
    // ANCHOR_END: epochs
    println!("{nats:.2} nats per character");
    Ok(())
}
