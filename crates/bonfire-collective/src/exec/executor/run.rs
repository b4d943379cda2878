//! One operation under way: what each step does, and what an interrupted wait means.

use bonfire_plan::{Operation, Rank, ReduceOp, Source, Step};
use smallvec::SmallVec;

use super::Executor;
use super::memory::Space;
use super::reason::await_reason;
use crate::Element;
use crate::exec::fold::Operand;
use crate::health::failure::{Corruption, Failure, Mismatch, Result, Timeout};
use crate::health::wait::{Interrupt, WaitLimits};
use crate::transport::wire::{self, HEADER_BYTES};
use crate::transport::{Frame, LinkError};

pub(super) struct Run<'a> {
    pub(super) executor: &'a mut Executor,
    /// But for its number and its step.
    like: &'a Operation,
    pub(super) seq: u64,
    step: Option<u32>,
    /// Of the next frame; all of the operation's are alike but for the length.
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) limits: &'a WaitLimits<'a>,
}

impl<'a> Run<'a> {
    /// Operation number `seq` in a step, which is else like `like`, as encoded in `header`.
    pub(super) fn new(
        executor: &'a mut Executor,
        like: &'a Operation,
        mut header: [u8; HEADER_BYTES],
        seq: u64,
        step: Option<u32>,
        limits: &'a WaitLimits<'a>,
    ) -> Self {
        wire::set_place(&mut header, seq, step);
        Self { executor, like, seq, step, header, limits }
    }

    /// What this rank is doing, for messages to users.
    pub(super) fn operation(&self) -> Operation {
        Operation { seq: self.seq, step: self.step, ..self.like.clone() }
    }

    pub(super) fn step<T: Element>(
        &mut self,
        step: &Step,
        reduce: Option<ReduceOp>,
        space: &mut Space<'_, '_, T>,
    ) -> Result<()> {
        match step {
            Step::Put { peer, source } => self.put(*peer, space.source(*source)),
            Step::Wait { peer } => self.wait(*peer),
            Step::Reduce { target, sources, stage } => {
                let options = self.fold_options(reduce, *stage);
                let target = space.target(*target);
                let mut operands: SmallVec<[Operand<'_, T>; 64]> = SmallVec::new();
                for source in sources {
                    operands.push(match source {
                        Source::Own => Operand::Target,
                        Source::Inbox(peer) => Operand::Peer(self.payload(*peer, target.len())?),
                    });
                }
                T::fold(target, &operands, options);
                Ok(())
            }
            Step::Copy { peer, target } => {
                let target = space.target(*target);
                target.copy_from_slice(self.payload(*peer, target.len())?);
                Ok(())
            }
            Step::Release { peer } => {
                self.executor.links.release(*peer);
                Ok(())
            }
            Step::ReduceDirect { .. } => {
                unreachable!("only zero-copy plans have direct steps, and run_shared runs those")
            }
        }
    }

    pub(super) fn put<T: Element>(&mut self, peer: Rank, elements: &[T]) -> Result<()> {
        let payload: &[u8] = bytemuck::cast_slice(elements);
        let payload_bytes = u32::try_from(payload.len()).expect("a chunk is below 4 GiB");
        wire::set_payload_bytes(&mut self.header, payload_bytes);
        let header = &self.header;
        let links = &mut self.executor.links;
        let put = links.put(peer, header, payload, self.limits);
        put.map_err(|error| self.explain(peer, error))
    }

    pub(super) fn wait(&mut self, peer: Rank) -> Result<()> {
        let waited = self.executor.links.wait(peer, self.limits);
        waited.map_err(|error| self.explain(peer, error))?;
        self.check_header(peer)
    }

    pub(super) fn check_header(&self, peer: Rank) -> Result<()> {
        if self.front(peer).agrees_with(&self.header) {
            Ok(())
        } else {
            Err(self.disagreement(peer))
        }
    }

    pub(super) fn disagreement(&self, peer: Rank) -> Failure {
        match self.front(peer).operation() {
            Ok(other_operation) => Failure::Mismatch(Box::new(Mismatch {
                rank: self.executor.me,
                operation: self.operation(),
                other_rank: peer,
                other_operation,
                calls: None,
            })),
            Err(error) => Failure::Peer { rank: peer, cause: error.to_string() },
        }
    }

    pub(super) fn front(&self, peer: Rank) -> Frame<'_> {
        self.executor.links.front(peer).expect("a frame was seen")
    }

    /// A rank that only sends would not see that another one does so in another operation.
    pub(super) fn check_what_was_sent(&mut self) -> Result<()> {
        let checked = self.executor.links.check_what_was_sent(&self.header);
        checked.map_err(|error| self.explain(self.executor.me, error))
    }

    pub(super) fn explain(&self, peer: Rank, error: LinkError) -> Failure {
        match error {
            LinkError::Contradicted { rank } => self.disagreement(rank),
            LinkError::Interrupted(Interrupt::Failed(failure)) => failure,
            LinkError::Interrupted(Interrupt::Departed) => Failure::Peer {
                rank: peer,
                cause: format!("it left the group; the others were in {}", self.operation()),
            },
            LinkError::Interrupted(Interrupt::Expired) => Failure::Timeout(Box::new(Timeout {
                rank: self.executor.me,
                waited_for: peer,
                operation: self.operation(),
                elapsed_ms: u64::try_from(self.limits.elapsed().as_millis()).unwrap_or(u64::MAX),
                verdict: String::new(),
            })),
            LinkError::Broken { rank, cause } => Failure::Peer { rank, cause },
            LinkError::Changed { rank, seq } => Failure::Corrupted(Box::new(Corruption {
                source: rank,
                target: self.executor.me,
                seq: seq.unwrap_or_else(|| self.operation().seq),
            })),
            LinkError::Ended => self.reason_for_the_end(peer),
        }
    }

    /// A closed data connection says little; the control channel will say more in a moment.
    pub(super) fn reason_for_the_end(&self, peer: Rank) -> Failure {
        if let Some(reason) = await_reason(self.limits.poison(), peer) {
            return self.explain(peer, LinkError::Interrupted(reason));
        }
        Failure::Peer {
            rank: peer,
            cause: format!("it closed its link during {}", self.operation()),
        }
    }
}
