//! How the ranks of a trainer are laid out.

use bonfire_config::Config;
use bonfire_plan::{Axis, WorldSize};

use crate::error::{Error, Result};

/// The configuration with the placement that its mesh of so many ranks makes of it.
///
/// # Errors
/// [`TrainError::Mesh`](bonfire_train::TrainError::Mesh) for a mesh of another number of ranks; [`Error::Usage`] for one
/// with an axis that a trainer cannot have.
pub(crate) fn placed(config: &Config, ranks: WorldSize) -> Result<Config> {
    let grid = config
        .mesh
        .over(ranks)
        .map_err(bonfire_train::TrainError::from)?;
    for (axis, advice) in [
        (Axis::Pp, "cut it into stages and train them with Pipeline"),
        (Axis::Cp, "write the training loop yourself"),
        (
            Axis::Tp,
            "divide its layers and train them with Ddp over mesh.data()",
        ),
    ] {
        if grid.size(axis) > 1 {
            return Err(Error::Usage(format!(
                "mesh={grid}: a trainer has the whole model and whole samples on every rank; {advice}, or leave {axis} \
                 out of mesh and give the ranks to dp_shard or dp_replicate"
            )));
        }
    }
    let mut config = config.clone();
    config.placement = grid.placement(config.placement);
    Ok(config)
}
