//! Divided layers beside those that they are cut from.

use bonfire_collective::{GroupOptions, TransportKind};
use bonfire_train::{
    Axis, Checkpoints, Ddp, DdpConfig, Keep, Milestone, Placement, TensorTable, TrainError, World,
};
use burn::module::{Lora, Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, LayerNorm, LayerNormConfig, Linear};
use burn::optim::{AdafactorConfig, AdamWConfig, ModuleOptimizer};
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData, activation};

use crate::ops::tests::{autodiff, on_ranks, values, world};
use crate::{
    ColumnParallelLinear, ParallelError, RowParallelLinear, VocabParallelCrossEntropy,
    VocabParallelEmbedding, ops, sequence_parallel,
};

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
        (
            sequence_parallel(norm(), tp).unwrap(),
            up.with_sequence(0),
            down.with_sequence(0),
            own(x, 0, tp),
        )
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

#[test]
fn what_cannot_be_divided_is_refused_by_name() {
    on_ranks(4, |tp| {
        let text = |error: ParallelError| error.to_string();
        let column = ColumnParallelLinear::from_linear(linear(4, 6, 1), &tp);
        let column = text(column.unwrap_err());
        assert!(
            column.contains("dimension 1 of the weight") && column.contains("6 entries"),
            "{column}"
        );
        let row = text(RowParallelLinear::from_linear(linear(6, 4, 1), &tp).unwrap_err());
        assert!(row.contains("dimension 0 of the weight"), "{row}");
        let fused = ColumnParallelLinear::from_fused(linear(4, 18, 1), 3, &tp);
        assert!(text(fused.unwrap_err()).contains("6 entries, which 4 ranks"));
        let small = Embedding { weight: Param::from_tensor(values([3, 2], 1, &autodiff())) };
        let small = text(VocabParallelEmbedding::from_embedding(small, &tp).unwrap_err());
        assert!(small.contains("a vocabulary of 3 cannot be divided among 4"), "{small}");
    });
}

/// Not divided by 2, 3 or 4.
const VOCABULARY: usize = 13;

fn table() -> Embedding {
    Embedding { weight: Param::from_tensor(values([VOCABULARY, WIDTH], 9, &autodiff())) }
}

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
            let tp = mesh.sub(Axis::Tp);
            let table = VocabParallelEmbedding::from_embedding(table(), tp).unwrap();
            let mut ddp = Ddp::new(table, mesh.replicas()).unwrap();
            let good = ddp.backward(|table| loss_with(table, wrong, i64::from(wrong)));
            assert!(good.unwrap().loss.value().unwrap().is_finite());
            let bad = ddp.backward(|table| loss_with(table, wrong, -100));
            bad.unwrap_err().to_string()
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

/// A block in a training over the data axes of a mesh.
#[derive(Module, Debug)]
struct Block {
    up: ColumnParallelLinear,
    down: RowParallelLinear,
}

impl Block {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.down.forward(activation::gelu(self.up.forward(x)))
    }
}

fn block(seed: u32) -> Block {
    Block { up: linear(WIDTH, HIDDEN, seed).into(), down: linear(HIDDEN, WIDTH, seed + 2).into() }
}

fn cut(block: Block, tp: &World) -> Block {
    let (up, down) = (block.up.to_linear().unwrap(), block.down.to_linear().unwrap());
    Block {
        up: ColumnParallelLinear::from_linear(up, tp).unwrap(),
        down: RowParallelLinear::from_linear(down, tp).unwrap(),
    }
}

/// All parameters, of whole layers.
fn parameters(block: &Block) -> Values {
    let layers = [block.up.to_linear(), block.down.to_linear()];
    let layers = layers.map(Result::unwrap).into_iter();
    let values = layers.map(|layer| [list(layer.weight.val()), list(layer.bias.unwrap().val())]);
    values.flatten().flatten().collect()
}

fn stepped(ddp: &mut Ddp<Block>, optimizer: &mut ModuleOptimizer) {
    let forward = |block: &Block| {
        let x = values([TOKENS, WIDTH], 5, &autodiff());
        block.forward(x).powi_scalar(2).mean()
    };
    let done = ddp.backward(forward).unwrap();
    ddp.step(optimizer, 0.01, done.gradients).unwrap();
}

const MILESTONE: Milestone = Milestone { step: 1, metric: None };

/// Also where it is written while the training goes on.
#[test]
fn divided_layers_are_saved_and_resumed_as_whole_ones() {
    for placement in [Placement::replicated(), Placement::zero2(), Placement::zero3()] {
        for in_background in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let open = |world: &World| Checkpoints::open(world, folder.path(), Keep::default());
            let mut saved = on_ranks(4, |world| {
                let mesh = world.mesh("dp=2,tp=2").unwrap();
                let tp = mesh.sub(Axis::Tp);
                let whole = block(1);
                let checkpoints = open(&world).unwrap();
                let checkpoints = checkpoints.with_parts(TensorTable::of(&whole), &mesh).unwrap();
                let config = DdpConfig::default().with_placement(placement);
                let mut ddp = Ddp::with_config(cut(whole, tp), mesh.replicas(), config).unwrap();
                let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
                stepped(&mut ddp, &mut optimizer);
                let then = parameters(&ddp.whole().unwrap());
                if in_background {
                    let saving =
                        checkpoints.save_in_background(MILESTONE, &mut ddp, &optimizer, &7);
                    saving.unwrap();
                    stepped(&mut ddp, &mut optimizer);
                    checkpoints.wait().unwrap();
                } else {
                    checkpoints.save(MILESTONE, &mut ddp, &optimizer, &7).unwrap();
                }
                then
            });
            let saved = saved.remove(0);
            on_ranks(1, |world| {
                let mut ddp = Ddp::new(block(50), &world).unwrap();
                let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
                let resumed = open(&world).unwrap().resume::<_, i32>(&mut ddp, &mut optimizer);
                assert_eq!(resumed.unwrap().unwrap().state, 7);
                assert!(parameters(&ddp.whole().unwrap()) == saved, "{placement}");
            });
        }
    }
}

#[test]
fn parts_of_something_else_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let errors = on_ranks(2, |world| {
        let mesh = world.mesh("tp=2").unwrap();
        let checkpoints = Checkpoints::open(&world, folder.path(), Keep::default()).unwrap();
        // Other parameters, however alike.
        let checkpoints = checkpoints.with_parts(TensorTable::of(&block(1)), &mesh).unwrap();
        let mut ddp = Ddp::new(cut(block(1), mesh.sub(Axis::Tp)), mesh.replicas()).unwrap();
        let optimizer = AdamWConfig::new().init();
        checkpoints.save(MILESTONE, &mut ddp, &optimizer, &()).unwrap_err().to_string()
    });
    assert_each_says(errors, &["parameter up.weight cannot be saved"]);
    let errors = on_ranks(4, |world| {
        let mesh = world.mesh("dp=2,tp=2").unwrap();
        let checkpoints = Checkpoints::open(&world, folder.path(), Keep::default()).unwrap();
        let whole = block(1);
        let checkpoints = checkpoints.with_parts(TensorTable::of(&whole), &mesh).unwrap();
        let mut ddp = Ddp::new(cut(whole, mesh.sub(Axis::Tp)), mesh.replicas()).unwrap();
        // It keeps sums over rows and columns.
        let mut optimizer: ModuleOptimizer = AdafactorConfig::new().init();
        stepped(&mut ddp, &mut optimizer);
        let saved = checkpoints.save(MILESTONE, &mut ddp, &optimizer, &());
        saved.unwrap_err().to_string()
    });
    let words = "take an optimizer whose state has the shape of its parameters";
    assert_each_says(errors, &[words]);
    let errors = on_ranks(2, |world| {
        let mesh = world.mesh("tp=2").unwrap();
        let checkpoints = Checkpoints::open(&world, folder.path(), Keep::default()).unwrap();
        let layers = linear(4 + world.rank().index(), 6, 1);
        checkpoints.with_parts(TensorTable::of(&layers), &mesh).unwrap_err().to_string()
    });
    assert_each_says(errors, &["weight", "[5, 6]"]);
}

#[test]
fn a_layer_that_fails_ends_the_step_on_all_ranks_with_its_error() {
    let errors = on_ranks(4, |world| {
        let mesh = world.mesh("dp=2,tp=2").unwrap();
        let tp = mesh.sub(Axis::Tp);
        let block = Block {
            up: ColumnParallelLinear::from_linear(linear(WIDTH, HIDDEN, 1), tp).unwrap(),
            down: RowParallelLinear::from_linear(linear(HIDDEN, WIDTH, 3), tp)
                .unwrap()
                .with_sequence(0),
        };
        let mut ddp = Ddp::new(block, mesh.data()).unwrap();
        let good = ddp.backward(|block| {
            let x = values([TOKENS, WIDTH], 5, &autodiff());
            block.forward(x).powi_scalar(2).mean()
        });
        if let Err(error) = good {
            // A failure ends also the step that a rank of another group is still in.
            return (TOKENS, error);
        }
        // On the ranks of one group the tokens cannot be divided.
        let rows = TOKENS + mesh.data().rank().index();
        let bad = ddp.backward(|block| {
            let x = values([rows, WIDTH], 5, &autodiff());
            block.forward(x).powi_scalar(2).mean()
        });
        (rows, bad.unwrap_err())
    });
    // The others, and the second of those ranks, may hear of it before they fail by themselves.
    let is_own =
        |(rows, error): &(usize, _)| *rows != TOKENS && matches!(error, TrainError::Forward(_));
    assert!(errors.iter().any(is_own), "{errors:?}");
    for (_, error) in errors {
        let text = error.to_string();
        assert!(text.contains("dimension 0 of a tensor has 13 entries"), "{text}");
    }
}
