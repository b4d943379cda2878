//! This rank's part of the parameters, where each rank has some of their rows.

use std::ops::Range;

use bonfire_plan::{Layout, Placement, Rank, WorldSize};
use burn::tensor::{GradientCheckpointingStrategy, Tensor, TensorData};

use crate::parameters::ParameterTable;

/// Which rows of each parameter are this rank's, and which are another's.
#[derive(Clone, Debug)]
pub(crate) struct Shards {
    layout: Layout,
    rank: Rank,
}

impl Shards {
    /// Those of a rank.
    pub(crate) fn new(
        table: &ParameterTable,
        placement: Placement,
        (rank, world_size): (Rank, WorldSize),
    ) -> Self {
        let shapes = (0..table.len()).map(|parameter| &table.get(parameter).shape[..]);
        Self {
            layout: Layout::new(shapes, placement, world_size),
            rank,
        }
    }

    /// Whose they are.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether the ranks have different rows of a parameter.
    pub(crate) fn is_cut(&self, parameter: usize) -> bool {
        self.layout.is_cut(parameter)
    }

    /// This rank's rows.
    pub(crate) fn rows(&self, parameter: usize) -> Range<usize> {
        self.layout.rows(parameter, self.rank)
    }

    /// The elements of each rank's rows, in rank order; of a parameter that is not cut, all of them once.
    pub(crate) fn pieces(&self, parameter: usize) -> Vec<Range<usize>> {
        let ranks = match self.is_cut(parameter) {
            true => self.layout.world_size().get(),
            false => 1,
        };
        let ranks = (0..ranks).map(Rank::new);
        ranks
            .map(|rank| self.layout.elems(parameter, rank))
            .collect()
    }

    /// Which of its [`pieces`](Self::pieces) is this rank's.
    pub(crate) fn own_piece(&self, parameter: usize) -> usize {
        match self.is_cut(parameter) {
            true => self.rank.index(),
            false => 0,
        }
    }
}

/// A copy of some rows of a tensor, perhaps of none: a slice would keep the memory of all.
pub(crate) fn rows_of<const D: usize>(whole: Tensor<D>, rows: Range<usize>) -> Tensor<D> {
    let options = (whole.device(), whole.dtype());
    let mut shape = whole.dims();
    shape[0] = rows.len();
    let data = match rows.is_empty() {
        true => TensorData::new(Vec::<f32>::new(), shape),
        false => whole.slice_dim(0, rows).into_data(),
    };
    Tensor::from_data(data, (&options.0, options.1))
}

/// A trainable parameter with these values, which have no autodiff, on a device with a strategy.
pub(crate) fn trained<const D: usize>(
    values: Tensor<D>,
    checkpointing: Option<GradientCheckpointingStrategy>,
) -> Tensor<D> {
    let parameter = Tensor::from_inner(values);
    let parameter = match checkpointing {
        Some(strategy) => parameter.with_gradient_checkpointing_strategy(strategy),
        None => parameter,
    };
    parameter.require_grad()
}
