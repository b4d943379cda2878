//! The layout of a trainer's ranks, and the operations of each group.

use bonfire_checkpoint::record::TensorTable;
use bonfire_config::{Config, OptimizerKind};
use bonfire_plan::{Axis, Grid, WorldSize};
use bonfire_train::{Checkpoints, Mesh, World};
use burn::module::{Module, list_param_ids};

use crate::error::{Error, Result};

/// Returns the configuration with the placement that follows from its mesh of `ranks` ranks, and that mesh.
///
/// # Errors
/// [`TrainError::Mesh`](bonfire_train::TrainError::Mesh) for a mesh of another number of ranks; [`Error::Usage`] for one
/// with stages.
pub(crate) fn placed(config: &Config, ranks: WorldSize) -> Result<(Config, Grid)> {
    let grid = config.mesh.over(ranks);
    let grid = grid.map_err(bonfire_train::TrainError::from)?;
    if grid.size(Axis::Pp) > 1 {
        return Err(Error::Usage(format!(
            "mesh={grid}: a trainer has all layers on every rank; cut the model into stages and train them with \
             Pipeline, or leave pp out of mesh and give its ranks to dp_shard or dp_replicate"
        )));
    }
    let mut config = config.clone();
    config.placement = grid.placement(config.placement);
    Ok((config, grid))
}

/// This rank among the others of a training.
#[derive(Debug)]
pub(super) struct Place {
    world: World,
    /// With the uncut model; `None` where all ranks have the complete model and different samples.
    mesh: Option<(Mesh, TensorTable)>,
    /// True if parameters are divided among ranks of `tp`.
    is_divided: bool,
}

impl Place {
    /// # Errors
    /// [`Error::Usage`] for a mesh that is not that of the configuration, and for one that does not fit the model or
    /// the configured optimizer.
    pub(super) fn new<M: Module>(
        world: &World,
        grid: Grid,
        mesh: Option<(Mesh, TensorTable)>,
        model: &M,
    ) -> Result<Self> {
        let wrong = |cause: String| Err(Error::Usage(cause));
        let is_cut = grid.size(Axis::Tp) > 1 || grid.size(Axis::Cp) > 1;
        match &mesh {
            Some((given, _)) if *given.grid() != grid => {
                let given = given.grid();
                return wrong(format!(
                    "the configuration has mesh={grid}, and the parts are on {given}; make the mesh of config.mesh"
                ));
            }
            None if is_cut => {
                return wrong(format!(
                    "mesh={grid}: divide the layers over tp and the sequences over cp of world.mesh(config.mesh), and \
                     hand it over with Parts::with_mesh; or give the ranks to dp_shard or dp_replicate"
                ));
            }
            _ => {}
        }
        let has_parts = |(mesh, _): &(Mesh, TensorTable)| {
            let mut all = list_param_ids(model).into_iter();
            all.any(|id| mesh.sub(Axis::Tp).is_cut(id))
        };
        let is_divided = grid.size(Axis::Tp) > 1 && mesh.as_ref().is_some_and(has_parts);
        if grid.size(Axis::Tp) > 1 && !is_divided {
            return wrong(format!(
                "mesh={grid}: no layer of the model is divided; make it of ColumnParallelLinear, RowParallelLinear and \
                 VocabParallelEmbedding, or have layers of its own note their cuts"
            ));
        }
        Ok(Self {
            world: world.clone(),
            mesh,
            is_divided,
        })
    }

    /// Checks that an optimizer treats the parts of a parameter like the complete parameter.
    pub(super) fn check_optimizer(&self, kind: OptimizerKind) -> Result<()> {
        let needs_whole = matches!(kind, OptimizerKind::Lamb | OptimizerKind::Muon);
        if needs_whole && self.is_divided {
            Err(Error::Usage(
                "optimizer.kind: lamb and muon need whole parameters, and tp in mesh divides them; choose adamw, adam, \
                 sgd or lion"
                    .to_owned(),
            ))
        } else {
            Ok(())
        }
    }

    /// The ranks that have different samples.
    pub(super) fn data(&self) -> &World {
        self.mesh
            .as_ref()
            .map_or(&self.world, |(mesh, _)| mesh.data())
    }

    /// The ranks that have the same parameters.
    pub(super) fn replicas(&self) -> &World {
        self.mesh
            .as_ref()
            .map_or(&self.world, |(mesh, _)| mesh.replicas())
    }

    pub(super) fn grid(&self) -> Option<&Grid> {
        self.mesh.as_ref().map(|(mesh, _)| mesh.grid())
    }

    pub(super) fn is_divided(&self) -> bool {
        self.is_divided
    }

    pub(super) fn seed_step(&self, seed: u64, step: u64) {
        match &self.mesh {
            Some((mesh, _)) => mesh.seed_step(seed, step),
            None => self.world.seed_step(seed, step),
        }
    }

    #[track_caller]
    pub(super) fn whole(&self, checkpoints: Checkpoints) -> Result<Checkpoints> {
        Ok(match &self.mesh {
            Some((mesh, whole)) => checkpoints.with_parts(whole.clone(), mesh)?,
            None => checkpoints,
        })
    }
}
