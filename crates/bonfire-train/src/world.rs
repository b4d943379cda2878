//! A rank's place in a job: its group and its device.

pub(crate) mod device;
pub(crate) mod exchange;
pub(crate) mod mesh;
pub(crate) mod timeouts;
pub(crate) mod watchdog;

use std::any::Any;
use std::sync::Arc;

use bonfire_checkpoint::record::Cuts;
use bonfire_collective::{Mutex, ProcessGroup, Rank, WorldSize};
use bonfire_plan::Cut;
use burn::module::ParamId;
use burn::tensor::Device;
use chacha20::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use crate::world::device::{first_that_answers, open};
use crate::world::exchange::group::NormGroups;
use crate::world::timeouts::WarmUp;
use crate::{DeviceKind, Occupancy, TrainError};

/// The position of a rank on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRank {
    /// The rank's index among those of its host; selects its GPU.
    pub local_rank: u32,
    /// The number of ranks on its host.
    pub local_world_size: u32,
}

/// A rank's place in a job: group and device. Clones share it.
#[derive(Clone, Debug)]
pub struct World {
    group: ProcessGroup,
    local: LocalRank,
    device: Device,
    device_kind: DeviceKind,
    device_name: String,
    norm_groups: NormGroups,
    failures: PassFailures,
    cuts: Cuts,
    divided: Option<Divided>,
    lane: LaneSlot,
}

/// The place of what sends tensors between the ranks of a world, made when it is first used.
pub(crate) type LaneSlot = Arc<Mutex<Option<Box<dyn Any + Send>>>>;

#[derive(Clone, Debug)]
pub(crate) struct Divided {
    pub(crate) group: ProcessGroup,
    pub(crate) cuts: Cuts,
}

impl World {
    /// Makes a rank with a device of this kind.
    ///
    /// # Errors
    /// [`TrainError::DeviceNotCompiled`], [`TrainError::NoSuchDevice`] or [`TrainError::BrokenDevice`] if such a
    /// device does not exist or fails; [`TrainError::NoCuda`] if Burn's kernels for it cannot be compiled.
    pub fn new(
        group: ProcessGroup,
        local: LocalRank,
        kind: DeviceKind,
    ) -> Result<Self, TrainError> {
        Self::with_occupancy(group, local, kind, Occupancy::Exclusive)
    }

    /// Makes a rank as [`new`](Self::new) does; with [`Occupancy::Oversubscribed`], ranks may share CUDA devices.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_occupancy(
        group: ProcessGroup,
        local: LocalRank,
        kind: DeviceKind,
        occupancy: Occupancy,
    ) -> Result<Self, TrainError> {
        let (device_kind, device, device_name) = match kind {
            DeviceKind::Auto => first_that_answers(occupancy, local)?,
            kind => {
                let (device, name) = open(kind, occupancy, local)?;
                (kind, device, name)
            }
        };
        let rank = group.rank();
        match rank.get() {
            0 => tracing::info!(%rank, device = device_name, "device chosen"),
            _ => tracing::debug!(%rank, device = device_name, "device chosen"),
        }
        Ok(Self {
            failures: PassFailures::of(&group),
            group,
            local,
            device,
            device_kind,
            device_name,
            norm_groups: NormGroups::default(),
            cuts: Cuts::default(),
            divided: None,
            lane: LaneSlot::default(),
        })
    }

    /// Splits off the ranks that pass the same `color`, ranked by `key` and then by their rank here; `None` for those
    /// that pass no color. Every rank must call it.
    ///
    /// It is a world like any other, with the device and the place on the host that the rank has: a
    /// [`Ddp`](crate::Ddp), a checkpoint or a mean over it is one over these ranks only. No device is opened or probed
    /// again.
    ///
    /// ```no_run
    /// # use bonfire_train::{TrainError, World};
    /// # fn train(world: &World) -> Result<(), TrainError> {
    /// // Two trainings at once: one on the ranks with even numbers, one on the others.
    /// let rank = world.rank().get();
    /// let half = world.split(Some(rank % 2), i64::from(rank))?.expect("every rank has a color");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`TrainError::Collective`] as [`ProcessGroup::split`] has it.
    #[track_caller]
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>, TrainError> {
        let group = self.group.split(color, key)?;
        Ok(group.map(|group| Self {
            failures: PassFailures::of(&group),
            group,
            local: self.local,
            device: self.device.clone(),
            device_kind: self.device_kind,
            device_name: self.device_name.clone(),
            norm_groups: NormGroups::default(),
            cuts: Cuts::default(),
            divided: self.divided.clone(),
            lane: LaneSlot::default(),
        }))
    }

    /// Returns the number of this rank.
    pub fn rank(&self) -> Rank {
        self.group.rank()
    }

    /// Returns the number of all ranks.
    pub fn world_size(&self) -> WorldSize {
        self.group.world_size()
    }

    /// Returns this rank's index among those of its host.
    pub fn local_rank(&self) -> u32 {
        self.local.local_rank
    }

    /// Returns the number of ranks on this host.
    pub fn local_world_size(&self) -> u32 {
        self.local.local_world_size
    }

    /// Returns true for rank 0, which prints and saves.
    pub fn is_main(&self) -> bool {
        self.rank() == Rank::new(0)
    }

    /// Returns this rank's device, without autodiff.
    pub fn device(&self) -> Device {
        self.device.clone()
    }

    /// Returns the kind of this rank's device; never [`DeviceKind::Auto`].
    pub fn device_kind(&self) -> DeviceKind {
        self.device_kind
    }

    /// Returns the device's name, such as `cuda:1`.
    pub fn device_name(&self) -> &str {
        &self.device_name
    }

    /// Seeds the device's random numbers for one step, differently on every rank of the job: the draws of dropout and
    /// the like then depend on the seed, the step and the rank only, and so are the same after a resume. Where ranks
    /// have parts of the same layers it is [`Mesh::seed_step`](crate::Mesh::seed_step). Ranks that are threads of one
    /// process share the CPU's generator; there the order in which they draw counts, too.
    pub fn seed_step(&self, seed: u64, step: u64) {
        self.seed_as(seed, self.rank(), step);
    }

    /// Seeds as a rank of this world does.
    pub(crate) fn seed_as(&self, seed: u64, rank: Rank, step: u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let rank = self.group.world_rank(rank);
        rng.set_stream(u64::from(rank.get()));
        // Two words per number, so that no two steps share one.
        rng.set_word_pos(2 * u128::from(step));
        self.device.seed(rng.next_u64());
    }

    /// Returns the group of all ranks.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Keeps the first failure of an operation of several ranks inside of a backward pass, or of a layer, which cannot
    /// return an error. Ends this world's group, and those of its [`mesh`](Self::mesh), so that no other rank waits
    /// for this one. If a [`Ddp`](crate::Ddp) of the same world or mesh runs the pass, it returns the failure.
    pub fn fail(&self, error: impl Into<TrainError>) {
        self.failures.keep(error.into());
    }

    /// Takes the failure that [`fail`](Self::fail) kept: for code that runs a pass without a [`Ddp`](crate::Ddp).
    pub fn take_failure(&self) -> Option<TrainError> {
        self.failures.take()
    }

    /// Records that each rank of this world has a part of a parameter. The divided layers of `bonfire-parallel` call
    /// it along the axis `tp` of a [`Mesh`](crate::Mesh). A program's own layer must, too, so that
    /// [`Checkpoints`](crate::Checkpoints) join its parameters and the [norm](crate::Gradients::norm) of gradients
    /// counts each part.
    pub fn note_cut(&self, parameter: ParamId, cut: Cut) {
        self.cuts.note(parameter, cut);
    }

    /// Returns true if each rank of this world has a part of a parameter, as far as that has been
    /// [noted](Self::note_cut).
    pub fn is_cut(&self, parameter: ParamId) -> bool {
        self.cuts.get(parameter).is_some()
    }

    /// Returns the ranks that have other parts of this rank's parameters, if there are any.
    pub(crate) fn divided(&self) -> Option<&Divided> {
        self.divided.as_ref()
    }

    pub(crate) fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    pub(crate) fn failures(&self) -> &PassFailures {
        &self.failures
    }

    /// The group of all ranks, with the timeout of steps of which the first compile kernels.
    pub(crate) fn warm_up(&self) -> WarmUp {
        WarmUp::new(&self.group, self.compiles_kernels())
    }

    pub(crate) fn compiles_kernels(&self) -> bool {
        self.device_kind != DeviceKind::Cpu
    }

    pub(crate) fn lane(&self) -> &LaneSlot {
        &self.lane
    }

    pub(crate) fn norm_groups(&self) -> &NormGroups {
        &self.norm_groups
    }
}

impl AsRef<ProcessGroup> for World {
    fn as_ref(&self) -> &ProcessGroup {
        &self.group
    }
}

#[derive(Clone, Debug)]
pub(crate) struct PassFailures {
    /// Those that share its fate end, too.
    group: ProcessGroup,
    first: Arc<Mutex<Option<TrainError>>>,
}

impl PassFailures {
    pub(crate) fn of(group: &ProcessGroup) -> Self {
        Self { group: group.clone(), first: Arc::default() }
    }

    pub(crate) fn keep(&self, error: TrainError) {
        self.group.abort(&error.to_string());
        self.first.lock().get_or_insert(error);
    }

    pub(crate) fn take(&self) -> Option<TrainError> {
        self.first.lock().take()
    }
}

#[cfg(test)]
pub(crate) mod tests;
