//! Operations in the ranks' own memory: each rank folds its shard where the data lies.
//!
//! Whether it can be done depends on every rank's buffer, so it is agreed on in the operation
//! itself: each rank opens its buffer if the others can reach it, all meet, and then all see alike
//! whose windows are open. If one is not, the operation continues with frames.

use bonfire_plan::{Algorithm, Partition, Rank, ReduceOp, Step};
use bonfire_sys::window::{Shut, View, Windows};
use bytemuck::Pod;

use super::plans::Prepared;
use super::run::Run;
use super::{Executor, Request, RunError};
use crate::Element;
use crate::exec::fold::FoldOptions;
use crate::health::failure::{Failure, Result};
use crate::health::wait::WaitLimits;

impl Executor {
    /// Whether all ranks would try; a matter of what they agree on, not of this rank's buffer.
    pub(super) fn may_share(&self, request: &Request, bytes: usize) -> bool {
        let collective = request.collective;
        let wanted = match self.options.forced(collective) {
            Some(algorithm) => algorithm == Algorithm::ZeroCopy,
            None => bytes > BYTES_MIN,
        };
        let has_plan = Algorithm::candidates(collective).contains(&Algorithm::ZeroCopy)
            && request.partition == Partition::Balanced
            // Every rank needs a shard, to have a direct step.
            && request.count >= self.world_size.len();
        wanted && has_plan && self.board.is_some() && self.world_size.get() > 1
    }

    /// Runs the operation in place if every rank's buffer can be reached; false if not.
    pub(super) fn run_shared<T: Element + Pod>(
        &mut self,
        request: &Request,
        view: View<'_, T>,
        limits: &WaitLimits<'_>,
    ) -> Result<bool, RunError> {
        let prepared = self.prepare_in_place::<T>(request)?;
        let seq = *self.seq(request.collective);
        if let Some(failure) = limits.poison().failure() {
            return Err(failure.into());
        }
        let bytes = size_of_val(view.target);
        self.recorder.begin(prepared.call, seq, bytes);
        let mut board = self.board.take().expect("may_share has seen it");
        let (operation, header) = (&prepared.operation, prepared.header);
        let mut attempt = Attempt {
            run: Run::new(self, operation, header, seq, request.caller.step, limits),
            prepared: &prepared,
            request,
        };
        let done = if board.reaches(view.source()) && board.reaches(view.target) {
            board.open(view, seq, |windows| attempt.complete(windows))
        } else {
            // The others see that this window is shut.
            attempt.frames::<T>(attempt.opening()).map(|()| false)
        };
        self.board = Some(board);
        match done {
            Ok(true) => {
                self.recorder.end(request.collective, bytes, limits.elapsed());
            }
            Ok(false) => self.recorder.withdraw(),
            Err(_) => {}
        }
        Ok(done?)
    }
}

/// From this size on it costs less than frames: two barriers against copies into the slots and out of
/// them. Measured with `bonfire bench` on two cores over shared memory, 2026-11-20.
const BYTES_MIN: usize = 16 << 10;

struct Attempt<'a> {
    run: Run<'a>,
    prepared: &'a Prepared,
    request: &'a Request,
}

impl<'a> Attempt<'a> {
    /// The steps before the first direct one: the barrier after which every window is open.
    fn opening(&self) -> &'a [Step] {
        let steps = &self.prepared.steps;
        let is_direct = |step: &Step| matches!(step, Step::ReduceDirect { .. });
        &steps[..steps.iter().position(is_direct).unwrap_or(steps.len())]
    }

    fn frames<T: Element>(&mut self, steps: &[Step]) -> Result<()> {
        steps.iter().try_for_each(|step| self.frame::<T>(step))
    }

    fn frame<T: Element>(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Put { peer, source } => {
                assert!(source.is_empty(), "a frame with data in a zero-copy plan");
                self.run.put::<T>(*peer, &[])
            }
            Step::Wait { peer } => self.run.wait(*peer),
            Step::Release { peer } => {
                self.run.executor.links.release(*peer);
                Ok(())
            }
            other => unreachable!("a zero-copy plan has no {other}"),
        }
    }

    fn complete<T: Element + Pod>(&mut self, windows: &mut Windows<'_, T>) -> Result<bool> {
        let opening = self.opening();
        let results = self.request.count * size_of::<T>() * self.run.executor.world_size.len();
        self.frames::<T>(opening)?;
        let nothing = windows.shard().start;
        if windows.visit(nothing..nothing, |_| ()).is_err() {
            return Ok(false);
        }
        for step in &self.prepared.steps[opening.len()..] {
            match step {
                Step::ReduceDirect { range, sources, targets, stage } => {
                    let options = FoldOptions {
                        // Moves have one source, and one source is only copied.
                        reduce: self.request.reduce.unwrap_or(ReduceOp::Sum),
                        stage: *stage,
                        world_size: self.run.executor.world_size,
                        streams: results >= self.run.executor.streams_from,
                    };
                    windows
                        .visit(range.as_range(), |views| {
                            T::fold_views(views, sources, targets, options);
                        })
                        .map_err(|shut| self.explain_shut(shut))?;
                    if let Some(failure) = self.run.limits.poison().failure() {
                        return Err(failure);
                    }
                }
                frame => self.frame::<T>(frame)?,
            }
        }
        Ok(true)
    }

    /// All windows were open when the operation began.
    fn explain_shut(&self, shut: Shut) -> Failure {
        let (Shut::Closed { rank } | Shut::Differs { rank }) = shut;
        self.run.reason_for_the_end(Rank::new(rank as u32))
    }
}
