//! Divided layers in a training over the data axes of a mesh.

use bonfire_train::{Checkpoints, DdpConfig, Keep, Milestone, Placement, TensorTable, TrainError};
use burn::optim::{AdafactorConfig, AdamWConfig, ModuleOptimizer};

use super::*;

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

fn loss(block: &Block, rows: usize) -> Tensor<1> {
    let x = values([rows, WIDTH], 5, &autodiff());
    block.forward(x).powi_scalar(2).mean()
}

fn stepped(ddp: &mut Ddp<Block>, optimizer: &mut ModuleOptimizer) {
    let done = ddp.backward(|block| loss(block, TOKENS)).unwrap();
    ddp.step(optimizer, 0.01, done.gradients).unwrap();
}

const MILESTONE: Milestone = Milestone { step: 1, metric: None };

/// In the background, too.
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
                    checkpoints.save_in_background(MILESTONE, &mut ddp, &optimizer, &7).unwrap();
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
        let mut block = cut(block(1), tp);
        block.down = block.down.with_sequence(0);
        let mut ddp = Ddp::new(block, mesh.data()).unwrap();
        if let Err(error) = ddp.backward(|block| loss(block, TOKENS)) {
            // A failure ends also the step that a rank of another group is still in.
            return (TOKENS, error);
        }
        // On the ranks of one group the tokens cannot be divided.
        let rows = TOKENS + mesh.data().rank().index();
        (rows, ddp.backward(|block| loss(block, rows)).unwrap_err())
    });
    // The others, and the second of those ranks, may hear of it before they fail by themselves.
    let is_own =
        |(rows, error): &(usize, _)| *rows != TOKENS && matches!(error, TrainError::Forward(_));
    assert!(errors.iter().any(is_own), "{errors:?}");
    let errors = errors.into_iter().map(|(_, error)| error);
    assert_each_says(errors, &["dimension 0 of a tensor has 13 entries"]);
}
