//! What a call needs again each time, kept ready, so that a repeated operation builds nothing.

use std::collections::HashMap;
use std::panic::Location;
use std::ptr;
use std::sync::Arc;

use bonfire_plan::{
    Collective, DType, Hosts, Operation, Partition, PlanError, Rank, ReduceOp, Role, Schedule,
    ScheduleShape, Step, WorldSize,
};
use foldhash::fast::FixedState;

use super::Request;
use super::memory::Extents;
use crate::Element;
use crate::exec::select::chunk_elems;
use crate::health::recorder::{CallIndex, Name, Recorder};
use crate::transport::wire::{self, HEADER_BYTES};

/// A training step makes a handful of calls; a program that makes more than this many different ones
/// builds some again.
const PLANS_MAX: usize = 1024;

/// One rank's part of a plan, and what its frames say.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Its number is that of no particular call.
    pub(super) operation: Operation,
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) call: CallIndex,
    pub(super) steps: Vec<Step>,
    /// Whether this rank sends and waits for nobody.
    pub(super) only_sends: bool,
    pub(super) extents: Extents,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// In frames, by an algorithm of the selector's choice, which never changes.
    Frames,
    InPlace,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// The address says as much as the text, in less time.
    call_site: usize,
    place: Place,
    collective: Collective,
    reduce: Option<ReduceOp>,
    dtype: DType,
    count: usize,
    partition: Partition,
    name: Name,
    agreed: u32,
}

impl Key {
    pub(super) fn new<T: Element>(request: &Request, place: Place) -> Self {
        Self {
            call_site: ptr::from_ref::<Location<'static>>(request.caller.call_site).addr(),
            place,
            collective: request.collective,
            reduce: request.reduce,
            dtype: T::DTYPE,
            count: request.count,
            partition: request.partition.clone(),
            name: request.caller.name,
            agreed: request.caller.agreed,
        }
    }
}

#[derive(Debug)]
pub(super) struct Plans {
    me: Rank,
    world_size: WorldSize,
    hosts: Hosts,
    chunk_bytes: usize,
    ready: HashMap<Key, Arc<Prepared>, FixedState>,
}

impl Plans {
    pub(super) fn new(me: Rank, world_size: WorldSize, hosts: Hosts, chunk_bytes: usize) -> Self {
        Self { me, world_size, hosts, chunk_bytes, ready: HashMap::default() }
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<Prepared>> {
        self.ready.get(key).cloned()
    }

    /// Prepares this and all further calls like it. `operation` says by which algorithm; to its layout
    /// that of the schedule is added.
    pub(super) fn prepare(
        &mut self,
        key: Key,
        mut operation: Operation,
        recorder: &Recorder,
    ) -> Result<Arc<Prepared>, PlanError> {
        let schedule = Schedule::new(self.shape(&key, &operation))?;
        operation.layout ^= schedule.shape().layout_hash();
        let extents = Extents::new(
            key.collective,
            schedule.extent(self.me, Role::Input),
            schedule.extent(self.me, Role::Output),
        );
        let steps = schedule.steps(self.me);
        let is_put = |step: &Step| matches!(step, Step::Put { .. });
        let is_wait = |step: &Step| matches!(step, Step::Wait { .. });
        let prepared = Arc::new(Prepared {
            only_sends: steps.iter().any(is_put) && !steps.iter().any(is_wait),
            header: wire::encode_header(&operation, 0),
            call: recorder.learn(operation.clone(), key.name),
            operation,
            steps,
            extents,
        });
        if self.ready.len() >= PLANS_MAX {
            self.ready.clear();
        }
        self.ready.insert(key, Arc::clone(&prepared));
        Ok(prepared)
    }

    fn shape(&self, key: &Key, operation: &Operation) -> ScheduleShape {
        ScheduleShape {
            collective: key.collective,
            algorithm: operation.algorithm,
            world_size: self.world_size,
            count: key.count,
            chunk_elems_max: chunk_elems(self.chunk_bytes, key.dtype),
            partition: key.partition.clone(),
            hosts: self.hosts.clone(),
        }
    }
}
