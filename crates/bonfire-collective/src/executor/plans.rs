//! Plans kept ready, so that an operation of a known shape builds nothing.

use std::num::NonZeroUsize;
use std::sync::Arc;

use bonfire_plan::{
    Algorithm, Hosts, PlanError, Rank, Role, Schedule, ScheduleShape, Step, WorldSize,
};
use rustc_hash::FxHashMap;

use super::Request;
use super::memory::Extents;
use crate::Element;

/// A training step uses a handful of shapes; a program that uses more than this many builds some
/// again.
const PLANS_MAX: usize = 256;

/// One rank's part of a plan.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) algorithm: Algorithm,
    pub(super) steps: Vec<Step>,
    pub(super) extents: Extents,
    /// What ranks compare of the block lengths.
    pub(super) layout: u32,
}

#[derive(Debug)]
pub(super) struct Plans {
    me: Rank,
    world_size: WorldSize,
    hosts: Hosts,
    chunk_bytes: usize,
    ready: FxHashMap<ScheduleShape, Arc<Prepared>>,
}

impl Plans {
    pub(super) fn new(me: Rank, world_size: WorldSize, hosts: Hosts, chunk_bytes: usize) -> Self {
        Self {
            me,
            world_size,
            hosts,
            chunk_bytes,
            ready: FxHashMap::default(),
        }
    }

    pub(super) fn prepare<T: Element>(
        &mut self,
        request: &Request,
        algorithm: Algorithm,
    ) -> Result<Arc<Prepared>, PlanError> {
        let shape = ScheduleShape {
            collective: request.collective,
            algorithm,
            world_size: self.world_size,
            count: request.count,
            chunk_elems_max: NonZeroUsize::new(self.chunk_bytes / size_of::<T>())
                .expect("a chunk holds at least one element of every type"),
            partition: request.partition.clone(),
            hosts: self.hosts.clone(),
        };
        if let Some(prepared) = self.ready.get(&shape) {
            return Ok(Arc::clone(prepared));
        }
        let schedule = Schedule::new(shape.clone())?;
        let extents = Extents::new(
            request.collective,
            schedule.extent(self.me, Role::Input),
            schedule.extent(self.me, Role::Output),
        );
        let prepared = Arc::new(Prepared {
            algorithm,
            steps: schedule.steps(self.me),
            extents,
            layout: schedule.shape().layout_hash(),
        });
        if self.ready.len() >= PLANS_MAX {
            self.ready.clear();
        }
        self.ready.insert(shape, Arc::clone(&prepared));
        Ok(prepared)
    }
}
