//! Stages whose layers are divided among the ranks of another axis of a mesh.

use std::error::Error;

use bonfire_parallel::{
    ColumnParallelLinear, RowParallelLinear, VocabParallelCrossEntropy, VocabParallelEmbedding,
    sequence_parallel,
};
use bonfire_train::{Clip, LossScaler, Mesh};

use super::*;

const STEPS: u32 = 3;

type BoxError = Box<dyn Error + Send + Sync>;

/// What ranks of `tp` have between the divided layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tokens {
    All,
    Own,
}

/// A [`Layer`] that is divided.
#[derive(Module, Debug)]
struct DividedLayer {
    norm: LayerNorm,
    inner: ColumnParallelLinear,
    outer: RowParallelLinear,
}

/// A [`Part`] that is divided, with the table as its head.
#[derive(Module, Debug)]
struct Divided {
    table: Option<VocabParallelEmbedding>,
    layers: Vec<DividedLayer>,
    #[module(skip)]
    tp: World,
    #[module(skip)]
    tokens: Tokens,
}

impl Divided {
    fn of(part: Part, tokens: Tokens, tp: &World) -> Self {
        let layers = part.layers.into_iter().map(|layer| {
            let inner = ColumnParallelLinear::from_linear(layer.inner, tp).unwrap();
            let outer = RowParallelLinear::from_linear(layer.outer, tp).unwrap();
            let (norm, inner, outer) = match tokens {
                Tokens::All => (layer.norm, inner, outer),
                Tokens::Own => (
                    sequence_parallel(layer.norm, tp).unwrap(),
                    inner.with_sequence(0),
                    outer.with_sequence(0),
                ),
            };
            DividedLayer { norm, inner, outer }
        });
        let table = |embedding| {
            let table = VocabParallelEmbedding::from_embedding(embedding, tp).unwrap();
            with_tokens(table, tokens)
        };
        Self { table: part.embedding.map(table), layers: layers.collect(), tp: tp.clone(), tokens }
    }

    fn stage(&self, pass: &mut Pass<'_, Batch>) -> Result<Output, BoxError> {
        self.scaled(pass, None)
    }

    fn scaled(
        &self,
        pass: &mut Pass<'_, Batch>,
        scaler: Option<&LossScaler>,
    ) -> Result<Output, BoxError> {
        let (tokens, next) = pass.micro_batch().clone();
        let stream = match &self.table {
            Some(table) => table.forward(tokens).flatten(0, 1),
            None => pass.input()?,
        };
        let stream = self.layers.iter().fold(stream, |stream: Tensor<2>, layer| {
            let x = layer.inner.forward(layer.norm.forward(stream.clone()));
            stream + layer.outer.forward(activation::gelu(x))
        });
        if !pass.is_last() {
            return Ok(stream.into());
        }
        let head = VocabParallelEmbedding::of_rows(pass.tied()?, TOKENS, &self.tp);
        let head = with_tokens(head, self.tokens);
        let loss = VocabParallelCrossEntropy::new().forward(&head, head.logits(stream), next);
        Ok(match scaler {
            Some(scaler) => scaler.scale(loss).into(),
            None => loss.into(),
        })
    }

    fn table(&self) -> &Param<Tensor<2>> {
        &self.table.as_ref().unwrap().weight
    }
}

fn with_tokens(table: VocabParallelEmbedding, tokens: Tokens) -> VocabParallelEmbedding {
    match tokens {
        Tokens::All => table,
        Tokens::Own => table.with_sequence(0),
    }
}

/// This rank's stages of a mesh.
fn pipeline(mesh: &Mesh, tokens: Tokens) -> Pipeline<Divided> {
    let (pp, data, tp) = (mesh.sub(Axis::Pp), mesh.data(), mesh.sub(Axis::Tp));
    let schedule = schedule(Kind::OneForwardOneBackward, pp.world_size().get());
    let stages = parts(&schedule, pp).into_iter();
    let stages = stages.map(|part| Divided::of(part, tokens, tp)).collect();
    let axes = Axes { stages: pp, data };
    let pipeline = Pipeline::with_config(stages, schedule, axes, DdpConfig::default());
    pipeline.unwrap().with_tied(Divided::table).unwrap()
}

/// The losses and the norms that each rank of a mesh finds.
fn trained(ranks: u32, mesh: &str, tokens: Tokens) -> Vec<Vec<f64>> {
    on_ranks(ranks, |world| {
        let mesh = world.mesh(mesh).unwrap();
        let mut pipeline = pipeline(&mesh, tokens);
        let (mut optimizer, mut found) = (adamw(), Vec::new());
        for step in 0..STEPS {
            let batches = batches(step, 2, &world.device().autodiff());
            let done = pipeline.backward(&batches, Divided::stage).unwrap();
            found.push(done.loss.value().unwrap());
            let gradients = done.gradients;
            let norm = gradients.norm().unwrap().unwrap();
            found.push(norm.into_scalar::<f64>());
            let gradients = gradients.clip(Clip::Norm(0.1)).unwrap();
            pipeline.step(&mut optimizer, 0.01, gradients).unwrap();
        }
        let valid = batches(STEPS, 2, &world.device());
        found.extend(pipeline.evaluate(&valid, Divided::stage).unwrap());
        found
    })
}

/// Losses, norms and losses of forward passes alone.
#[test]
fn divided_stages_train_as_whole_ones_do() {
    let expected = trained(1, "dp=1", Tokens::All).remove(0);
    for (ranks, mesh, tokens) in [
        (4, "pp=2,tp=2", Tokens::All),
        (4, "pp=2,tp=2", Tokens::Own),
        (8, "pp=2,dp=2,tp=2", Tokens::Own),
    ] {
        for found in trained(ranks, mesh, tokens) {
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                // Sums of a few thousand products in 32 bits, in another order, over three steps.
                let apart = (found - expected).abs();
                assert!(apart < 1e-4 * expected, "{mesh}: {found}, not {expected}");
            }
        }
    }
}

/// In each step another rank has an infinite gradient of a parameter that it alone has.
#[test]
fn an_overflow_anywhere_skips_the_step_everywhere() {
    let ranks = 8;
    let all = on_ranks(ranks, |world| {
        let mesh = world.mesh("pp=2,dp=2,tp=2").unwrap();
        let mut pipeline = pipeline(&mesh, Tokens::All);
        let (mut scaler, mut scales) = (LossScaler::default(), Vec::new());
        let mut step = |culprit: Option<u32>, scaler: Option<&LossScaler>| {
            let batches = batches(0, 2, &world.device().autodiff());
            let done = pipeline.backward(&batches, |stage, pass| {
                if culprit == Some(world.rank().get()) {
                    let weight = &stage.layers[0].inner.weight;
                    let (id, infinite) = (weight.id, weight.val().without_autodiff());
                    let infinite = infinite.full_like(f32::INFINITY);
                    pass.weights().leave(id, move || infinite);
                }
                stage.scaled(pass, scaler)
            });
            let done = done.unwrap();
            let (loss, gradients) = (done.loss.value().unwrap(), done.gradients);
            (loss, gradients)
        };
        for culprit in 0..ranks {
            let (_, gradients) = step(Some(culprit), Some(&scaler));
            assert!(scaler.unscale(gradients).unwrap().is_none(), "{culprit}");
            scales.push(scaler.scale_factor());
        }
        let (_, gradients) = step(Some(6), None);
        let error = gradients.check_finite().unwrap_err().to_string();
        assert!(error.contains("0.layers.0.inner.weight on rank"), "{error}");
        let (loss, gradients) = step(None, Some(&scaler));
        let gradients = scaler.unscale(gradients).unwrap().unwrap();
        let norm = |gradients: bonfire_train::Gradients| {
            let norm = gradients.norm().unwrap().unwrap();
            norm.into_scalar::<f64>()
        };
        let (unscaled, plain) = step(None, None);
        // A power of two rounds nothing.
        assert_eq!((loss, norm(gradients)), (unscaled, norm(plain)));
        scales
    });
    // The first overflow uses up patience.
    let expected: Vec<f64> =
        (0..ranks).map(|halvings| 65536.0 / f64::from(1 << halvings)).collect();
    assert!(all.iter().all(|scales| *scales == expected), "{all:?}");
}

/// Each rank has other ranks along each axis.
#[test]
fn a_failure_is_named_on_all_ranks_of_all_axes() {
    let errors = on_ranks(8, |world| {
        let mesh = world.mesh("pp=2,dp=2,tp=2").unwrap();
        let mut pipeline = pipeline(&mesh, Tokens::All);
        let batches = batches(0, 2, &world.device().autodiff());
        let step = pipeline.backward(&batches, |stage, pass| {
            match (world.rank().get(), pass.micro_batch_number()) {
                (6, 3) => Err("no such word".into()),
                _ => stage.stage(pass),
            }
        });
        step.unwrap_err().to_string()
    });
    assert_each_says(&errors, &["the forward pass 1F3 failed: no such word"]);
    for (rank, error) in errors.iter().enumerate() {
        // Those that share no axis with it hear of it from one that does.
        let names = error.contains("rank 6 of the job");
        assert!(rank == 6 || names, "rank {rank}: {error}");
    }
}
