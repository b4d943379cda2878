//! The collectives of a group.

use bonfire_plan::{Collective, Rank, ReduceOp};
use bonfire_sys::lock::MutexGuard;

use crate::device::Lanes;
use crate::device::kernels::{KernelKey, ReduceKey};
use crate::error::Result;
use crate::group::CudaGroup;
use crate::group::buffer::CudaBuffer;
use crate::life::agree;
use crate::options::CudaAlgorithm;
use crate::program::{Key, Layout};
use crate::request::Request;
use crate::request::elements::Elements;
use crate::run::engine::{Job, Moves, Shape};
use crate::run::{Last, Path, State};

impl CudaGroup {
    /// Replaces every element by its reduction over all ranks.
    ///
    /// # Errors
    /// [`Usage`](crate::CudaGroupError::Usage) if the elements have no such reduction; else what the driver says.
    pub fn all_reduce(
        &self,
        buffer: &CudaBuffer,
        elements: &Elements,
        reduce: ReduceOp,
    ) -> Result<()> {
        let algorithm = self.algorithm_of(elements, reduce);
        self.all_reduce_with(algorithm, buffer, elements, reduce)
    }

    /// [`all_reduce`](Self::all_reduce) by this algorithm, the same on every rank. What is too large for a
    /// one-shot or two-shot, or may not wait in kernels, is done directly; through the host there is but one way.
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_with(
        &self,
        algorithm: CudaAlgorithm,
        buffer: &CudaBuffer,
        elements: &Elements,
        reduce: ReduceOp,
    ) -> Result<()> {
        let collective = Collective::AllReduce;
        self.perform(collective, Some(reduce), buffer, elements, |state, job| {
            let layout = match algorithm {
                CudaAlgorithm::OneShot if state.is_one_shot(elements.bytes()) => {
                    self.load_shots(state, job, reduce)?;
                    if state.flags.numbers.come_again() {
                        self.clear_inboxes(state)?;
                    }
                    return self.inner.core.local(state.run_one_shot(job, reduce));
                }
                CudaAlgorithm::TwoShot if state.may_two_shot(elements.bytes()) => {
                    self.load_shots(state, job, reduce)?;
                    return self.inner.core.local(state.run_two_shot(job, reduce));
                }
                CudaAlgorithm::Ring => Layout::Rings(self.lanes(state)?),
                CudaAlgorithm::Chain => Layout::Chains(self.lanes(state)?),
                CudaAlgorithm::OneShot | CudaAlgorithm::TwoShot | CudaAlgorithm::Direct => {
                    Layout::Direct
                }
            };
            self.queue(state, job, job.key(collective, layout))
        })
    }

    /// Replaces the elements of this rank's shard by their reduction over all ranks; the others keep their
    /// values. Shards are those of [`shard_range`](bonfire_plan::shard_range).
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter(
        &self,
        buffer: &CudaBuffer,
        elements: &Elements,
        reduce: ReduceOp,
    ) -> Result<()> {
        self.direct(Collective::ReduceScatter, Some(reduce), buffer, elements)
    }

    /// Gives every rank the shard of each.
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce).
    pub fn all_gather(&self, buffer: &CudaBuffer, elements: &Elements) -> Result<()> {
        self.direct(Collective::AllGather, None, buffer, elements)
    }

    /// Gives every rank the elements of `root`.
    ///
    /// # Errors
    /// [`Usage`](crate::CudaGroupError::Usage) if there is no such rank.
    pub fn broadcast(&self, buffer: &CudaBuffer, elements: &Elements, root: Rank) -> Result<()> {
        self.direct(Collective::Broadcast { root }, None, buffer, elements)
    }

    /// Replaces the elements of `root` by their reduction over all ranks; the others keep their values.
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce) and [`broadcast`](Self::broadcast).
    pub fn reduce(
        &self,
        buffer: &CudaBuffer,
        elements: &Elements,
        reduce: ReduceOp,
        root: Rank,
    ) -> Result<()> {
        self.direct(Collective::Reduce { root }, Some(reduce), buffer, elements)
    }

    /// Queues a barrier: what any rank queued before its own is done before what is queued behind it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn barrier(&self) -> Result<()> {
        let mut state = self.inner.state();
        if matches!(state.path, Path::Host(_)) {
            return self.inner.core.quiesce(&mut state);
        }
        self.queue_barrier(&mut state)
    }

    fn queue_barrier(&self, state: &mut State) -> Result<()> {
        let key = Key { collective: Collective::Barrier, layout: Layout::Direct, count: 0 };
        let place = state.place();
        let programs = state.programs.get(key, place)?;
        state.has_queued = true;
        self.inner.core.local(state.run_barrier(&programs[0]))
    }

    /// Checks an operation and makes its rank and buffer ready. `None` if there is nothing to do.
    pub(crate) fn begin<'a>(
        &self,
        collective: Collective,
        reduce: Option<ReduceOp>,
        buffer: &'a CudaBuffer,
        elements: &'a Elements,
    ) -> Result<Option<(MutexGuard<'_, State>, Job<'a>)>> {
        self.inner.assert_own(buffer);
        let world_size = self.world_size();
        Request::of(collective, reduce, elements).check(world_size, buffer.bytes())?;
        if let Some(failure) = self.inner.core.group.failure() {
            return Err(failure.into());
        }
        if world_size.len() == 1 || elements.count() == 0 {
            return Ok(None);
        }
        let mut state = self.inner.state();
        state.last = Last { collective, elements: elements.clone() };
        state.has_queued = true;
        let job = Job { memory: buffer.memory(), elements, reduce, moves: Moves::Kernel };
        Ok(Some((state, job)))
    }

    /// Checks an operation and queues its direct schedule.
    fn direct(
        &self,
        collective: Collective,
        reduce: Option<ReduceOp>,
        buffer: &CudaBuffer,
        elements: &Elements,
    ) -> Result<()> {
        self.perform(collective, reduce, buffer, elements, |state, job| {
            self.queue(state, job, job.key(collective, Layout::Direct))
        })
    }

    /// Checks an operation and does it: as `body` says, or through host memory.
    pub(crate) fn perform(
        &self,
        collective: Collective,
        reduce: Option<ReduceOp>,
        buffer: &CudaBuffer,
        elements: &Elements,
        body: impl FnOnce(&mut State, Job<'_>) -> Result<()>,
    ) -> Result<()> {
        let Some((mut state, job)) = self.begin(collective, reduce, buffer, elements)? else {
            return Ok(());
        };
        if matches!(state.path, Path::Host(_)) {
            return self.inner.core.through_host(&mut state, collective, job);
        }
        body(&mut state, job)
    }

    /// Queues the programs of a schedule; makes them, and loads their kernels, at the first time.
    fn queue(&self, state: &mut State, job: Job<'_>, key: Key) -> Result<()> {
        let place = state.place();
        let programs = state.programs.get(key, place)?;
        let need = job.need(Shape::Programs(key.collective, key.layout));
        if !state.is_ready(&need) {
            // Of as many elements that no rank's shard is empty: all ranks load together, so which kernels
            // there are may not depend on what falls to one.
            let lanes = programs.len();
            let full = Key { count: lanes * place.world_size.len(), ..key };
            let full = state.programs.get(full, place)?;
            let folds = full.iter().flat_map(|program| program.folds());
            let kernels: Vec<_> = folds
                .map(|fold| job.kernel(fold))
                .filter(ReduceKey::writes)
                .map(KernelKey::Reduce)
                .collect();
            self.inner.core.load(state, need, &kernels)?;
        }
        self.inner.core.local(state.run(&programs, job))
    }

    fn load_shots(&self, state: &mut State, job: Job<'_>, reduce: ReduceOp) -> Result<()> {
        let need = job.need(Shape::OneShot);
        if state.is_ready(&need) {
            return Ok(());
        }
        let kernels = [KernelKey::OneShot(state.one_shot_key(job, reduce))];
        self.inner.core.load(state, need, &kernels)
    }

    /// Queues that the inboxes of all ranks are empty: behind whatever any rank has sent before, and before it sends
    /// more.
    fn clear_inboxes(&self, state: &mut State) -> Result<()> {
        self.queue_barrier(state)?;
        self.inner.core.local(state.clear_inboxes())?;
        self.queue_barrier(state)
    }

    /// How many lanes there are, made at the first call.
    fn lanes(&self, state: &mut State) -> Result<u32> {
        let count = state.options.lanes();
        if state.lanes.is_none() {
            self.inner.core.quiesce(state)?;
            let lanes = Lanes::new(&self.inner.core.context, count);
            state.lanes = Some(agree(&self.inner.core.group, lanes)?);
        }
        Ok(count)
    }
}
