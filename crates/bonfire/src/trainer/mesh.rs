//! The layout of a trainer's ranks, and the operations of each group.

use bonfire_checkpoint::record::TensorTable;
use bonfire_collective::ReduceOp;
use bonfire_config::Config;
use bonfire_plan::{Axis, Grid, WorldSize};
use bonfire_train::{Checkpoints, Mesh, World};
use burn::module::{Module, list_param_ids};

use crate::all_or_none;
use crate::error::{Error, Result};

/// Returns the configuration with the placement that follows from its mesh of `ranks` ranks, and that mesh.
///
/// # Errors
/// [`Error::Config`] for a mesh of another number of ranks, and settings that do not go together there.
pub(crate) fn placed(config: &Config, ranks: WorldSize) -> Result<(Config, Grid)> {
    let grid = config.grid(ranks)?;
    let mut config = config.clone();
    config.placement = grid.placement(config.placement);
    Ok((config, grid))
}

/// This rank among the others of a training.
#[derive(Debug)]
pub struct Place {
    world: World,
    grid: Grid,
    /// With the uncut model; `None` where all ranks have the complete model and different samples.
    mesh: Option<(Mesh, TensorTable)>,
    /// True if parameters are divided among ranks of `tp`.
    is_divided: bool,
    /// The ranks of a worker of DiLoCo.
    worker: Option<World>,
}

impl Place {
    /// # Errors
    /// [`Error::Usage`] for a mesh that is not that of the configuration.
    pub(super) fn new(
        world: &World,
        grid: Grid,
        mesh: Option<(Mesh, TensorTable)>,
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
        Ok(Self { world: world.clone(), grid, mesh, is_divided: false, worker: None })
    }

    /// Finds out if this rank's part of the model has divided layers.
    pub(super) fn look_at<M: Module>(&mut self, part: &M) {
        let is_cut = |(mesh, _): &(Mesh, TensorTable)| {
            let mut all = list_param_ids(part).into_iter();
            all.any(|id| mesh.sub(Axis::Tp).is_cut(id))
        };
        self.is_divided = self.grid.size(Axis::Tp) > 1 && self.mesh.as_ref().is_some_and(is_cut);
    }

    /// Checks that `tp` divides layers: on this rank, or on another that has other layers. Every rank calls it.
    #[track_caller]
    pub(super) fn check_parts(&mut self) -> Result<()> {
        if self.grid.size(Axis::Tp) == 1 {
            return Ok(());
        }
        let mut divided = [u32::from(self.is_divided)];
        let all = self.world.group();
        all.all_reduce(&mut divided, ReduceOp::Max)?;
        self.is_divided = divided[0] > 0;
        if self.is_divided {
            return Ok(());
        }
        let cause = Error::Usage(format!(
            "mesh={}: no layer of the model is divided; make it of ColumnParallelLinear, RowParallelLinear and \
             VocabParallelEmbedding, or have layers of its own note their cuts",
            self.grid
        ));
        all_or_none(&self.world, Err(cause))
    }

    pub(super) fn data(&self) -> &World {
        self.mesh.as_ref().map_or(&self.world, |(mesh, _)| mesh.data())
    }

    /// The ranks that have the same parameters.
    pub(super) fn replicas(&self) -> &World {
        self.mesh.as_ref().map_or(&self.world, |(mesh, _)| mesh.replicas())
    }

    pub(super) fn averaging(&self) -> &World {
        self.worker.as_ref().unwrap_or_else(|| self.replicas())
    }

    /// Lets the ranks of a worker train without the others.
    pub(super) fn train_apart(&mut self, worker: World) {
        self.worker = Some(worker);
    }

    pub(super) fn mesh(&self) -> Option<&Mesh> {
        self.mesh.as_ref().map(|(mesh, _)| mesh)
    }

    pub(super) fn grid(&self) -> &Grid {
        &self.grid
    }

    /// True if no rank has all parameters: each has some layers, or parts of them.
    pub(super) fn has_parts(&self) -> bool {
        self.is_divided || self.grid.size(Axis::Pp) > 1
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
