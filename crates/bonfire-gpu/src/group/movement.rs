//! The operations that move elements from rank to rank and combine nothing.
//!
//! They are one-shot schedules in place: the rank that has something announces it, the rank that is
//! to have it copies it from the other's memory, and no rank continues before all copies are made.
//! The stream copies; no kernel is needed, and none is loaded.

use bonfire_plan::{Collective, ElemRange, Rank};

use crate::error::Result;
use crate::group::CudaGroup;
use crate::group::buffer::CudaBuffer;
use crate::program::{Key, Layout};
use crate::request::elements::Elements;
use crate::request::{assert_apart, exchange_of};
use crate::run::Path;
use crate::run::engine::Moves;

impl CudaGroup {
    /// Gives `root` the shard of each rank; the others keep their values. Shards are those of
    /// [`shard_range`](bonfire_plan::shard_range).
    ///
    /// # Errors
    /// [`Usage`](crate::CudaGroupError::Usage) if there is no such rank; else what the driver says.
    pub fn gather(&self, buffer: &CudaBuffer, elements: &Elements, root: Rank) -> Result<()> {
        self.move_elements(Collective::Gather { root }, buffer, elements)
    }

    /// Gives every rank its shard of what `root` has; the rest of its elements keep their values.
    ///
    /// # Errors
    /// Those of [`gather`](Self::gather).
    pub fn scatter(&self, buffer: &CudaBuffer, elements: &Elements, root: Rank) -> Result<()> {
        self.move_elements(Collective::Scatter { root }, buffer, elements)
    }

    /// Gives rank r the r-th block of every rank's elements: block s of `output` is what rank s had for this
    /// one. The elements, as many blocks as there are ranks, lie at the same place of both buffers.
    ///
    /// # Errors
    /// [`Usage`](crate::CudaGroupError::Usage) if they are not equal blocks; else what the driver says.
    ///
    /// # Panics
    /// If both are the same buffer: blocks would be overwritten before they are read.
    pub fn all_to_all(
        &self,
        input: &CudaBuffer,
        output: &CudaBuffer,
        elements: &Elements,
    ) -> Result<()> {
        self.inner.assert_own(output);
        assert_apart(input.span(), output.span());
        output.check(elements)?;
        let ranks = self.world_size().len();
        let collective = Collective::AllToAll;
        let Some((mut state, mut job)) = self.begin(collective, None, input, elements)? else {
            return self.copy_own(input, output, elements);
        };
        job.moves = Moves::Transpose(output.memory());
        if matches!(state.path, Path::Host(_)) {
            return self.inner.core.through_host(&mut state, collective, job);
        }
        let key = Key { count: elements.count() * ranks, ..job.key(collective, Layout::Direct) };
        let place = state.place();
        let programs = state.programs.get(key, place)?;
        // Its own block is not a message of the plan.
        let block = elements.count() / ranks;
        let (me, start) = (self.rank(), self.rank().index() * block);
        let own = ElemRange::new(start, start + block);
        let from = input.memory().part(me, elements, own);
        let to = output.memory().part(me, elements, own);
        self.inner.core.local(state.stream.copy(&to, &from))?;
        self.inner.core.local(state.run(&programs, job))
    }

    /// Sends the elements to `target`, which calls [`recv`](Self::recv) with the same buffer and elements. No
    /// other rank takes part.
    ///
    /// # Errors
    /// [`Usage`](crate::CudaGroupError::Usage) if it is not another rank of the group; else what the driver says.
    pub fn send(&self, buffer: &CudaBuffer, elements: &Elements, target: Rank) -> Result<()> {
        let source = self.rank();
        self.move_elements(Collective::Transfer { source, target }, buffer, elements)
    }

    /// Replaces the elements by what `source` [sends](Self::send).
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub fn recv(&self, buffer: &CudaBuffer, elements: &Elements, source: Rank) -> Result<()> {
        let target = self.rank();
        self.move_elements(Collective::Transfer { source, target }, buffer, elements)
    }

    /// Gives each of two ranks what the other brings. The lower rank brings the first half of the elements,
    /// the higher one the second; both end with all. No other rank takes part.
    ///
    /// # Errors
    /// Those of [`send`](Self::send), and [`Usage`](crate::CudaGroupError::Usage) if the halves are not equal.
    pub fn exchange(&self, buffer: &CudaBuffer, elements: &Elements, peer: Rank) -> Result<()> {
        self.move_elements(exchange_of(self.rank(), peer), buffer, elements)
    }

    fn move_elements(
        &self,
        collective: Collective,
        buffer: &CudaBuffer,
        elements: &Elements,
    ) -> Result<()> {
        self.perform(collective, None, buffer, elements, |state, mut job| {
            job.moves = Moves::Copy;
            let mut key = job.key(collective, Layout::Direct);
            if matches!(collective, Collective::Exchange { .. }) {
                key.count /= 2;
            }
            let place = state.place();
            let programs = state.programs.get(key, place)?;
            self.inner.core.local(match collective {
                Collective::Transfer { .. } | Collective::Exchange { .. } => {
                    state.run_pair(&programs[0], job)
                }
                _ => state.run(&programs, job),
            })
        })
    }

    /// An all-to-all of one rank, or of nothing.
    fn copy_own(&self, input: &CudaBuffer, output: &CudaBuffer, elements: &Elements) -> Result<()> {
        if elements.count() == 0 {
            return Ok(());
        }
        let stream = self.stream();
        let copied = stream.copy(&output.own_part(elements), &input.own_part(elements));
        self.inner.core.local(copied)
    }
}
