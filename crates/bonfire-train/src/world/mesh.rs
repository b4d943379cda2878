//! The worlds of a mesh: the ranks along each of its axes.

use std::fmt;

use bonfire_collective::{ProcessGroup, Rank, WorldSize};
use bonfire_plan::{Axis, Coordinates, Grid, MeshShape, Placement};

use super::World;
use super::failures::PassFailures;
use crate::TrainError;

/// A rank's place in a mesh, and the worlds in which it meets the others: one along each axis.
///
/// ```no_run
/// # mod bonfire { pub use bonfire_train::{Ddp, World}; pub mod ddp { pub use bonfire_train::*; } pub mod world { pub use bonfire_train::*; } }
/// use bonfire::{Ddp, World};
/// use bonfire::ddp::TrainError;
/// use bonfire::world::Axis;
/// # use burn::nn::{Linear, LinearConfig};
/// # fn train(world: &World) -> Result<(), TrainError> {
/// let mesh = world.mesh("dp=-1,tp=2".parse()?)?;
/// # let part: Linear = LinearConfig::new(8, 8).init(&world.device());
/// // Ranks of `tp` have parts of a model and the same batches; those of `replicas` have the same part.
/// let tp = mesh.sub(Axis::Tp);
/// let ddp = Ddp::new(part, mesh.replicas())?;
/// # Ok(()) }
/// ```
///
/// A failure on any axis ends the worlds of all, and the world that the mesh was made of: a rank that waits in one of
/// them hears of it. Clones are the same place.
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
    /// Lays the ranks of this world out over the axes of a mesh. Every rank must call it with the same shape.
    ///
    /// # Errors
    /// [`TrainError::Mesh`] if the mesh needs another number of ranks; [`TrainError::Collective`] as
    /// [`split`](Self::split).
    #[track_caller]
    pub fn mesh(&self, shape: MeshShape) -> Result<Mesh, TrainError> {
        let grid = shape.over(self.world_size())?;
        let rank = self.rank();
        let part = |name: &str, ranks: &[Rank]| self.part(name, ranks);
        let along = Axis::ALL.iter();
        let subs = along.map(|axis| part(axis.name(), &grid.along(rank, *axis)));
        let mut subs = subs.collect::<Result<Vec<_>, _>>()?;
        let mut data = match grid.size(Axis::DpReplicate) {
            1 => subs[Axis::DpShard.index()].clone(),
            _ => part("data", &grid.data(rank))?,
        };
        let mut replicas = match (grid.size(Axis::Cp), data.world_size()) {
            (1, _) => data.clone(),
            (_, WorldSize::ONE) => subs[Axis::Cp.index()].clone(),
            _ => part("replicas", &grid.replicas(rank))?,
        };
        let failures = PassFailures::of(&self.group);
        data.failures = failures.clone();
        replicas.failures = failures.clone();
        subs.iter_mut()
            .for_each(|sub| sub.failures = failures.clone());
        if self.is_main() {
            tracing::info!(mesh = %grid, "mesh laid out");
        }
        Ok(Mesh {
            grid,
            rank,
            subs,
            data,
            replicas,
        })
    }

    /// The world of some ranks of this one, whose operations go by a name. Every rank calls it, with the ranks that it
    /// is among.
    #[track_caller]
    fn part(&self, name: &str, ranks: &[Rank]) -> Result<Self, TrainError> {
        let part = self.split(Some(ranks[0].get()), 0)?;
        let part = part.expect("every rank has a color");
        let named = |group: &ProcessGroup| group.named(name).with_timeout(self.group.timeout());
        Ok(Self {
            group: named(&part.group),
            ..part
        })
    }
}

impl Mesh {
    /// Who is where.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// Where this rank is on each axis, in the order of [`Axis::ALL`].
    pub fn coordinates(&self) -> Coordinates {
        self.grid.coordinates(self.rank)
    }

    /// The ranks that are where this one is on all other axes: a world like any other, of one rank where the axis has
    /// one.
    pub fn sub(&self, axis: Axis) -> &World {
        &self.subs[axis.index()]
    }

    /// The ranks that have other batches than this one and the same parameters, on `dp_replicate` and `dp_shard`: what
    /// samplers are given.
    pub fn data(&self) -> &World {
        &self.data
    }

    /// The ranks that have the same parameters as this one: those of [`data`](Self::data), and those of `cp`, which have
    /// other tokens of the same batches. What [`Ddp`](crate::Ddp) is given. Without `cp` it is [`data`](Self::data).
    pub fn replicas(&self) -> &World {
        &self.replicas
    }

    /// Seeds the device's random numbers for one step, as [`World::seed_step`] does, but alike on the ranks of `tp`: what is
    /// not divided among them is the same on all, and so must be what dropout makes of it. Inside of divided layers
    /// the ranks then drop the same places of their parts. Ranks that differ on another axis draw other numbers.
    pub fn seed_step(&self, seed: u64, step: u64) {
        self.sub(Axis::Tp).seed_as(Rank::new(0), (seed, step));
    }

    /// A placement for [`replicas`](Self::replicas): see [`Grid::placement`].
    pub fn placement(&self, placement: Placement) -> Placement {
        self.grid.placement(placement)
    }
}

impl fmt::Display for Mesh {
    /// Such as `dp_shard=2,tp=2, rank 3 at dp_shard 1, tp 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, rank {} at ", self.grid, self.rank)?;
        let places = Axis::ALL.iter().zip(self.coordinates());
        let places = places.filter(|(axis, _)| self.grid.size(**axis) > 1);
        let places: Vec<String> = places
            .map(|(axis, place)| format!("{axis} {place}"))
            .collect();
        if places.is_empty() {
            f.write_str("the only place")
        } else {
            f.write_str(&places.join(", "))
        }
    }
}
