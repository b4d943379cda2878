//! A vocabulary whose rows ranks divide.

use bonfire_collective::{GroupOptions, TransportKind};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Int, TensorData};

use super::*;
use crate::VocabParallelCrossEntropy;
use crate::ops::tests::world;

fn tokens(device: &Device) -> Tensor<2, Int> {
    let tokens: Vec<i32> = (0..TOKENS as i32).map(|token| token * 5 % 13).collect();
    Tensor::from_data(TensorData::new(tokens, [2, TOKENS / 2]), device)
}

#[test]
fn a_divided_vocabulary_has_the_vectors_and_the_gradients_of_the_whole() {
    for ranks in 1..=4 {
        // The length of 6 is divided by 1 to 3.
        for sequence in [false, true].into_iter().take(if ranks == 4 { 1 } else { 2 }) {
            on_ranks(ranks, |tp| {
                let dense = table();
                let whole = dense.forward(tokens(&autodiff()));
                let gradients = whole.clone().powi_scalar(2).sum().backward();
                let part = VocabParallelEmbedding::from_embedding(table(), &tp).unwrap();
                let (part, expected) = if sequence {
                    (part.with_sequence(1), own(whole, 1, &tp))
                } else {
                    (part, whole)
                };
                let rows = part.rows();
                let found = part.forward(tokens(&autodiff()));
                // One summand is not zero.
                assert!(list(found.clone()) == list(expected));
                let expected = gradient(&dense.weight, &gradients);
                let expected = expected.narrow(0, rows.start, rows.len());
                let gradients = found.powi_scalar(2).sum().backward();
                let found = list(gradient(&part.weight, &gradients));
                assert_close(&found, &list(expected), &format!("{ranks} ranks"));
            });
        }
    }
}

const IGNORED: i32 = 12;

fn targets() -> Tensor<1, Int> {
    let targets: Vec<i32> = (0..TOKENS as i32).map(|token| token * 7 % 13).collect();
    Tensor::from_data(TensorData::new(targets, [TOKENS]), &autodiff())
}

/// Burn's loss and the gradients of hidden state and table.
fn dense_loss(scale: f32, smoothing: f64, ignores: bool) -> [Values; 3] {
    let x = values([TOKENS, WIDTH], 5, &autodiff()).mul_scalar(scale);
    let x = x.detach().require_grad();
    let table = table();
    let loss = CrossEntropyLossConfig::new()
        .with_smoothing((smoothing > 0.0).then_some(smoothing as f32))
        .with_pad_tokens(ignores.then(|| vec![IGNORED as usize]))
        .init(&autodiff());
    let scores = x.clone().matmul(table.weight.val().transpose());
    let loss = loss.forward(scores, targets());
    let gradients = loss.backward();
    let table = gradient(&table.weight, &gradients);
    [list(loss), list(x.grad(&gradients).unwrap()), list(table)]
}

/// The same of a divided table, of which this rank's rows.
fn divided_loss(scale: f32, (smoothing, ignores): (f64, bool), tp: &World) -> [Values; 3] {
    let x = values([TOKENS, WIDTH], 5, &autodiff()).mul_scalar(scale);
    let x = x.detach().require_grad();
    let table = VocabParallelEmbedding::from_embedding(table(), tp).unwrap();
    let loss = VocabParallelCrossEntropy::new().with_smoothing(smoothing);
    let loss = if ignores { loss.with_ignored(i64::from(IGNORED)) } else { loss };
    let loss = loss.forward(&table, table.logits(x.clone()), targets());
    let gradients = loss.backward();
    let own = gradient(&table.weight, &gradients);
    [list(loss), list(x.grad(&gradients).unwrap()), list(own)]
}

#[test]
fn a_divided_cross_entropy_is_that_of_all_scores() {
    for (scale, smoothing, ignores) in [
        (1.0, 0.0, false),
        (1.0, 0.1, false),
        (1.0, 0.0, true),
        (1.0, 0.3, true),
        // Scores of about ten thousand.
        (1e3, 0.0, true),
    ] {
        let [loss, x, table] = dense_loss(scale, smoothing, ignores);
        assert!(loss[0].is_finite());
        for ranks in 1..=4 {
            on_ranks(ranks, |tp| {
                let found = divided_loss(scale, (smoothing, ignores), &tp);
                let what = format!("{scale} {smoothing} {ignores} on {ranks} ranks");
                assert_close(&found[0], &loss, &format!("loss, {what}"));
                assert_close(&found[1], &x, &format!("x, {what}"));
                let rows = bonfire_plan::shard_range(VOCABULARY, tp.world_size(), tp.rank());
                let rows = rows.as_range();
                let own = table[rows.start * WIDTH..rows.end * WIDTH].to_vec();
                let largest = table.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
                // Relative to the largest of the whole.
                let with = |mut values: Values| {
                    values.push(largest);
                    values
                };
                assert_close(&with(found[2].clone()), &with(own), &format!("table, {what}"));
            });
        }
    }
}

/// Of three tokens, of which the second has this target.
fn loss_with(table: &VocabParallelEmbedding, target: i32, ignored: i64) -> Tensor<1> {
    let device = autodiff();
    let targets = Tensor::<1, Int>::from_data([4, target, 0], &device);
    let scores = table.logits(values([3, WIDTH], 5, &device));
    let loss = VocabParallelCrossEntropy::new().with_ignored(ignored);
    loss.forward(table, scores, targets)
}

#[test]
fn a_target_outside_of_the_vocabulary_is_named_on_all_ranks() {
    for wrong in [13, -1] {
        let errors = on_ranks(2, |world| {
            let mesh = world.mesh("tp=2").unwrap();
            let table = VocabParallelEmbedding::from_embedding(table(), mesh.sub(Axis::Tp));
            let table = table.unwrap();
            let mut ddp = Ddp::new(table, mesh.replicas()).unwrap();
            let good = ddp.backward(|table| loss_with(table, wrong, i64::from(wrong)));
            assert!(good.unwrap().loss.value().unwrap().is_finite());
            ddp.backward(|table| loss_with(table, wrong, -100)).unwrap_err()
        });
        let words = format!("the target {wrong} is not in the vocabulary, 0 to 12");
        assert_each_says(errors, &[&words]);
    }
}

#[test]
#[should_panic(expected = "the target 13 is not in the vocabulary, 0 to 12")]
fn a_target_outside_of_a_whole_vocabulary_is_named() {
    let _ = loss_with(&table().into(), 13, -100);
}

/// However large the vocabulary, ranks send each other three numbers per token.
#[test]
fn scores_stay_where_they_are() {
    let options = GroupOptions::default().with_transport(Some(TransportKind::Tcp));
    let sent = |vocabulary: usize| -> Vec<u64> {
        bonfire_testkit::connected(2, options.clone(), |group| {
            let tp = world(group);
            let table = Embedding {
                weight: Param::from_tensor(values([vocabulary, WIDTH], 9, &autodiff())),
            };
            let table = VocabParallelEmbedding::from_embedding(table, &tp).unwrap();
            let rows = table.rows().len();
            let scores = values([TOKENS, rows], 1, &autodiff()).require_grad();
            let pass = || {
                let before = tp.group().traffic().payload_bytes_sent;
                let loss = VocabParallelCrossEntropy::new();
                let loss = loss.forward(&table, scores.clone(), targets());
                let gradients = loss.backward();
                assert_eq!(scores.grad(&gradients).unwrap().dims(), [TOKENS, rows]);
                tp.group().traffic().payload_bytes_sent - before
            };
            // In the first one the links are measured, too.
            pass();
            pass()
        })
    };
    // An all-reduce of two ranks sends each element once, or twice half of them.
    let three = (3 * TOKENS * size_of::<f32>()) as u64;
    assert_eq!(sent(20), [three; 2]);
    assert_eq!(sent(2000), [three; 2]);
}
