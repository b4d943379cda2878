//! Runs one rank's steps of a schedule over its links.
//!
//! The schedule says everything about order; this file only does what a step says, checks each
//! frame's header against the operation, and turns a broken wait into the group's failure.

mod probe;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bonfire_plan::wire::{self, AGREED_BYTES, HEADER_BYTES, Operation};
use bonfire_plan::{
    Algorithm, Collective, Partition, PlanError, Rank, ReduceOp, Schedule, ScheduleShape, Source,
    Step, WorldSize,
};
use smallvec::SmallVec;

use crate::Element;
use crate::error::{Failure, Mismatch, Timeout};
use crate::local_reduce::{FoldOptions, Operand, fold};
use crate::options::GroupOptions;
use crate::patience::{Eagerness, Interrupt, Patience};
use crate::poison::Poison;
use crate::select::{Question, Selector};
use crate::topology::Topology;
use crate::transport::{LinkError, Links, Traffic};

pub(crate) use probe::Figures;
#[cfg(test)]
pub(crate) use probe::LinkCost;

/// Plans kept ready. A training step uses a handful of shapes; a program that uses more than this
/// many builds some again.
const PLANS_MAX: usize = 256;

/// How long to wait for the control channel to say why a data connection closed.
const REASON_PATIENCE: Duration = Duration::from_millis(500);

/// What the caller asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) collective: Collective,
    pub(crate) reduce: Option<ReduceOp>,
    pub(crate) call_site: &'static std::panic::Location<'static>,
    pub(crate) eagerness: Eagerness,
}

/// Why an operation did not complete.
#[derive(Debug)]
pub(crate) enum RunError {
    Usage(PlanError),
    Failed(Failure),
}

/// Which rank of which group an executor works for.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) me: Rank,
    pub(crate) topology: Topology,
    /// Number of the group, with which every frame is stamped.
    pub(crate) group: u32,
    /// How this rank waits when it has nothing else to do.
    pub(crate) eagerness: Eagerness,
    /// What the links cost, where that is known from a group with the same kind of links.
    pub(crate) figures: Option<Figures>,
}

#[derive(Debug)]
pub(crate) struct Executor {
    me: Rank,
    world_size: WorldSize,
    group: u32,
    seq: u64,
    options: GroupOptions,
    chunk_bytes: usize,
    selector: Selector,
    /// How a measurement waits, whoever waits for the operation that needs it.
    eagerness: Eagerness,
    links: Links,
    plans: HashMap<ScheduleShape, Arc<[Step]>>,
}

impl Executor {
    pub(crate) fn new(seat: Seat, links: Links, options: GroupOptions, chunk_bytes: usize) -> Self {
        let Seat {
            me,
            topology,
            group,
            eagerness,
            figures,
        } = seat;
        let mut selector = Selector::new(me, topology, options.clone(), chunk_bytes);
        if let Some(figures) = figures {
            selector.learn(figures);
        }
        Self {
            me,
            world_size: selector.world_size(),
            group,
            seq: 0,
            options,
            chunk_bytes,
            selector,
            eagerness,
            links,
            plans: HashMap::new(),
        }
    }

    /// What the links cost, once that has been measured.
    pub(crate) fn figures(&self) -> Option<Figures> {
        self.selector.figures()
    }

    /// What went over all links since set-up.
    pub(crate) fn traffic(&self) -> Traffic {
        self.links.traffic()
    }

    /// Runs one operation on this rank's data, in place.
    pub(crate) fn run<T: Element>(
        &mut self,
        request: Request,
        data: &mut [T],
        poison: &Poison,
    ) -> Result<(), RunError> {
        if let Some(reduce) = request.reduce {
            reduce.require(T::DTYPE).map_err(RunError::Usage)?;
        }
        if let Some(failure) = poison.failure() {
            return Err(RunError::Failed(failure));
        }
        let patience = Patience {
            started: Instant::now(),
            timeout: self.options.timeout,
            eagerness: request.eagerness,
            poison,
        };
        let question = Question {
            collective: request.collective,
            reduce: request.reduce,
            dtype: T::DTYPE,
            count: data.len(),
            partition: &Partition::Balanced,
        };
        let shape = ScheduleShape {
            collective: request.collective,
            algorithm: self.select(&question, &request, &patience)?,
            world_size: self.world_size,
            count: data.len(),
            chunk_elems_max: NonZeroUsize::new(self.chunk_bytes / size_of::<T>())
                .expect("a chunk holds at least one element of every type"),
            partition: Partition::Balanced,
            hosts: self.selector.hosts(),
        };
        let (algorithm, layout) = (shape.algorithm, shape.layout_hash());
        let steps = self.plan(shape).map_err(RunError::Usage)?;
        let operation = Operation {
            group: self.group,
            seq: self.seq,
            collective: request.collective,
            algorithm,
            dtype: T::DTYPE,
            reduce: request.reduce,
            count: data.len() as u64,
            layout,
            call_site: wire::CallSite::new(request.call_site),
        };
        self.seq += 1;
        let mut run = Run {
            executor: self,
            operation: &operation,
            patience: &patience,
        };
        for step in steps.iter() {
            run.step(step, request.reduce, data)
                .map_err(RunError::Failed)?;
        }
        Ok(())
    }

    /// The algorithm for this operation. The first choice that depends on what the links cost
    /// measures them, together with all ranks.
    fn select(
        &mut self,
        question: &Question<'_>,
        request: &Request,
        patience: &Patience<'_>,
    ) -> Result<Algorithm, RunError> {
        if let Some(algorithm) = self.selector.known(question) {
            return Ok(algorithm);
        }
        if self.selector.wants_figures(question) {
            let operation = Operation {
                group: self.group,
                seq: self.seq,
                collective: question.collective,
                // None yet; the same on all ranks.
                algorithm: Algorithm::candidates(question.collective)[0],
                dtype: question.dtype,
                reduce: question.reduce,
                count: question.count as u64,
                layout: 0,
                call_site: wire::CallSite::new(request.call_site),
            };
            let patience = Patience {
                eagerness: self.eagerness,
                ..*patience
            };
            let mut run = Run {
                executor: self,
                operation: &operation,
                patience: &patience,
            };
            let figures = run.measure().map_err(RunError::Failed)?;
            self.selector.learn(figures);
        }
        Ok(self.selector.select(question))
    }

    fn plan(&mut self, shape: ScheduleShape) -> Result<Arc<[Step]>, PlanError> {
        if let Some(steps) = self.plans.get(&shape) {
            return Ok(Arc::clone(steps));
        }
        let steps: Arc<[Step]> = Schedule::new(shape.clone())?.steps(self.me).into();
        if self.plans.len() >= PLANS_MAX {
            self.plans.clear();
        }
        self.plans.insert(shape, Arc::clone(&steps));
        Ok(steps)
    }
}

/// One operation under way.
struct Run<'a> {
    executor: &'a mut Executor,
    operation: &'a Operation,
    patience: &'a Patience<'a>,
}

impl Run<'_> {
    fn step<T: Element>(
        &mut self,
        step: &Step,
        reduce: Option<ReduceOp>,
        data: &mut [T],
    ) -> Result<(), Failure> {
        match step {
            Step::Put { peer, source } => {
                let payload: &[u8] = bytemuck::cast_slice(&data[source.as_range()]);
                let payload_bytes = u32::try_from(payload.len()).expect("a chunk is below 4 GiB");
                let header = wire::encode_header(self.operation, payload_bytes);
                let put = self
                    .executor
                    .links
                    .put(*peer, &header, payload, self.patience);
                put.map_err(|error| self.explain(*peer, error))
            }
            Step::Wait { peer } => {
                let waited = self.executor.links.wait(*peer, self.patience);
                waited.map_err(|error| self.explain(*peer, error))?;
                self.check_header(*peer)
            }
            Step::Reduce {
                target,
                sources,
                stage,
            } => {
                let options = FoldOptions {
                    reduce: reduce.expect("only collectives with a reduce op have Reduce steps"),
                    stage: *stage,
                    world_size: self.executor.world_size,
                };
                let target = &mut data[target.as_range()];
                let mut operands: SmallVec<[Operand<'_, T>; 16]> = SmallVec::new();
                for source in sources {
                    operands.push(match source {
                        Source::Own => Operand::Target,
                        Source::Inbox(peer) => Operand::Peer(self.payload(*peer, target.len())?),
                    });
                }
                fold(target, &operands, options);
                Ok(())
            }
            Step::Copy { peer, target } => {
                let target = &mut data[target.as_range()];
                target.copy_from_slice(self.payload(*peer, target.len())?);
                Ok(())
            }
            Step::Release { peer } => {
                self.executor.links.release(*peer);
                Ok(())
            }
            Step::ReduceDirect { .. } => {
                unreachable!("no algorithm that this engine selects reaches into peers' buffers")
            }
        }
    }

    /// The payload of the oldest frame from `peer`, which must have `count` elements.
    fn payload<T: Element>(&self, peer: Rank, count: usize) -> Result<&[T], Failure> {
        let frame = self
            .executor
            .links
            .front(peer)
            .expect("the plan waits before it reads");
        let payload = &frame[HEADER_BYTES..];
        bytemuck::try_cast_slice(payload)
            .ok()
            .filter(|elements: &&[T]| elements.len() == count)
            .ok_or_else(|| Failure::Peer {
                rank: peer,
                cause: format!(
                    "it sent {} bytes where {count} elements of {} bytes were due in {}",
                    payload.len(),
                    size_of::<T>(),
                    self.operation
                ),
            })
    }

    /// Compares what the peer says it is doing with what this rank is doing.
    fn check_header(&self, peer: Rank) -> Result<(), Failure> {
        let frame = self.executor.links.front(peer).expect("the wait returned");
        let mine = wire::encode_header(self.operation, 0);
        if frame.len() >= HEADER_BYTES && frame[..AGREED_BYTES] == mine[..AGREED_BYTES] {
            return Ok(());
        }
        match wire::decode_header(frame) {
            Ok((other_operation, _)) => Err(Failure::Mismatch(Box::new(Mismatch {
                rank: self.executor.me,
                operation: self.operation.clone(),
                other_rank: peer,
                other_operation,
            }))),
            Err(error) => Err(Failure::Peer {
                rank: peer,
                cause: error.to_string(),
            }),
        }
    }

    fn explain(&self, peer: Rank, error: LinkError) -> Failure {
        match error {
            LinkError::Interrupted(Interrupt::Failed(failure)) => failure,
            LinkError::Interrupted(Interrupt::Departed) => Failure::Peer {
                rank: peer,
                cause: format!("it left the group; the others were in {}", self.operation),
            },
            LinkError::Interrupted(Interrupt::Expired) => Failure::Timeout(Box::new(Timeout {
                rank: self.executor.me,
                waited_for: peer,
                operation: self.operation.clone(),
                elapsed_ms: u64::try_from(self.patience.started.elapsed().as_millis())
                    .unwrap_or(u64::MAX),
            })),
            LinkError::Broken { rank, cause } => Failure::Peer { rank, cause },
            LinkError::Ended => self.reason_for_the_end(peer),
        }
    }

    /// A closed data connection says little; the control channel will say more in a moment.
    fn reason_for_the_end(&self, peer: Rank) -> Failure {
        let started = Instant::now();
        while started.elapsed() < REASON_PATIENCE {
            if let Some(failure) = self.patience.poison.failure() {
                return failure;
            }
            if self.patience.has_departed(peer) {
                let departed = LinkError::Interrupted(Interrupt::Departed);
                return self.explain(peer, departed);
            }
            thread::sleep(Duration::from_millis(5));
        }
        Failure::Peer {
            rank: peer,
            cause: format!("it closed its link during {}", self.operation),
        }
    }
}
