//! Cuts parameters into the parts of ranks.

use bonfire_collective::WorldSize;
use bonfire_plan::Cut;
use bonfire_train::World;
use burn::module::Param;
use burn::tensor::Tensor;

use crate::ParallelError;
use crate::ops;

/// The ranks among which a layer is divided: none, or those along an axis of a mesh.
pub(crate) type Among = Option<World>;

/// This rank's piece of a parameter, as a parameter of the same identity.
pub(crate) fn piece<const D: usize>(
    param: Param<Tensor<D>>,
    cut: Cut,
    tp: &World,
) -> Param<Tensor<D>> {
    tp.note_cut(param.id, cut);
    if tp.world_size() == WorldSize::ONE {
        return param;
    }
    replaced(param, |whole| {
        let size = whole.dims()[cut.dim];
        let ranges = cut.ranges(size, tp.world_size(), tp.rank());
        let parts = ranges.map(|range| whole.clone().narrow(cut.dim, range.start, range.len()));
        Tensor::cat(parts.collect(), cut.dim)
    })
}

/// A parameter with other values: it keeps its identity and its setting of training, and gets its own memory.
pub(crate) fn replaced<const D: usize>(
    param: Param<Tensor<D>>,
    cut: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Param<Tensor<D>> {
    param.map(|whole| {
        let (device, dtype) = (whole.device(), whole.dtype());
        let is_trained = whole.is_require_grad();
        // A view would keep the complete tensor in memory.
        let data = cut(whole.without_autodiff()).into_data();
        let piece = Tensor::from_data(data, (&device, dtype));
        if is_trained { piece.require_grad() } else { piece }
    })
}

/// This rank's part of a parameter along a dimension that consists of `sections`, each of which is divided among all
/// ranks.
pub(crate) fn part<const D: usize>(
    param: Param<Tensor<D>>,
    what: &'static str,
    dim: usize,
    tp: &World,
    sections: usize,
) -> Result<Param<Tensor<D>>, ParallelError> {
    let size = param.lazy_shape()[dim];
    let ranks = tp.world_size();
    if !size.is_multiple_of(sections * ranks.len()) {
        return Err(ParallelError::Indivisible { what, dim, size: size / sections, ranks });
    }
    Ok(piece(param, Cut { dim, sections }, tp))
}

/// The complete parameter of a [`part`]. Every rank calls it.
pub(crate) fn whole<const D: usize>(
    param: Param<Tensor<D>>,
    dim: usize,
    tp: &World,
    sections: usize,
) -> Result<Param<Tensor<D>>, ParallelError> {
    if tp.world_size() == WorldSize::ONE {
        return Ok(param);
    }
    let part = param.val().without_autodiff();
    let section = part.dims()[dim] / sections;
    let all = (0..sections)
        .map(|index| {
            let own = part.clone().narrow(dim, index * section, section);
            ops::gather(own, dim, tp)
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(replaced(param, |_| Tensor::cat(all, dim)))
}
