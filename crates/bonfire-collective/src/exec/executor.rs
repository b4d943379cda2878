//! Runs one rank's steps of a schedule over its links, or in the ranks' own memory.
//!
//! The schedule says everything about order; this file only does what a step says, checks each
//! frame's header against the operation, and turns a broken wait into the group's failure.

mod memory;
mod plans;
mod probe;
mod reason;
mod receive;
mod run;
mod zero_copy;

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use bonfire_plan::{
    Algorithm, CallSite, Collective, LinkFigures, Operation, Partition, PlanError, Rank, ReduceOp,
    WorldSize,
};
use bonfire_sys::streaming;
use bonfire_sys::window::{Board, View};

use crate::Element;
use crate::exec::select::{Question, Selector};
use crate::health::failure::Failure;
use crate::health::poison::Poison;
use crate::health::recorder::{Name, Recorder};
use crate::health::wait::{Eagerness, WaitLimits};
use crate::options::GroupOptions;
use crate::options::call_sites::CallSites;
use crate::transport::topology::Topology;
use crate::transport::{Links, Traffic, wire};

pub(crate) use memory::Memory;
use memory::Space;
use plans::{Key, Place, Plans, Prepared};
use run::Run;

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) collective: Collective,
    pub(crate) reduce: Option<ReduceOp>,
    pub(crate) count: usize,
    pub(crate) partition: Partition,
    pub(crate) caller: Caller,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) call_site: &'static Location<'static>,
    pub(crate) name: Name,
    /// What the ranks compare of the name.
    pub(crate) agreed: u32,
    pub(crate) step: Option<u32>,
    pub(crate) eagerness: Eagerness,
    pub(crate) timeout: Duration,
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) enum RunError {
    Usage(#[from] PlanError),
    Failed(#[from] Failure),
}

/// Which rank of which group an executor works for.
#[derive(Debug)]
pub(crate) struct ExecutorConfig {
    pub(crate) me: Rank,
    pub(crate) topology: Topology,
    /// Number of the group, with which every frame is stamped.
    pub(crate) group: u32,
    /// How this rank waits when it has nothing else to do.
    pub(crate) eagerness: Eagerness,
    /// What the links cost, where that is known from a group with the same kind of links.
    pub(crate) figures: Option<LinkFigures>,
    pub(crate) recorder: Arc<Recorder>,
}

/// Operations of this rank with one other so far. The directions are counted apart, so that both may
/// send before they receive.
#[derive(Clone, Copy, Debug, Default)]
struct PairSeqs {
    sent: u64,
    received: u64,
    exchanged: u64,
}

#[derive(Debug)]
pub(crate) struct Executor {
    me: Rank,
    world_size: WorldSize,
    group: u32,
    seq: u64,
    pairs: Vec<PairSeqs>,
    options: GroupOptions,
    chunk_bytes: usize,
    selector: Selector,
    /// How a measurement waits, whatever the wait of the operation that needs it.
    eagerness: Eagerness,
    links: Links,
    /// Where every rank can reach the memory of every other.
    board: Option<Board>,
    /// Bytes of the results of all ranks from which on they go past the caches, if they replace no input.
    streams_from: usize,
    plans: Plans,
    last_algorithm: Option<Algorithm>,
    recorder: Arc<Recorder>,
}

impl Executor {
    pub(crate) fn new(
        config: ExecutorConfig,
        links: Links,
        board: Option<Board>,
        options: GroupOptions,
        chunk_bytes: usize,
    ) -> Self {
        let me = config.me;
        let mut selector = Selector::new(me, config.topology, options.clone(), chunk_bytes);
        if let Some(figures) = config.figures {
            selector.learn(figures);
        }
        let (world_size, hosts) = (selector.world_size(), selector.hosts());
        Self {
            me,
            world_size,
            group: config.group,
            seq: 0,
            pairs: vec![PairSeqs::default(); world_size.len()],
            options,
            selector,
            eagerness: config.eagerness,
            links,
            board,
            streams_from: streaming::bytes_min(),
            plans: Plans::new(me, world_size, hosts, chunk_bytes),
            last_algorithm: None,
            recorder: config.recorder,
            chunk_bytes,
        }
    }

    pub(crate) fn figures(&self) -> Option<LinkFigures> {
        self.selector.figures()
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.links.traffic()
    }

    pub(crate) fn last_algorithm(&self) -> Option<Algorithm> {
        self.last_algorithm
    }

    pub(crate) fn run<T: Element>(
        &mut self,
        request: &Request,
        mut memory: Memory<'_, T>,
        poison: &Poison,
    ) -> Result<(), RunError> {
        if let Some(reduce) = request.reduce {
            reduce.require(T::DTYPE)?;
        }
        let limits = WaitLimits::new(request.caller.timeout, request.caller.eagerness, poison);
        if let Some(view) = view::<T>(request.collective, &mut memory)
            && self.may_share(request, size_of_val(view.target))
            && self.run_shared(request, view, &limits)?
        {
            self.advance(request.collective);
            self.last_algorithm = Some(Algorithm::ZeroCopy);
            return Ok(());
        }
        let memory = match memory {
            // What frames bring is folded where the result goes.
            Memory::Apart { input, output } if request.collective == Collective::AllReduce => {
                output.copy_from_slice(input);
                Memory::InPlace(output)
            }
            other => other,
        };
        if let Some(failure) = poison.failure() {
            return Err(failure.into());
        }
        let prepared = self.prepare_frames::<T>(request, &limits)?;
        let seq = self.advance(request.collective);
        let bytes = request.count * size_of::<T>();
        self.recorder.begin(prepared.call, seq, bytes);
        let mut space = Space::new(memory, &prepared.extents);
        let (operation, header) = (&prepared.operation, prepared.header);
        let mut run = Run::new(self, operation, header, seq, request.caller.step, &limits);
        let mut steps = &prepared.steps[..];
        while let Some(step) = steps.first() {
            let mut done = run.use_frame(steps, request.reduce, &mut space)?;
            if done == 0 {
                run.step(step, request.reduce, &mut space)?;
                done = 1;
            }
            steps = &steps[done..];
        }
        if prepared.only_sends {
            run.check_what_was_sent()?;
        }
        self.last_algorithm = Some(prepared.operation.algorithm);
        self.recorder.end(request.collective, bytes, limits.elapsed());
        Ok(())
    }

    /// The plan of an operation whose data is sent in frames.
    fn prepare_frames<T: Element>(
        &mut self,
        request: &Request,
        limits: &WaitLimits<'_>,
    ) -> Result<Arc<Prepared>, RunError> {
        let key = Key::new::<T>(request, Place::Frames);
        if let Some(prepared) = self.plans.get(&key) {
            return Ok(prepared);
        }
        let algorithm = self.select::<T>(request, limits)?;
        let operation = self.operation::<T>(request, algorithm);
        Ok(self.plans.prepare(key, operation, &self.recorder)?)
    }

    /// The plan of an operation in the ranks' own memory.
    fn prepare_in_place<T: Element>(
        &mut self,
        request: &Request,
    ) -> Result<Arc<Prepared>, PlanError> {
        let key = Key::new::<T>(request, Place::InPlace);
        if let Some(prepared) = self.plans.get(&key) {
            return Ok(prepared);
        }
        let operation = self.operation::<T>(request, Algorithm::ZeroCopy);
        self.plans.prepare(key, operation, &self.recorder)
    }

    /// The algorithm for this operation. The first choice that depends on what the links cost
    /// measures them, together with all ranks.
    fn select<T: Element>(
        &mut self,
        request: &Request,
        limits: &WaitLimits<'_>,
    ) -> Result<Algorithm, RunError> {
        let question = Question {
            collective: request.collective,
            reduce: request.reduce,
            dtype: T::DTYPE,
            count: request.count,
            partition: &request.partition,
        };
        if let Some(algorithm) = self.selector.known(&question) {
            return Ok(algorithm);
        }
        if self.selector.wants_figures(&question) {
            // No algorithm yet; the same on all ranks.
            let algorithm = Algorithm::candidates(request.collective)[0];
            let operation = self.operation::<T>(request, algorithm);
            let seq = *self.seq(request.collective);
            let limits = limits.with_eagerness(self.eagerness);
            let header = wire::encode_header(&operation, 0);
            // Who waits for another rank's measurement has entered the operation, and must be seen to.
            let call = self.recorder.learn(operation.clone(), request.caller.name);
            let bytes = request.count * size_of::<T>();
            self.recorder.begin(call, seq, bytes);
            let figures =
                Run::new(self, &operation, header, seq, request.caller.step, &limits).measure()?;
            self.recorder.withdraw();
            self.selector.learn(figures);
        }
        Ok(self.selector.select(&question))
    }

    /// The number of the operation among those that nothing else distinguishes.
    fn seq(&mut self, collective: Collective) -> &mut u64 {
        match collective {
            Collective::Transfer { source, target } if source == self.me => {
                &mut self.pairs[target.index()].sent
            }
            Collective::Transfer { source, .. } => &mut self.pairs[source.index()].received,
            Collective::Exchange { first, second } if first == self.me => {
                &mut self.pairs[second.index()].exchanged
            }
            Collective::Exchange { first, .. } => &mut self.pairs[first.index()].exchanged,
            _ => &mut self.seq,
        }
    }

    /// Counts an operation; the number it had.
    fn advance(&mut self, collective: Collective) -> u64 {
        let next = self.seq(collective);
        let seq = *next;
        *next += 1;
        seq
    }

    fn operation<T: Element>(&mut self, request: &Request, algorithm: Algorithm) -> Operation {
        let call_site = CallSite::new(request.caller.call_site);
        let layout = match self.options.call_sites {
            CallSites::Named => 0,
            CallSites::Compared => call_site.hash(),
        };
        Operation {
            group: self.group,
            seq: 0,
            step: None,
            collective: request.collective,
            algorithm,
            dtype: T::DTYPE,
            reduce: request.reduce,
            count: request.count as u64,
            layout: layout ^ request.caller.agreed,
            call_site,
        }
    }
}

/// The memory of an operation that can work in it as it is, if any bytes are a value.
fn view<'m, T: Element>(
    collective: Collective,
    memory: &'m mut Memory<'_, T>,
) -> Option<View<'m, T::Plain>> {
    let (input, target) = match memory {
        Memory::InPlace(data) => (None, data),
        Memory::Apart { input, output } if collective == Collective::AllReduce => {
            (Some(bytemuck::cast_slice(input)), output)
        }
        Memory::Apart { .. } => return None,
    };
    let target = T::as_plain(target)?;
    Some(View { input, target })
}
