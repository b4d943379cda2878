//! A model that is cut into stages, whose blocks are divided.

use std::ops::Range;

use bonfire_checkpoint::record::TensorTable;
use bonfire_parallel::{
    ColumnParallelLinear, Output, ParallelError, Pass, PipelineError, RowParallelLinear,
};
use bonfire_train::{Axis, Mesh};
use burn::module::Module;

use super::super::meshes::linear;
use super::*;

const WIDTH: usize = 8;
/// The matrices of a block are large enough to be cut.
pub(super) const HIDDEN: usize = 256;
/// The entry, four blocks and the exit.
pub(super) const WEIGHTS: [f64; 6] = [0.1, 1.0, 1.0, 1.0, 1.0, 0.1];

#[derive(Module, Debug)]
pub(super) struct Block {
    pub(super) up: ColumnParallelLinear,
    down: RowParallelLinear,
}

/// Some layers of the model, or all of them.
#[derive(Module, Debug)]
pub(super) struct Stage {
    entry: Option<Linear>,
    pub(super) blocks: Vec<Block>,
    exit: Option<Linear>,
}

impl Stage {
    /// The same in every run, on one rank.
    pub(super) fn whole(device: &Device) -> Self {
        let block = |_| Block {
            up: linear([WIDTH, HIDDEN], device).into(),
            down: linear([HIDDEN, WIDTH], device).into(),
        };
        Self {
            entry: Some(linear([3, WIDTH], device)),
            blocks: (0..WEIGHTS.len() - 2).map(block).collect(),
            exit: Some(linear([WIDTH, 1], device)),
        }
    }

    pub(super) fn part(self, layers: &Range<usize>, tp: &World) -> Result<Self, ParallelError> {
        let own = (1..).zip(self.blocks);
        let own = own.filter(|(layer, _)| layers.contains(layer));
        let divided = |(_, block): (usize, Block)| {
            Ok(Block {
                up: ColumnParallelLinear::from_linear(block.up.to_linear()?, tp)?,
                down: RowParallelLinear::from_linear(block.down.to_linear()?, tp)?,
            })
        };
        Ok(Self {
            entry: self.entry.filter(|_| layers.contains(&0)),
            blocks: own.map(divided).collect::<Result<_, ParallelError>>()?,
            exit: self.exit.filter(|_| layers.contains(&(WEIGHTS.len() - 1))),
        })
    }

    fn stream(&self, x: Tensor<2>) -> Tensor<2> {
        let x = match &self.entry {
            Some(entry) => entry.forward(x),
            None => x,
        };
        let blocks = self.blocks.iter();
        blocks.fold(x, |x, block| x.clone() + block.down.forward(block.up.forward(x).tanh()))
    }

    pub(super) fn loss(&self, x: Tensor<2>, y: Tensor<2>) -> Tensor<1> {
        let exit = self.exit.as_ref().expect("the last stage has the exit");
        (exit.forward(self.stream(x)) - y).powi_scalar(2).mean()
    }

    pub(super) fn forward(&self, pass: &mut Pass<'_, Batch>) -> Result<Output, PipelineError> {
        let (x, y) = pass.micro_batch().clone();
        let x = if pass.is_first() { x } else { pass.input()? };
        Ok(if pass.is_last() { self.loss(x, y).into() } else { self.stream(x).into() })
    }
}

/// What the last stage makes of its stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Head {
    /// Its exit alone.
    Own,
    /// The weights of the entry, too.
    Tied,
}

impl Head {
    pub(super) fn forward(
        self,
        stage: &Stage,
        pass: &mut Pass<'_, Batch>,
    ) -> Result<Output, PipelineError> {
        let y = pass.micro_batch().1.clone();
        match self {
            Self::Tied if pass.is_last() => {
                let (x, entry) = (pass.input()?, pass.tied::<2>()?);
                let stream = stage.stream(x);
                let said = stream.clone().matmul(entry.transpose()).sum_dim(1);
                let exit = stage.exit.as_ref().expect("the last stage has the exit");
                Ok((exit.forward(stream) + said - y).powi_scalar(2).mean().into())
            }
            Self::Own | Self::Tied => stage.forward(pass),
        }
    }

    pub(super) fn entry(stage: &Stage) -> &Param<Tensor<2>> {
        let entry = stage.entry.as_ref();
        &entry.expect("the first stage has the entry").weight
    }
}

pub(super) fn stages(mesh: &Mesh, device: &Device) -> (Stages<Stage>, TensorTable) {
    let (whole, tp) = (Stage::whole(device), mesh.sub(Axis::Tp).clone());
    let table = TensorTable::of(&whole);
    let make = move |layers: Range<usize>| whole.clone().part(&layers, &tp);
    (Stages::new(WEIGHTS, make), table)
}
