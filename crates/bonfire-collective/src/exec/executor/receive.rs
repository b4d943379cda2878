//! A frame that is waited for, used once and released need not lie anywhere as a whole: where it is copied, its link
//! may receive it straight into its place; where it is folded, the fold may begin with what is there.
//!
//! Only a frame whose header says that it is the one due is used so. For every other, and on links
//! that only have whole frames, the steps run one by one, with their checks.

use crate::transport::wire::AGREED_BYTES;
use bonfire_plan::{Rank, ReduceOp, Source, Stage, Step};
use smallvec::SmallVec;

use super::memory::Space;
use super::run::Run;
use crate::Element;
use crate::exec::fold::{FoldOptions, Operand};
use crate::health::failure::{Failure, Result};
use crate::transport::{Arrival, Due};

/// Frames with less payload take the steps one by one: they arrive with their header in one read, so
/// there is nothing to gain.
const PAYLOAD_BYTES_MIN: usize = 16 << 10;
/// Bytes of payload that are folded at a time: enough that a fold costs more than the look for the
/// bytes, and so few that they are still in the cache through which the kernel copied them.
const PIECE_BYTES: usize = 64 << 10;

impl Run<'_> {
    /// Runs the first of `steps` if they wait for a frame, use it once and release it; the number
    /// of steps that are done then: all three, or only the first if the frame lies in its slot.
    pub(super) fn use_frame<T: Element>(
        &mut self,
        steps: &[Step],
        reduce: Option<ReduceOp>,
        space: &mut Space<'_, '_, T>,
    ) -> Result<usize> {
        let [
            Step::Wait { peer },
            used @ (Step::Copy { target, .. } | Step::Reduce { target, .. }),
            Step::Release { peer: released },
            ..,
        ] = steps
        else {
            return Ok(0);
        };
        if peer != released || target.len() * size_of::<T>() < PAYLOAD_BYTES_MIN {
            return Ok(0);
        }
        match used {
            Step::Reduce { sources, stage, .. } => {
                if !sources.iter().all(|source| is_of(*source, *peer)) {
                    return Ok(0);
                }
                let options = self.fold_options(reduce, *stage);
                self.fold_frame(*peer, space.target(*target), sources, options)
            }
            _ => self.place_frame(*peer, space.target(*target)),
        }
    }

    pub(super) fn place_frame<T: Element>(
        &mut self,
        peer: Rank,
        target: &mut [T],
    ) -> Result<usize> {
        // Whatever bytes come must be a value.
        let Some(plain) = T::as_plain(target) else {
            return Ok(0);
        };
        let target: &mut [u8] = bytemuck::cast_slice_mut(plain);
        let agreed = self.agreed();
        let due = Due { agreed: &agreed, payload_bytes: target.len() };
        let links = &mut self.executor.links;
        let waited = links.wait_to(peer, &due, target, self.limits);
        match waited.map_err(|error| self.explain(peer, error))? {
            Arrival::Due => Ok(3),
            Arrival::Whole => self.check_header(peer).map(|()| 1),
        }
    }

    /// Folds the next frame from `peer` into `target`, piece by piece as it arrives.
    fn fold_frame<T: Element>(
        &mut self,
        peer: Rank,
        target: &mut [T],
        sources: &[Source],
        options: FoldOptions,
    ) -> Result<usize> {
        let payload_bytes = size_of_val(target);
        let agreed = self.agreed();
        let due = Due { agreed: &agreed, payload_bytes };
        let mut folded = 0;
        while folded < target.len() {
            let wanted = payload_bytes.min(folded * size_of::<T>() + PIECE_BYTES);
            let links = &mut self.executor.links;
            let waited = links.wait_for_part(peer, &due, wanted, self.limits);
            let end = match waited.map_err(|error| self.explain(peer, error))? {
                Arrival::Whole if folded == 0 => return self.check_header(peer).map(|()| 1),
                Arrival::Whole => target.len(),
                Arrival::Due => wanted / size_of::<T>(),
            };
            let payload = self.executor.links.payload(peer, &due);
            let payload = payload.expect("the wait returned");
            let piece = &payload[folded * size_of::<T>()..end * size_of::<T>()];
            let piece = self.elements::<T>(peer, piece, end - folded)?;
            let operand = |source: &Source| match source {
                Source::Own => Operand::Target,
                Source::Inbox(_) => Operand::Peer(piece),
            };
            let operands: SmallVec<[Operand<'_, T>; 4]> = sources.iter().map(operand).collect();
            T::fold(&mut target[folded..end], &operands, options);
            folded = end;
        }
        self.executor.links.release(peer);
        Ok(3)
    }

    /// The payload of the oldest frame from `peer`, which must have `count` elements.
    pub(super) fn payload<T: Element>(&self, peer: Rank, count: usize) -> Result<&[T]> {
        let frame = self.executor.links.front(peer);
        let payload = frame.expect("the plan waits before it reads").payload();
        self.elements(peer, payload, count)
    }

    /// What a peer sent, which must be `count` elements.
    fn elements<'b, T: Element>(
        &self,
        peer: Rank,
        payload: &'b [u8],
        count: usize,
    ) -> Result<&'b [T]> {
        bytemuck::checked::try_cast_slice(payload)
            .ok()
            .filter(|elements: &&[T]| elements.len() == count)
            .ok_or_else(|| Failure::Peer {
                rank: peer,
                cause: format!(
                    "it sent {} bytes where {count} elements of {} bytes were due in {}",
                    payload.len(),
                    size_of::<T>(),
                    self.operation()
                ),
            })
    }

    pub(super) fn fold_options(&self, reduce: Option<ReduceOp>, stage: Stage) -> FoldOptions {
        FoldOptions {
            reduce: reduce.expect("only collectives with a reduce op have Reduce steps"),
            stage,
            world_size: self.executor.world_size,
            streams: false,
        }
    }

    /// What the headers of all frames of the operation begin with.
    fn agreed(&self) -> [u8; AGREED_BYTES] {
        *self.header.first_chunk().expect("a header begins with it")
    }
}

fn is_of(source: Source, peer: Rank) -> bool {
    matches!(source, Source::Own) || source == Source::Inbox(peer)
}
