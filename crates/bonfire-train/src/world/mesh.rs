//! The worlds of a mesh: the ranks along each of its axes.

use std::fmt;

use bonfire_collective::{ProcessGroup, Rank, WorldSize};
use bonfire_plan::{Axis, Coordinates, Grid, MeshShape, Placement};

use super::{Divided, World};
use crate::TrainError;

/// A rank's place in a mesh, with its worlds: one along each axis.
///
/// ```no_run
/// # mod bonfire { pub use bonfire_train::{Ddp, World}; pub mod ddp { pub use bonfire_train::*; } pub mod world { pub use bonfire_train::*; } }
/// use bonfire::{Ddp, World};
/// use bonfire::ddp::TrainError;
/// use bonfire::world::Axis;
/// # use burn::nn::{Linear, LinearConfig};
/// # fn train(world: &World) -> Result<(), TrainError> {
/// let mesh = world.mesh("dp=-1,tp=2")?;
/// # let part: Linear = LinearConfig::new(8, 8).init(&world.device());
/// // Ranks of `tp` have parts of a model and the same batches; those of `replicas` have the same part.
/// let tp = mesh.sub(Axis::Tp);
/// let ddp = Ddp::new(part, mesh.replicas())?;
/// # Ok(()) }
/// ```
///
/// A failure on any axis ends the worlds of all, and the world that the mesh was made of: a rank that waits in one of
/// them gets it. Clones share the place.
#[derive(Clone, Debug)]
pub struct Mesh {
    grid: Grid,
    rank: Rank,
    /// In the order of the axes.
    subs: Vec<World>,
    data: World,
    replicas: World,
}

impl World {
    /// Lays out the ranks of this world over the axes of a mesh. Every rank must call it with the same shape.
    ///
    /// # Errors
    /// [`TrainError::Mesh`] if a text is not a mesh, or the mesh needs another number of ranks; [`TrainError::Collective`] as
    /// [`split`](Self::split).
    #[track_caller]
    pub fn mesh<S>(&self, shape: S) -> Result<Mesh, TrainError>
    where
        S: TryInto<MeshShape>,
        TrainError: From<S::Error>,
    {
        let grid = shape.try_into()?.over(self.world_size())?;
        let rank = self.rank();
        let part = |name: &str, ranks: &[Rank]| self.part(name, ranks);
        let along = Axis::ALL.iter();
        let mut subs = along
            .map(|axis| part(axis.name(), &grid.along(rank, *axis)))
            .collect::<Result<Vec<_>, _>>()?;
        let mut data = match grid.size(Axis::DpReplicate) {
            1 => subs[Axis::DpShard.index()].clone(),
            _ => part("data", &grid.data(rank))?,
        };
        let mut replicas = match (grid.size(Axis::Cp), data.world_size()) {
            (1, _) => data.clone(),
            (_, WorldSize::ONE) => subs[Axis::Cp.index()].clone(),
            _ => part("replicas", &grid.replicas(rank))?,
        };
        let tp = &subs[Axis::Tp.index()];
        let divided = if tp.world_size() > WorldSize::ONE {
            Some(Divided { group: tp.group.clone(), cuts: tp.cuts.clone() })
        } else {
            self.divided.clone()
        };
        for world in subs.iter_mut().chain([&mut data, &mut replicas]) {
            world.failures = self.failures.clone();
            world.divided.clone_from(&divided);
        }
        subs[Axis::Tp.index()].divided = None;
        if self.is_main() {
            tracing::info!(mesh = %grid, "mesh laid out");
        }
        Ok(Mesh { grid, rank, subs, data, replicas })
    }

    /// The world of some ranks of this one, with a name for its operations. Every rank calls it, with the ranks that
    /// it is among.
    #[track_caller]
    fn part(&self, name: &str, ranks: &[Rank]) -> Result<Self, TrainError> {
        let part = self.split(Some(ranks[0].get()), 0)?.expect("every rank has a color");
        let named = |group: &ProcessGroup| group.named(name).with_timeout(self.group.timeout());
        Ok(Self { group: named(&part.group), ..part })
    }
}

impl Mesh {
    /// Returns the coordinates of all ranks.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// Returns this rank's coordinates, in the order of [`Axis::ALL`].
    pub fn coordinates(&self) -> Coordinates {
        self.grid.coordinates(self.rank)
    }

    /// Returns the ranks that differ from this one on `axis` alone: a world like any other, of one rank where the axis
    /// has one.
    pub fn sub(&self, axis: Axis) -> &World {
        &self.subs[axis.index()]
    }

    /// Returns the ranks that have other batches than this one and the same parameters, on `dp_replicate` and
    /// `dp_shard`: the world for samplers.
    pub fn data(&self) -> &World {
        &self.data
    }

    /// Returns the ranks that have the same parameters as this one: those of [`data`](Self::data), and those of `cp`,
    /// which have other tokens of the same batches: the world for [`Ddp`](crate::Ddp). Without `cp` it is
    /// [`data`](Self::data).
    pub fn replicas(&self) -> &World {
        &self.replicas
    }

    /// Seeds the device's random numbers for one step, as [`World::seed_step`] does, but alike on the ranks of `tp`:
    /// undivided activations are the same on all, and so must be their dropout. Inside of divided layers the ranks
    /// then drop the same places of their parts. Ranks that differ on another axis draw other numbers.
    pub fn seed_step(&self, seed: u64, step: u64) {
        self.sub(Axis::Tp).seed_as(seed, Rank::new(0), step);
    }

    /// Returns a placement for [`replicas`](Self::replicas): see [`Grid::placement`].
    pub fn placement(&self, placement: Placement) -> Placement {
        self.grid.placement(placement)
    }
}

impl fmt::Display for Mesh {
    /// Formats as `dp_shard=2,tp=2, rank 3 at dp_shard 1, tp 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, rank {} at ", self.grid, self.rank)?;
        let places =
            Axis::ALL.iter().zip(self.coordinates()).filter(|(axis, _)| self.grid.size(**axis) > 1);
        let places: Vec<String> = places.map(|(axis, place)| format!("{axis} {place}")).collect();
        if places.is_empty() {
            f.write_str("the only place")
        } else {
            f.write_str(&places.join(", "))
        }
    }
}
