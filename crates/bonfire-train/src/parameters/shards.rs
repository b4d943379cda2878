//! This rank's part of the parameters, if each rank has a share.

use std::ops::Range;

use bonfire_optim::Offload;
use bonfire_plan::{Division, Layout, Placement, Rank, ShardUnit, WorldSize};
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor, TensorData};

use crate::TrainError;
use crate::parameters::ParameterTable;
use crate::parameters::shard_groups::ShardGroups;

#[derive(Clone, Debug)]
pub(crate) struct Shards {
    layout: Layout,
    rank: Rank,
    groups: ShardGroups,
    computing: Option<Device>,
}

impl Shards {
    /// The shards of a rank; with the computing device, if its rows are elsewhere.
    pub(crate) fn new(
        table: &ParameterTable,
        placement: Placement,
        groups: ShardGroups,
        computing: Option<Device>,
    ) -> Self {
        let shapes = (0..table.len()).map(|parameter| &table.get(parameter).shape[..]);
        let ranks = groups.shards().world_size();
        Self {
            layout: layout(shapes, placement, ranks, computing.as_ref()),
            rank: groups.shards().rank(),
            groups,
            computing,
        }
    }

    /// Returns true if rows are elsewhere than where this rank computes.
    pub(crate) fn are_offloaded(&self) -> bool {
        self.computing.is_some()
    }

    pub(crate) fn computing(&self, rows: Device) -> Device {
        let Some(computing) = self.computing.clone() else {
            return rows;
        };
        match rows.gradient_checkpointing_strategy() {
            None => computing,
            Some(GradientCheckpointingStrategy::Disabled) => computing.autodiff(),
            Some(GradientCheckpointingStrategy::Balanced) => {
                computing.autodiff().gradient_checkpointing()
            }
        }
    }

    pub(crate) fn over(&self, groups: ShardGroups) -> Self {
        Self { groups, ..self.clone() }
    }

    pub(crate) fn groups(&self) -> &ShardGroups {
        &self.groups
    }

    /// Returns true if this rank is the first of all that have a part of a cut parameter.
    pub(crate) fn speaks_for(&self, parameter: usize) -> bool {
        self.groups.is_first()
            && match self.layout.division(parameter) {
                Division::Owned(owner) => owner == self.rank,
                // Rank 0 has a row of each.
                Division::Rows | Division::Whole => self.rank == Rank::new(0),
            }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn are_rows(&self) -> bool {
        self.layout.placement().unit == ShardUnit::Rows
    }

    pub(crate) fn division(&self, parameter: usize) -> Division {
        self.layout.division(parameter)
    }

    /// Returns true if the ranks have different parts of a parameter.
    pub(crate) fn is_cut(&self, parameter: usize) -> bool {
        self.layout.is_cut(parameter)
    }

    pub(crate) fn rows(&self, parameter: usize) -> Range<usize> {
        self.layout.rows(parameter, self.rank)
    }

    /// The elements of each rank's rows, in rank order; for a parameter that is not cut into rows, all of them once.
    pub(crate) fn pieces(&self, parameter: usize) -> Vec<Range<usize>> {
        let elems = |rank| self.layout.elems(parameter, rank);
        match self.division(parameter) {
            Division::Rows => self.layout.world_size().ranks().map(elems).collect(),
            Division::Whole => vec![elems(self.rank)],
            Division::Owned(owner) => vec![elems(owner)],
        }
    }

    /// The index of this rank's [piece](Self::pieces), if any.
    pub(crate) fn own_piece(&self, parameter: usize) -> Option<usize> {
        match self.division(parameter) {
            Division::Rows => Some(self.rank.index()),
            Division::Owned(owner) if owner != self.rank => None,
            Division::Whole | Division::Owned(_) => Some(0),
        }
    }
}

/// The rows of parameters by rank; of those that are offloaded from the computing device, if there is one.
pub(crate) fn layout<'a>(
    shapes: impl IntoIterator<Item = &'a [usize]>,
    placement: Placement,
    ranks: WorldSize,
    computing: Option<&Device>,
) -> Layout {
    match computing {
        Some(_) => Layout::offloaded(shapes, placement, ranks),
        None => Layout::new(shapes, placement, ranks),
    }
}

/// A copy of some rows of a tensor on a device, perhaps of none: a slice would keep the memory of all.
pub(crate) fn rows_of<const D: usize>(
    whole: Tensor<D>,
    rows: Range<usize>,
    device: &Device,
) -> Tensor<D> {
    let dtype = whole.dtype();
    let mut shape = whole.dims();
    shape[0] = rows.len();
    let data = if rows.is_empty() {
        TensorData::new(Vec::<f32>::new(), shape)
    } else {
        whole.slice_dim(0, rows).into_data()
    };
    Tensor::from_data(data, (device, dtype))
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

/// The parameter on the CPU, with its values in a file if they belong there.
pub(crate) fn filed<const D: usize>(
    parameter: Tensor<D>,
    offload: Option<&Offload>,
    result: &mut Result<(), TrainError>,
) -> Tensor<D> {
    let (device, dtype) = (parameter.device(), parameter.dtype());
    let Some(offload) = offload.filter(|_| dtype.is_float()) else {
        return parameter;
    };
    let is_trained = parameter.is_require_grad();
    let values = parameter.without_autodiff().into_data();
    let stored = offload.stored(&values).unwrap_or_else(|error| {
        *result = Err(error.into());
        None
    });
    let values = Tensor::from_data(stored.unwrap_or(values), (&device, dtype));
    values.set_require_grad(is_trained)
}
