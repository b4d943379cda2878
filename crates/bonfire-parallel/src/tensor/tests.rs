//! Divided layers beside those that they are cut from.

use bonfire_testkit::assert_each_says;
use bonfire_train::{Axis, Ddp, World};
use burn::module::{Lora, Module, Param};
use burn::nn::{Embedding, LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Device, Gradients, Tensor, activation};

use crate::ops::tests::{autodiff, on_ranks, values};
use crate::{
    ColumnParallelLinear, ParallelError, RowParallelLinear, VocabParallelEmbedding, ops,
    sequence_parallel,
};

mod training;
mod vocabulary;

/// Divided by 1 to 4 ranks.
const TOKENS: usize = 12;
const WIDTH: usize = 48;
const HIDDEN: usize = 72;
/// Half of a matrix is large enough to be cut into rows.
const _: () = assert!(WIDTH * HIDDEN / 2 >= 1024);

/// The longest chain of additions, forwards and backwards.
const TERMS: usize = 2 * (TOKENS + WIDTH + HIDDEN);

fn linear(inputs: usize, outputs: usize, seed: u32) -> Linear {
    let device = autodiff();
    let weight = values([inputs, outputs], seed, &device) / (inputs as f32).sqrt();
    Linear {
        weight: Param::from_tensor(weight.detach()),
        bias: Some(Param::from_tensor(values([outputs], seed + 1, &device))),
    }
}

fn norm() -> LayerNorm {
    let mut norm: LayerNorm = LayerNormConfig::new(WIDTH).init(&autodiff());
    norm.gamma = Param::from_tensor(values([WIDTH], 7, &autodiff()));
    norm
}

type Values = Vec<f32>;

fn list<const D: usize>(tensor: Tensor<D>) -> Values {
    tensor.into_data().try_to_vec().unwrap()
}

fn gradient<const D: usize>(param: &Param<Tensor<D>>, gradients: &Gradients) -> Tensor<D> {
    param.base().grad(gradients).unwrap()
}

/// Two values that differ in the order of additions are as far apart as each addition rounds, times their number, to
/// first order; relative to the largest, because what is added may cancel.
fn assert_close(found: &Values, expected: &Values, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
    let tolerance = TERMS as f32 * f32::EPSILON / 2.0 * largest;
    for (found, expected) in found.iter().zip(expected) {
        let apart = (found - expected).abs();
        assert!(apart <= tolerance, "{what}: {found} and {expected}, {apart} > {tolerance}");
    }
}

fn own<const D: usize>(whole: Tensor<D>, dim: usize, tp: &World) -> Tensor<D> {
    ops::scatter(whole, dim, tp).unwrap()
}

/// Output and gradients of a block, whole or this rank's part, with names.
type Found = Vec<(&'static str, Values)>;

/// A residual block of burn's layers, and the part of each result that a rank of `tp` must find.
fn dense_block(sequence: bool, tp: &World) -> Found {
    let (norm, up, down) = (norm(), linear(WIDTH, HIDDEN, 1), linear(HIDDEN, WIDTH, 3));
    let x = values([TOKENS, WIDTH], 5, &autodiff()).require_grad();
    let inner = activation::gelu(up.forward(norm.forward(x.clone())));
    let output = x.clone() + down.forward(inner);
    let gradients = loss_of(output.clone()).backward();
    let tokens = |x: Tensor<2>| {
        if sequence { own(x.without_autodiff(), 0, tp) } else { x }
    };
    let of = |bias: &Option<Param<Tensor<1>>>| gradient(bias.as_ref().unwrap(), &gradients);
    vec![
        ("output", list(tokens(output))),
        ("x", list(tokens(x.grad(&gradients).unwrap()))),
        ("gamma", list(gradient(&norm.gamma, &gradients))),
        ("beta", list(of(&norm.beta))),
        ("up", list(own(gradient(&up.weight, &gradients), 1, tp))),
        ("up bias", list(own(of(&up.bias), 0, tp))),
        ("down", list(own(gradient(&down.weight, &gradients), 0, tp))),
        ("down bias", list(of(&down.bias))),
    ]
}

/// A sum over tokens, each of which counts differently.
fn loss_of(output: Tensor<2>) -> Tensor<1> {
    output.powi_scalar(2).sum()
}

fn divided_block(sequence: bool, tp: &World) -> Found {
    let up = ColumnParallelLinear::from_linear(linear(WIDTH, HIDDEN, 1), tp).unwrap();
    let down = RowParallelLinear::from_linear(linear(HIDDEN, WIDTH, 3), tp).unwrap();
    let x = values([TOKENS, WIDTH], 5, &autodiff());
    let (norm, up, down, x) = if sequence {
        let norm = sequence_parallel(norm(), tp).unwrap();
        (norm, up.with_sequence(0), down.with_sequence(0), own(x, 0, tp))
    } else {
        (norm(), up, down, x)
    };
    let x = x.detach().require_grad();
    let inner = activation::gelu(up.forward(norm.forward(x.clone())));
    let output = x.clone() + down.forward(inner);
    let gradients = loss_of(output.clone()).backward();
    let of = |bias: &Option<Param<Tensor<1>>>| gradient(bias.as_ref().unwrap(), &gradients);
    vec![
        ("output", list(output)),
        ("x", list(x.grad(&gradients).unwrap())),
        ("gamma", list(gradient(&norm.gamma, &gradients))),
        ("beta", list(of(&norm.beta))),
        ("up", list(gradient(&up.weight, &gradients))),
        ("up bias", list(of(&up.bias))),
        ("down", list(gradient(&down.weight, &gradients))),
        ("down bias", list(of(&down.bias))),
    ]
}

#[test]
fn a_divided_block_has_the_output_and_the_gradients_of_the_whole() {
    for ranks in 1..=4 {
        for sequence in [false, true] {
            on_ranks(ranks, |tp| {
                let expected = dense_block(sequence, &tp);
                let found = divided_block(sequence, &tp);
                for ((name, found), (_, expected)) in found.iter().zip(&expected) {
                    let what = format!("{name} on {ranks} ranks, sequence {sequence}");
                    assert_close(found, expected, &what);
                }
                // In the same order of additions every time.
                assert!(divided_block(sequence, &tp) == found);
            });
        }
    }
}

/// Each output feature is computed by one rank, as ever.
#[test]
fn columns_are_exact() {
    on_ranks(4, |tp| {
        let x = values([TOKENS, WIDTH], 5, &autodiff());
        let whole = linear(WIDTH, HIDDEN, 1).forward(x.clone());
        let part = ColumnParallelLinear::from_linear(linear(WIDTH, HIDDEN, 1), &tp).unwrap();
        assert!(list(part.forward(x)) == list(own(whole, 1, &tp)));
    });
}

#[test]
fn each_section_of_a_fused_layer_is_divided() {
    on_ranks(2, |tp| {
        let fused = ColumnParallelLinear::from_fused(linear(WIDTH, 3 * 8, 1), 3, &tp).unwrap();
        let x = values([TOKENS, WIDTH], 5, &autodiff());
        let whole = linear(WIDTH, 3 * 8, 1).forward(x.clone());
        let expected = (0..3).map(|section| own(whole.clone().narrow(1, 8 * section, 8), 1, &tp));
        assert!(list(fused.forward(x)) == list(Tensor::cat(expected.collect(), 1)));
        let whole = fused.to_linear().unwrap();
        assert!(list(whole.weight.val()) == list(linear(WIDTH, 3 * 8, 1).weight.val()));
    });
}

/// What is saved is what was divided, and a layer on one rank is the layer itself.
#[test]
fn layers_are_put_together_to_the_bits_that_they_were_cut_from() {
    on_ranks(3, |tp| {
        let dense = || linear(WIDTH, HIDDEN, 1);
        let column = ColumnParallelLinear::from_linear(dense(), &tp).unwrap();
        let row = RowParallelLinear::from_linear(dense(), &tp).unwrap();
        let table = VocabParallelEmbedding::from_embedding(table(), &tp).unwrap();
        assert_eq!(column.weight.shape().as_slice(), [WIDTH, HIDDEN / 3]);
        assert_eq!(row.weight.shape().as_slice(), [WIDTH / 3, HIDDEN]);
        assert!(column.weight.is_require_grad() && table.weight.is_require_grad());
        for whole in [
            column.to_linear().unwrap(),
            row.to_linear().unwrap(),
            ColumnParallelLinear::from(dense()).to_linear().unwrap(),
            RowParallelLinear::from(dense()).to_linear().unwrap(),
        ] {
            assert!(list(whole.weight.val()) == list(dense().weight.val()));
            assert!(list(whole.bias.unwrap().val()) == list(dense().bias.unwrap().val()));
        }
        let whole = table.to_embedding().unwrap();
        assert!(list(whole.weight.val()) == list(self::table().weight.val()));
    });
}

/// Not divided by 2, 3 or 4.
const VOCABULARY: usize = 13;

fn table() -> Embedding {
    Embedding { weight: Param::from_tensor(values([VOCABULARY, WIDTH], 9, &autodiff())) }
}

#[test]
fn what_cannot_be_divided_is_refused_by_name() {
    on_ranks(4, |tp| {
        let text = |error: ParallelError| error.to_string();
        let column = ColumnParallelLinear::from_linear(linear(4, 6, 1), &tp);
        let column = text(column.unwrap_err());
        assert_each_says([column], &["dimension 1 of the weight", "6 entries"]);
        let row = text(RowParallelLinear::from_linear(linear(6, 4, 1), &tp).unwrap_err());
        assert!(row.contains("dimension 0 of the weight"), "{row}");
        let fused = ColumnParallelLinear::from_fused(linear(4, 18, 1), 3, &tp);
        assert!(text(fused.unwrap_err()).contains("6 entries, which 4 ranks"));
        let small = Embedding { weight: Param::from_tensor(values([3, 2], 1, &autodiff())) };
        let small = text(VocabParallelEmbedding::from_embedding(small, &tp).unwrap_err());
        assert!(small.contains("a vocabulary of 3 cannot be divided among 4"), "{small}");
    });
}

#[test]
fn what_has_a_reparameterization_is_not_given_another() {
    on_ranks(2, |tp| {
        let adapted = linear(4, 6, 1).apply_lora(Lora::new(2, 4.0));
        let error = sequence_parallel(adapted, &tp).unwrap_err().to_string();
        let words = "parameter weight has a reparameterization already (lora)";
        assert!(error.contains(words), "{error}");
        let once = sequence_parallel(norm(), &tp).unwrap();
        let error = sequence_parallel(once, &tp).unwrap_err().to_string();
        assert!(error.contains("(sequence_parallel)"), "{error}");
    });
}
