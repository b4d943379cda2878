//! This rank's part of the parameters, where each rank has a share.

use std::ops::Range;

use bonfire_collective::ProcessGroup;
use bonfire_plan::{Among, Division, Layout, Placement, Rank, Share};
use burn::tensor::{GradientCheckpointingStrategy, Tensor, TensorData};

use crate::TrainError;
use crate::parameters::ParameterTable;

/// The groups in which shards are dealt and copied.
#[derive(Clone, Debug)]
pub(crate) struct Mesh {
    /// The ranks that have the shards of one copy of the state.
    shards: ProcessGroup,
    /// Those that have the same shard as this one; none if there is one copy.
    copies: Option<ProcessGroup>,
    /// Whether this rank's copy is that of rank 0.
    is_first: bool,
}

impl Mesh {
    /// That of a placement. Every rank calls it.
    #[track_caller]
    pub(crate) fn new(placement: Placement, all: &ProcessGroup) -> Result<Self, TrainError> {
        let one_copy = Self {
            shards: all.clone(),
            copies: None,
            is_first: true,
        };
        let copy_of: Vec<u32> = match placement.among {
            Among::Host => all.topology().hosts().to_vec(),
            Among::Ranks(ranks) => (0..all.world_size().get())
                .map(|rank| rank / ranks)
                .collect(),
            Among::All => return Ok(one_copy),
        };
        let ranks_of = |copy| copy_of.iter().filter(|other| **other == copy).count();
        let sizes: Vec<usize> = copy_of.iter().map(|copy| ranks_of(*copy)).collect();
        if sizes.iter().any(|size| *size != sizes[0]) {
            return Err(TrainError::UnsupportedPlacement {
                placement,
                reason: format!(
                    "its groups have different numbers of ranks: {sizes:?} in rank order"
                ),
            });
        }
        if !placement.is_sharded() || sizes[0] == copy_of.len() {
            return Ok(one_copy);
        }
        let own = copy_of[all.rank().index()];
        let part = |color| -> Result<ProcessGroup, TrainError> {
            let part = all.split(Some(color), 0)?.expect("every rank has a color");
            Ok(part.with_timeout(all.timeout()))
        };
        let shards = part(own)?;
        Ok(Self {
            copies: Some(part(shards.rank().get())?),
            shards,
            is_first: own == copy_of[0],
        })
    }

    /// The ranks that have the shards of one copy of the state.
    pub(crate) fn shards(&self) -> &ProcessGroup {
        &self.shards
    }

    /// The same, where they are all ranks as this group of them, which may have become less patient.
    pub(crate) fn among<'a>(&'a self, all: &'a ProcessGroup) -> &'a ProcessGroup {
        self.copies.as_ref().map_or(all, |_| &self.shards)
    }

    /// Those that have the same shard as this one, if there are any.
    pub(crate) fn copies(&self) -> Option<&ProcessGroup> {
        self.copies.as_ref()
    }

    /// Ends its groups.
    pub(crate) fn abort(&self, cause: &str) {
        if let Some(copies) = &self.copies {
            copies.abort(cause);
            self.shards.abort(cause);
        }
    }
}

/// Which rows of each parameter are this rank's, and which are another's.
#[derive(Clone, Debug)]
pub(crate) struct Shards {
    layout: Layout,
    rank: Rank,
    mesh: Mesh,
}

impl Shards {
    /// Those of a rank.
    pub(crate) fn new(table: &ParameterTable, placement: Placement, mesh: Mesh) -> Self {
        let shapes = (0..table.len()).map(|parameter| &table.get(parameter).shape[..]);
        Self {
            layout: Layout::new(shapes, placement, mesh.shards.world_size()),
            rank: mesh.shards.rank(),
            mesh,
        }
    }

    /// The groups in which they are dealt and copied.
    pub(crate) fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Whether this rank is the first of all that has something of a parameter that is cut.
    pub(crate) fn speaks_for(&self, parameter: usize) -> bool {
        self.mesh.is_first
            && match self.layout.division(parameter) {
                Division::Owned(owner) => owner == self.rank,
                // Rank 0 has a row of each.
                Division::Rows | Division::Whole => self.rank == Rank::new(0),
            }
    }

    /// Whose they are.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether shares are rows, rather than whole parameters.
    pub(crate) fn are_rows(&self) -> bool {
        self.layout.placement().share == Share::Rows
    }

    /// Who has what of a parameter.
    pub(crate) fn division(&self, parameter: usize) -> Division {
        self.layout.division(parameter)
    }

    /// Whether the ranks have different parts of a parameter.
    pub(crate) fn is_cut(&self, parameter: usize) -> bool {
        self.layout.is_cut(parameter)
    }

    /// This rank's rows.
    pub(crate) fn rows(&self, parameter: usize) -> Range<usize> {
        self.layout.rows(parameter, self.rank)
    }

    /// The elements of each rank's rows, in rank order; of a parameter that is not cut into rows, all of them
    /// once.
    pub(crate) fn pieces(&self, parameter: usize) -> Vec<Range<usize>> {
        let elems = |rank| self.layout.elems(parameter, rank);
        match self.division(parameter) {
            Division::Rows => self.layout.world_size().ranks().map(elems).collect(),
            Division::Whole => vec![elems(self.rank)],
            Division::Owned(owner) => vec![elems(owner)],
        }
    }

    /// Which of its [`pieces`](Self::pieces) is this rank's, if any.
    pub(crate) fn own_piece(&self, parameter: usize) -> Option<usize> {
        match self.division(parameter) {
            Division::Rows => Some(self.rank.index()),
            Division::Owned(owner) if owner != self.rank => None,
            Division::Whole | Division::Owned(_) => Some(0),
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
