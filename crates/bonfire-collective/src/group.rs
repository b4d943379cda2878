//! The process group: what a program calls.

mod agreement;
mod background;
mod blocking;
pub(crate) mod blocks;
pub(crate) mod buffer;
mod link_pool;
mod observing;
mod operations;
mod outcome;
mod roster;
mod scratch;
mod shared_values;
mod split;
pub(crate) mod work;

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;

use bonfire_plan::{Algorithm, LinkFigures, Rank, WorldSize};
use bonfire_sys::Arena;
use bytemuck::Pod;

use crate::exec::executor::{Executor, ExecutorConfig};
use crate::group::buffer::GroupBuffer;
use crate::health::control::Control;
use crate::health::domain::{Bond, Domain};
use crate::health::failure::panic_message;
use crate::health::flight::RecordTarget;
use crate::health::poison::Poison;
use crate::health::recorder::{Enqueued, Entered, Name, Recorder};
use crate::health::reports::RankRecorder;
use crate::health::wait::Eagerness;
use crate::options::GroupOptions;
use crate::rendezvous::{ConnectError, Met, meet};
use crate::transport::topology::Topology;
use crate::transport::{Links, Sharing, Traffic, local_links};
use crate::{CollectiveError, Element, EnvSettings, RankEnv};
use bonfire_connect::platform::host;
use bonfire_connect::platform::sync::{Mutex, SyncSender, Ticket, Turnstile, sync_channel};
use bonfire_connect::platform::thread::{self, JoinHandle};

use crate::rendezvous::group_error::Result;
pub use agreement::{Agreement, Disagreement, Proposal};
pub use observing::Inside;
use roster::{Origin, Roster};
use scratch::Scratch;

/// A rank's membership in a group of ranks that communicate.
///
/// Every rank of the group must call the same operations, in the same order, with the same element type and lengths;
/// what differs is found before any data is used and is an error on all ranks. Blocking and background operations of
/// one rank run one after the other in the order of the calls. Results are the same bits on every rank, on every
/// transport and in every run (see [`GroupOptions::algorithm`] for the one exception, a ring).
///
/// Clones are the same membership. When the last one is dropped the rank leaves the group: in peace,
/// or, if the thread is panicking, as a failure of this rank on all others.
#[derive(Clone, Debug)]
pub struct ProcessGroup {
    core: Arc<Core>,
    /// None in the hands of work in the background, which does not keep the rank in the group.
    member: Option<Arc<Member>>,
    /// Where that work was begun, if it is some.
    begun: Option<Entered>,
    /// What the flight recorder calls the operations of this handle.
    name: Name,
    /// What the ranks compare of that name; nothing if 0.
    agreed: u32,
    timeout: Duration,
    /// Whether groups that it is split into do not share this one's fate.
    is_detached: bool,
}

impl AsRef<ProcessGroup> for ProcessGroup {
    fn as_ref(&self) -> &ProcessGroup {
        self
    }
}

/// What the clones share. Its drop is the rank's departure.
#[derive(Debug)]
struct Member {
    core: Arc<Core>,
    /// Passes background operations on, in the order of their tickets; gone when the member leaves.
    jobs: Mutex<Option<SyncSender<Job>>>,
    communicator: Mutex<Option<JoinHandle<()>>>,
}

/// A cause is cut to this; the rest of a long message is in the failing rank's own output, and the
/// message that carries it must fit a socket's buffer.
const CAUSE_BYTES_MAX: usize = 4 << 10;
/// Background work that may wait for its turn, more than a step has buckets. Who brings more waits.
const JOBS_MAX: usize = 1024;

struct Job {
    ticket: Ticket,
    enqueued: Enqueued,
    run: Box<dyn FnOnce() + Send>,
}

/// What the communication thread needs; it must not keep the membership alive.
#[derive(Debug)]
struct Core {
    me: Rank,
    world_size: WorldSize,
    roster: Roster,
    eagerness: Eagerness,
    turnstile: Turnstile,
    executor: Mutex<Executor>,
    /// Memory that all ranks can reach, in a group of processes of one host.
    arena: Option<Arena>,
    scratch: Mutex<Scratch>,
    poison: Arc<Poison>,
    domain: Arc<Domain>,
    recorder: Arc<Recorder>,
    control: Mutex<Option<Control>>,
    communicator: OnceLock<ThreadId>,
}

#[derive(Debug)]
struct Parts {
    me: Rank,
    world_size: WorldSize,
    /// Who the ranks are, and how they meet again.
    roster: Roster,
    figures: Option<LinkFigures>,
    links: Links,
    /// How ranks reach each other's memory, where they can.
    sharing: Option<Sharing>,
    control: Option<Control>,
    poison: Arc<Poison>,
    domain: Arc<Domain>,
    chunk_bytes: usize,
}

impl ProcessGroup {
    /// A group of threads of this process, in rank order. Give each to its thread. What the
    /// environment asks for goes before the options: see [`EnvSettings`].
    ///
    /// # Errors
    /// [`CollectiveError::Connect`] if there is no memory for the links, or the options or the environment are bad.
    pub fn local(world_size: WorldSize, options: GroupOptions) -> Result<Vec<Self>> {
        let settings = EnvSettings::from_env().map_err(ConnectError::Environment)?;
        let options = options.with(&settings);
        let chunk_bytes = options.chunk_bytes_checked().map_err(ConnectError::Option)?;
        // Threads have no streams, but a wrong number is wrong everywhere.
        options.streams_checked().map_err(ConnectError::Option)?;
        let poison = Arc::new(Poison::new(world_size));
        let links = local_links(world_size, chunk_bytes).map_err(ConnectError::Region)?;
        let sharing = Sharing::of_threads(world_size).map_err(ConnectError::Region)?;
        let topology = Topology::of(world_size.ranks().map(|_| "this process"));
        let origin = Origin::Threads(Arc::default());
        let domain = Arc::default();
        let parts =
            world_size.ranks().zip(links).zip(sharing).map(|((me, links), sharing)| Parts {
                me,
                world_size,
                roster: Roster::of_job(me, topology.clone(), origin.clone(), options.clone()),
                figures: None,
                links,
                sharing: Some(sharing),
                control: None,
                poison: Arc::clone(&poison),
                domain: Arc::clone(&domain),
                chunk_bytes,
            });
        parts.map(|parts| Ok(Self::new(parts, options.clone())?)).collect()
    }

    /// Meets the other processes of the job and connects to each of them.
    ///
    /// Blocks until all ranks are there, at most `options.startup_timeout`.
    ///
    /// # Errors
    /// [`CollectiveError::Connect`] naming what is missing, who disagrees, or what cannot be reached.
    pub fn connect(env: &RankEnv, options: GroupOptions) -> Result<Self> {
        let options = options.with(&env.settings);
        let Met { topology, home, formed, chunk_bytes } = meet(env, &options)?;
        let origin = Origin::Processes(Arc::new(home));
        let parts = Parts {
            me: env.rank,
            world_size: env.world_size,
            roster: Roster::of_job(env.rank, topology, origin, options.clone()),
            figures: None,
            links: formed.links,
            sharing: formed.sharing,
            control: Some(formed.control),
            poison: formed.poison,
            domain: Arc::default(),
            chunk_bytes,
        };
        Ok(Self::new(parts, options)?)
    }

    fn new(parts: Parts, options: GroupOptions) -> Result<Self, ConnectError> {
        let timeout = options.timeout;
        let cores = host::cores();
        let (me, world_size, roster) = (parts.me, parts.world_size, parts.roster);
        let (board, arena) = match parts.sharing {
            Some(Sharing { board, arena }) => (Some(board), arena),
            None => (None, None),
        };
        let eagerness =
            if roster.local_world_size <= cores { Eagerness::Spin } else { Eagerness::Yield };
        let recorder = Arc::new(Recorder::default());
        let target = RecordTarget {
            folder: options.flight_folder(),
            group: roster.number,
            rank: me,
            job_rank: roster.world_rank(me),
            world_size: world_size.get(),
        };
        let rank_recorder = RankRecorder { recorder: Arc::clone(&recorder), target };
        parts.poison.reports().add(me, rank_recorder);
        let bond = Bond {
            domain: Arc::clone(&parts.domain),
            number: roster.number,
            members: roster.members().into(),
            peers: parts.control.as_ref().map(Control::peers),
        };
        Domain::join(&parts.poison, bond);
        if let Origin::Processes(home) = &roster.origin
            && let Some(inspection) = &home.inspection
        {
            inspection.add(&parts.poison);
        }
        let config = ExecutorConfig {
            me,
            topology: roster.topology.clone(),
            group: roster.number,
            eagerness,
            figures: parts.figures,
            recorder: Arc::clone(&recorder),
        };
        let executor = Executor::new(config, parts.links, board, options, parts.chunk_bytes);
        let core = Arc::new(Core {
            me,
            world_size,
            eagerness,
            turnstile: Turnstile::default(),
            executor: Mutex::new(executor),
            roster,
            scratch: Mutex::new(Scratch::new(arena.clone())),
            arena,
            poison: parts.poison,
            domain: parts.domain,
            recorder,
            control: Mutex::new(parts.control),
            communicator: OnceLock::new(),
        });
        let (jobs, received) = sync_channel::<Job>(JOBS_MAX);
        let core_there = Arc::clone(&core);
        let communicator = thread::spawn(&format!("bonfire-comm-{me}"), move || {
            let _ = core_there.communicator.set(std::thread::current().id());
            for job in received {
                let _turn = core_there.turnstile.enter(job.ticket);
                core_there.recorder.dequeue(job.enqueued);
                // Without this thread, the tickets of the jobs behind this one are never used, and
                // everybody waits for their turns.
                if catch_unwind(AssertUnwindSafe(job.run)).is_err() {
                    let cause = "a buffer panicked in the background when it was dropped";
                    let _ = core_there.refuse(cause);
                }
            }
        })
        .map_err(ConnectError::Thread)?;
        Ok(Self {
            member: Some(Arc::new(Member {
                core: Arc::clone(&core),
                jobs: Mutex::new(Some(jobs)),
                communicator: Mutex::new(Some(communicator)),
            })),
            core,
            begun: None,
            name: Name::default(),
            agreed: 0,
            timeout,
            is_detached: false,
        })
    }

    /// Returns this rank's number in the group.
    pub fn rank(&self) -> Rank {
        self.core.me
    }

    /// The options that the group was made with.
    pub fn options(&self) -> &GroupOptions {
        &self.roster().options
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> WorldSize {
        self.core.world_size
    }

    /// A buffer of `len` zero elements that the other ranks can reach, so that a collective works in it
    /// without copies. Any part of it may be passed to an operation.
    ///
    /// # Errors
    /// [`CollectiveError::Buffer`] if there is no memory for it. The group continues.
    pub fn buffer<T: Element + Pod>(&self, len: usize) -> Result<GroupBuffer<T>> {
        match &self.core.arena {
            Some(arena) => Ok(GroupBuffer::shared(arena.allocate(len).map_err(Arc::new)?)),
            None => Ok(GroupBuffer::own(len)),
        }
    }

    /// What this rank has sent and received since the group was formed. Waits for the operation that is running.
    pub fn traffic(&self) -> Traffic {
        self.core.executor.lock().traffic()
    }

    /// The algorithm of the last operation that this rank completed: the one asked for, or Bonfire's
    /// choice. Waits for the operation that is running; none before the first.
    pub fn last_algorithm(&self) -> Option<Algorithm> {
        self.core.executor.lock().last_algorithm()
    }

    /// Ends the group on all ranks: every pending and future operation everywhere returns
    /// [`CollectiveError::PeerFailed`] naming this rank and `cause`. So do those of the groups that
    /// [share its fate](Self::split); where this rank is not in one of them, it is
    /// [`CollectiveError::FailedElsewhere`]. The first failure counts; later ones change nothing.
    pub fn abort(&self, cause: &str) {
        let cause = &cause[..cause.floor_char_boundary(CAUSE_BYTES_MAX)];
        // What this rank did is part of what went wrong, and its process may end at once.
        let _ = self.core.refuse(cause);
    }

    /// Returns the value; or [aborts](Self::abort) the group, with the error as the cause, and returns the error. For a
    /// failure that begins on this rank, of which the other ranks learn in no other way.
    ///
    /// # Errors
    /// That of `result`.
    pub fn or_abort<T, E: Display>(&self, result: Result<T, E>) -> Result<T, E> {
        result.inspect_err(|error| self.abort(&error.to_string()))
    }

    /// Runs `work`. If it panics, [aborts](Self::abort) the group with the panic's message as the cause, and continues
    /// the panic.
    ///
    /// # Panics
    /// If `work` panics.
    pub fn abort_on_panic<R>(&self, work: impl FnOnce() -> R) -> R {
        // After a panic nothing of `work` is used here.
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            self.abort(&format!("panicked: {}", panic_message(&*panic)));
            resume_unwind(panic)
        })
    }

    /// Leaves this group and those that [share its fate](Self::split), even if there are other handles of them: a
    /// value that is never dropped may hold one. The other ranks take an end of this process for a normal one after it.
    pub fn leave(self) {
        let domain = Arc::clone(&self.core.domain);
        let rank = self.world_rank(self.rank());
        drop(self);
        domain.leave(rank);
    }

    /// The failure that ended the group, if one has.
    pub fn failure(&self) -> Option<CollectiveError> {
        let core = &self.core;
        core.poison.failure().map(|failure| core.explain(failure))
    }

    /// Runs `body` after all operations issued before; in work in the background, in the turn of that.
    fn in_turn<R>(&self, body: impl FnOnce(&Core) -> Result<R>) -> Result<R> {
        let core = &self.core;
        // Most find nobody before them, and need no look at the clock.
        let enqueued = if core.turnstile.is_idle() {
            Enqueued::default()
        } else if core.is_in_background() {
            // The turnstile is never idle there.
            return body(core);
        } else {
            core.recorder.enqueue()
        };
        let _turn = core.turnstile.enter(core.turnstile.issue());
        core.recorder.dequeue(enqueued);
        body(core)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.core.refuse("it panicked");
        }
        // Background operations already issued still run: the other ranks wait for them. Each ends by its deadline.
        *self.jobs.lock() = None;
        let communicator = self.communicator.lock().take();
        if let Some(communicator) = communicator
            // The last handle may have been in the hands of work in the background.
            && !self.core.is_in_background()
        {
            let _ = communicator.join();
        }
        self.core.poison.depart(self.core.me);
        if let Some(mut control) = self.core.control.lock().take() {
            control.leave();
        }
    }
}
