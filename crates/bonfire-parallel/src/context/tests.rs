//! Attention of ranks to each other's tokens beside that of one rank to all of them, and what happens if one fails.

use bonfire_collective::Rank;
use bonfire_testkit::assert_each_says;
use bonfire_train::{Axis, Ddp, Gradients, IntoLoss, TrainError, World};
use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData, activation};

use crate::ops::tests::{autodiff, on_ranks, values};
use crate::{
    AttentionMask, ParallelError, context_loss, ops, ring_attention, zigzag_ranges, zigzag_split,
};

const BOTH: [AttentionMask; 2] = [AttentionMask::All, AttentionMask::Causal];

/// Two sequences with three heads. The tokens are divided by twice 1 to 4 ranks.
const SHAPE: [usize; 4] = [2, 3, 24, 5];

/// The longest chain of additions: a score, a sum over the tokens, and the same backwards; and one more for each of up to
/// 4 blocks.
const TERMS: usize = 2 * (SHAPE[2] + SHAPE[3]) + 4;

fn dense<const D: usize>(
    query: Tensor<D>,
    key: Tensor<D>,
    value: Tensor<D>,
    attend: AttentionMask,
) -> Tensor<D> {
    let [tokens, features] = [D - 2, D - 1].map(|dim| query.dims()[dim]);
    let scores = query.matmul(key.transpose());
    // Not divided: of a division Burn computes the gradient in f32.
    let scores = scores.mul_scalar(1.0 / (features as f64).sqrt());
    let shape = scores.dims();
    let later = Tensor::<2, Bool>::tril_mask([tokens, tokens], 0, &scores.device());
    let scores = match attend {
        AttentionMask::All => scores,
        AttentionMask::Causal => {
            scores.mask_fill(later.unsqueeze::<D>().expand(shape), f32::NEG_INFINITY)
        }
    };
    activation::softmax(scores, D - 1).matmul(value)
}

/// Query, key and value, and what the output is multiplied with.
fn inputs(dtype: DType, scale: f64) -> [Tensor<4>; 4] {
    [1, 2, 3, 4].map(|seed| {
        let x = values(SHAPE, seed, &autodiff()).cast(dtype);
        let x = if seed < 3 { x.mul_scalar(scale) } else { x };
        x.detach()
    })
}

/// The output, and the gradients of query, key and value of a sum in which every element counts differently.
fn found(
    [query, key, value, weights]: [Tensor<4>; 4],
    attention: impl FnOnce([Tensor<4>; 3]) -> Tensor<4>,
) -> [Tensor<4>; 4] {
    let leaves = [query, key, value].map(Tensor::require_grad);
    let output = attention(leaves.clone());
    let gradients = (output.clone() * weights).sum().backward();
    let [query, key, value] = leaves.map(|leaf| leaf.grad(&gradients).unwrap());
    [output.without_autodiff(), query, key, value]
}

fn list<const D: usize>(x: Tensor<D>) -> Vec<f64> {
    x.into_data().iter::<f64>().collect()
}

/// Two values that differ in the order of additions are as far apart as each addition rounds, times their number, to
/// first order; relative to the largest, because what is added may cancel.
fn assert_close(found: &[f64], expected: &[f64], (epsilon, what): (f64, &str)) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
    let tolerance = TERMS as f64 * epsilon / 2.0 * largest;
    assert!(largest > 0.0 && largest.is_finite(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        let apart = (found - expected).abs();
        assert!(apart <= tolerance, "{what}: {found} and {expected}, {apart} > {tolerance}");
    }
}

const NAMES: [&str; 4] = ["output", "query", "key", "value"];

#[test]
fn outputs_and_gradients_are_those_of_all_tokens_on_one_rank() {
    let types = [(DType::F64, f64::EPSILON), (DType::F32, f64::from(f32::EPSILON))];
    for (dtype, epsilon) in types {
        for attend in BOTH {
            let whole = found(inputs(dtype, 1.0), |[q, k, v]| dense(q, k, v, attend));
            for ranks in 1..=4 {
                on_ranks(ranks, |cp| {
                    let own = |x| zigzag_split(x, 2, &cp).unwrap();
                    let ring = || {
                        found(inputs(dtype, 1.0).map(own), |[q, k, v]| {
                            ring_attention(q, k, v, attend, &cp).unwrap()
                        })
                    };
                    let (first, again) = (ring(), ring());
                    for (index, name) in NAMES.into_iter().enumerate() {
                        let expected = list(own(whole[index].clone()));
                        let found = list(first[index].clone());
                        let what = format!("{name} of {attend}, {dtype:?} on {ranks} ranks");
                        assert_close(&found, &expected, (epsilon, &what));
                        // In the same order of additions every time.
                        assert!(found == list(again[index].clone()), "{what}");
                    }
                });
            }
        }
    }
}

/// Exponentials of the scores would overflow.
#[test]
fn scores_of_any_size_are_right() {
    for attend in BOTH {
        let whole = found(inputs(DType::F64, 1e3), |[q, k, v]| dense(q, k, v, attend));
        on_ranks(3, |cp| {
            let own = |x| zigzag_split(x, 2, &cp).unwrap();
            let output = found(inputs(DType::F64, 1e3).map(own), |[q, k, v]| {
                ring_attention(q, k, v, attend, &cp).unwrap()
            });
            let expected = list(own(whole[0].clone()));
            // A score of about a million is rounded, and its exponential by as much.
            let epsilon = 1e6 * f64::EPSILON;
            assert_close(&list(output[0].clone()), &expected, (epsilon, "large scores"));
        });
    }
}

#[test]
fn halves_are_computed_in_f32_and_come_back_as_they_were() {
    on_ranks(2, |cp| {
        let own = |x| zigzag_split(x, 2, &cp).unwrap();
        let exact = inputs(DType::BF16, 1.0).map(|x| x.cast(DType::F32));
        let whole = found(exact, |[q, k, v]| dense(q, k, v, AttentionMask::Causal));
        let halves = found(inputs(DType::BF16, 1.0).map(own), |[q, k, v]| {
            ring_attention(q, k, v, AttentionMask::Causal, &cp).unwrap()
        });
        for (index, name) in NAMES.into_iter().enumerate() {
            assert_eq!(halves[index].dtype(), DType::BF16);
            let expected = list(own(whole[index].clone()));
            // Rounded once: 8 bits of mantissa.
            let epsilon = 2.0_f64.powi(-7) / TERMS as f64;
            assert_close(&list(halves[index].clone()), &expected, (epsilon, name));
        }
    });
}

#[test]
fn ranks_have_chunks_from_both_ends() {
    let all = on_ranks(3, |cp| zigzag_ranges(24, &cp).unwrap());
    assert_eq!(all, [[0..4, 20..24], [4..8, 16..20], [8..12, 12..16]]);
    // How many tokens the tokens of a rank look at.
    let seen = all.iter().flatten().map(|chunk| chunk.clone().map(|token| token + 1));
    let seen: Vec<usize> = seen.map(Iterator::sum).collect();
    assert!(seen.chunks(2).all(|of_rank| of_rank.iter().sum::<usize>() == 100));
    on_ranks(1, |cp| assert_eq!(zigzag_ranges(7, &cp).unwrap(), [0..3, 3..7]));
    on_ranks(2, |cp| {
        let tokens = Tensor::<1, Int>::arange(0..8, &Device::flex());
        let own = zigzag_split(tokens, 0, &cp).unwrap().into_data();
        let expected = [[0, 1, 6, 7], [2, 3, 4, 5]][cp.rank().index()];
        assert_eq!(own.iter::<i64>().collect::<Vec<_>>(), expected);
    });
}

#[test]
fn what_does_not_fit_is_refused_on_all_ranks_and_ends_nothing() {
    on_ranks(3, |cp| {
        let error = zigzag_split(values([2, 16], 0, &autodiff()), 1, &cp).unwrap_err();
        let words = "dimension 1 has 16 tokens on 3 ranks, which are not 6 equal chunks";
        assert!(error.to_string().contains(words), "{error}");
        let attend = |x: Tensor<2>, attend| ring_attention(x.clone(), x.clone(), x, attend, &cp);
        let error = attend(values([5, 2], 0, &autodiff()), AttentionMask::Causal).unwrap_err();
        assert!(error.to_string().contains("15 tokens on 3 ranks"), "{error}");
        let tokens = if cp.rank() == Rank::new(1) { 4 } else { 6 };
        let error = attend(values([tokens, 2], 0, &autodiff()), AttentionMask::All).unwrap_err();
        let words = "rank 1 attends with F32 [4, 2] to all tokens, and rank 0 with F32 [6, 2]";
        assert!(error.to_string().contains(words), "{error}");
        attend(values([5, 2], 0, &autodiff()), AttentionMask::All).unwrap();
    });
}

#[test]
fn a_dead_rank_is_named() {
    let errors = on_ranks(4, |cp| {
        if cp.rank() == Rank::new(2) {
            cp.group().abort("its power supply");
            return None;
        }
        let [query, key, value, _] = inputs(DType::F32, 1.0);
        let output = ring_attention(query, key, value, AttentionMask::All, &cp);
        output.err()
    });
    assert_eq!(errors.iter().flatten().count(), 3);
    assert_each_says(errors.into_iter().flatten(), &["rank 2", "power"]);
}

/// The pass goes on to its end, and the failure is there afterwards.
#[test]
fn a_rank_that_dies_before_the_backward_pass_is_named() {
    let errors = on_ranks(3, |cp| {
        let [query, key, value, _] = inputs(DType::F32, 1.0);
        let query = query.require_grad();
        let output = ring_attention(query.clone(), key, value, AttentionMask::Causal, &cp).unwrap();
        // Others may still be in it when rank 1 has left it and fails.
        let met = cp.group().barrier();
        if cp.rank() == Rank::new(1) {
            met.unwrap();
            cp.group().abort("its power supply");
            return None;
        }
        let gradients = output.sum().backward();
        let gradient = query.grad(&gradients).unwrap().into_data();
        gradient.assert_eq(&TensorData::zeros::<f32, _>(SHAPE), true);
        cp.take_failure()
    });
    assert_eq!(errors.iter().flatten().count(), 2);
    assert_each_says(errors.into_iter().flatten(), &["rank 1", "power"]);
}

const WIDTH: usize = 6;

fn projection() -> Linear {
    Linear {
        weight: Param::from_tensor(values([WIDTH, 3 * WIDTH], 1, &autodiff()).detach()),
        bias: None,
    }
}

/// What each token of two sequences looks for, and whether it counts.
fn batch(sequence: usize) -> [Tensor<3>; 2] {
    let device = autodiff();
    let tokens = values([1, 24, WIDTH], sequence as u32, &device);
    // Other numbers in each sequence and in each of its chunks.
    let counts = (0..24).map(|token| f32::from(u8::from(token * token % (5 + sequence) < 3)));
    let counts = TensorData::new(counts.collect::<Vec<f32>>(), [1, 24, 1]);
    [tokens, Tensor::from_data(counts, &device)]
}

/// The loss of the tokens that count, summed, and how many do.
fn loss(
    layer: &Linear,
    [tokens, counts]: [Tensor<3>; 2],
    attend: impl FnOnce([Tensor<3>; 3]) -> Tensor<3>,
) -> (Tensor<1>, usize) {
    let parts: Vec<Tensor<3>> = layer.forward(tokens).chunk(3, 2);
    let output = attend(parts.try_into().unwrap());
    let counted = counts.clone().sum().into_scalar::<f32>() as usize;
    ((output.powi_scalar(2) * counts).sum(), counted)
}

fn gradient<L: IntoLoss>(world: &World, forward: impl FnOnce(&Linear) -> L) -> (f64, Vec<f64>) {
    let mut ddp = Ddp::new(projection(), world).unwrap();
    let step = ddp.backward(forward).unwrap();
    let loss = step.loss.over_ranks(world).unwrap();
    let gradients: Gradients = step.gradients;
    let gradient = gradients.get(&ddp.module().weight).unwrap();
    (loss, list(gradient))
}

/// Ranks along cp are ranks that gradients are averaged over. Sequences, and the tokens of their ranks, count unevenly.
#[test]
fn a_step_over_dp_and_cp_is_one_over_all_tokens_that_count() {
    let (loss_of_all, expected) = on_ranks(1, |world| {
        gradient(&world, |layer| {
            let all = [0, 1].map(|sequence| {
                loss(layer, batch(sequence), |[q, k, v]| dense(q, k, v, AttentionMask::Causal))
            });
            let [(first, one), (second, two)] = all;
            (first + second).div_scalar((one + two) as f64)
        })
    })
    .remove(0);
    let found = on_ranks(4, |world| {
        let mesh = world.mesh("dp=2,cp=2").unwrap();
        let cp = mesh.sub(Axis::Cp);
        let own = batch(mesh.data().rank().index());
        let own = own.map(|x| zigzag_split(x, 1, cp).unwrap());
        gradient(mesh.replicas(), |layer| {
            let (sum, tokens) = loss(layer, own, |[q, k, v]| {
                ring_attention(q, k, v, AttentionMask::Causal, cp).unwrap()
            });
            context_loss(sum, tokens, cp)
        })
    });
    let epsilon = f64::from(f32::EPSILON);
    for (loss, found) in found {
        assert_close(&[loss], &[loss_of_all], (epsilon, "loss"));
        assert_close(&found, &expected, (epsilon, "gradient"));
    }
}

#[test]
fn a_layer_that_fails_ends_the_step_on_all_ranks_with_its_error() {
    let errors = on_ranks(4, |world| {
        let mesh = world.mesh("dp=2,cp=2").unwrap();
        let cp = mesh.sub(Axis::Cp);
        let mut ddp = Ddp::new(projection(), mesh.replicas()).unwrap();
        // One rank has more tokens than the other with the same sequences.
        let tokens = if world.rank() == Rank::new(3) { 8 } else { 4 };
        let step = ddp.backward(|layer| -> Result<Tensor<1>, ParallelError> {
            let x = layer.forward(values([1, tokens, WIDTH], 0, &autodiff()));
            let x = ring_attention(x.clone(), x.clone(), x, AttentionMask::Causal, cp)?;
            ops::reduce(x.mean(), cp)
        });
        step.unwrap_err()
    });
    // The others, and the second of those ranks, may hear of it before they fail by themselves.
    let is_own = |error: &TrainError| matches!(error, TrainError::Forward(_));
    assert!(errors[2..].iter().any(is_own), "{errors:?}");
    assert_each_says(errors, &["rank 1 attends with F32 [1, 8, 18]"]);
}
