//! The rank processes of this host, from their start to the end of the last one.

use std::collections::BTreeSet;
use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bonfire_collective::{FLIGHT_DIR_VARIABLE, FlightRecord, RankEnv};
use bonfire_plan::Rank;
use bonfire_sys::process::{
    ChildProcess, ChildSignal, ExitWatch, Guard, Interrupt, stop_this_process,
};
use tracing::{info, warn};

use super::command::{command, spawn_error};
use super::ending::{Ending, Order};
use super::meeting::Meeting;
use super::numa::on_cores;
use super::pulse::Watch;
use super::signals::{Listening, Signals, Wish};
use super::{AgentOptions, OutputLabels};
use crate::environment::{LauncherOutput, OUTPUT};
use crate::error::LaunchError;
use crate::failure::{BadEnd, Exit, JobFailure, root_cause};
use crate::flights::Flights;
use crate::output::{
    self, Channel, ErrorDedup, LogPlace, Logs, Relay, Screen, Tail, TerminalWatch,
};

/// Room for the signals that a user may send while the agent is busy; more are one too many.
const INTERRUPTS_MAX: usize = 16;
/// How long the last output of ended ranks may take. Only a process that left its rank's group and
/// kept its output open makes this matter.
const OUTPUT_WAIT: Duration = Duration::from_secs(2);

enum Event {
    Ended {
        local_rank: usize,
        at: Instant,
    },
    Wished(Wish),
    FailedElsewhere,
    /// The process that ends the ranks if this one cannot was itself ended.
    Unguarded,
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) result: Result<(), LaunchError>,
    /// Whether starting again would not help, or nobody wants it.
    pub(super) is_last: bool,
    /// What the ranks left that took part, if it failed: of this host, or of all once they agree.
    pub(super) flights: Vec<FlightRecord>,
}

impl End {
    /// An end after which nothing is started again.
    pub(super) fn last(error: LaunchError) -> Self {
        Self { result: Err(error), is_last: true, flights: Vec::new() }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Setup<'a> {
    pub(super) options: &'a AgentOptions,
    pub(super) logs: &'a Logs,
    pub(super) flights: &'a Flights,
    pub(super) signals: &'a Signals,
}

struct RankProcess {
    rank: Rank,
    child: ChildProcess,
    tail: Tail,
    waiter: JoinHandle<()>,
    relays: Vec<JoinHandle<()>>,
}

/// The running ranks. Dropping it kills them.
pub(super) struct Supervisor {
    // The order matters: dropping ends the processes before the signals get their default back.
    ranks: Vec<RankProcess>,
    running: BTreeSet<usize>,
    bad_ends: Vec<BadEnd>,
    /// The first end of a rank that was a success.
    first_success: Option<BadEnd>,
    ending: Ending,
    interrupted: Option<Interrupt>,
    events: Receiver<Event>,
    screen: Arc<Screen>,
    dedup: Arc<ErrorDedup>,
    /// Lent to rank 0, if this host has it and a terminal.
    terminal: Option<TerminalWatch>,
    is_one_host: bool,
    /// Ends the ranks, and what they started, if this process cannot any more.
    guard: Arc<Guard>,
    unguarded: SyncSender<Event>,
    _listening: Listening,
    _others: Option<Watch>,
}

impl Supervisor {
    /// Starts all ranks of this host, or none.
    pub(super) fn start(setup: Setup<'_>, meeting: &Meeting) -> Result<Self, LaunchError> {
        let options = setup.options;
        let nproc = options.nproc_per_node.get();
        info!(
            "starting {nproc} of {} ranks of {}",
            meeting.world_size(),
            options.program.display()
        );
        let (sender, events) = sync_channel(options.nproc_per_node.get() as usize + INTERRUPTS_MAX);
        let (wishes, others) = (sender.clone(), sender.clone());
        let is_shown = |place: RankEnv| setup.logs.show(Channel::Output, place.local_rank);
        let mut places = meeting.places();
        let artist = places.find(|place| place.rank == output::ARTIST);
        let (screen, terminal) = output::open(artist.is_some_and(is_shown))?;
        let mut supervisor = Self {
            ranks: Vec::new(),
            running: BTreeSet::new(),
            bad_ends: Vec::new(),
            first_success: None,
            ending: Ending::new(options.graces),
            interrupted: None,
            events,
            screen,
            dedup: Arc::default(),
            terminal,
            is_one_host: meeting.is_one_host(),
            guard: Arc::new(Guard::start()?),
            unguarded: sender.clone(),
            // A full queue means that the user has asked more than often enough.
            _listening: setup.signals.listen(move |wish| {
                let _ = wishes.try_send(Event::Wished(wish));
            }),
            _others: meeting.watch(move || {
                let _ = others.try_send(Event::FailedElsewhere);
            }),
        };
        watch_guard(&supervisor.guard, sender.clone())?;
        for place in meeting.places() {
            let command = command(options, meeting, &place);
            let rank = supervisor.start_rank(setup, &place, command, sender.clone())?;
            supervisor.running.insert(supervisor.ranks.len());
            supervisor.ranks.push(rank);
        }
        Ok(supervisor)
    }

    /// Waits for the end of all ranks and says how it was.
    pub(super) fn run(mut self, flights: &Flights) -> End {
        match self.wait_for_all() {
            Ok(()) => {
                // Nobody draws any more.
                self.terminal = None;
                self.drain_output();
                self.heed_late_interrupt();
                let has_failed = !self.bad_ends.is_empty();
                End {
                    is_last: self.interrupted.is_some(),
                    result: self.verdict(),
                    flights: if has_failed { flights.read() } else { Vec::new() },
                }
            }
            Err(error) => End::last(error),
        }
    }

    fn wait_for_all(&mut self) -> Result<(), LaunchError> {
        while !self.running.is_empty() {
            let order = match self.next_event() {
                Some(Event::Ended { local_rank, at }) => {
                    self.rank_ended(local_rank, at)?;
                    if self.nobody_can_end() {
                        self.ending.cut_short(Instant::now())
                    } else {
                        Order::Wait
                    }
                }
                Some(Event::Wished(Wish::End(by))) => {
                    self.interrupted.get_or_insert(by);
                    self.ending.interrupted(Instant::now())
                }
                Some(Event::Wished(Wish::Stop)) => {
                    self.stop_together()?;
                    Order::Wait
                }
                Some(Event::FailedElsewhere) => {
                    self.ending.rank_failed(Instant::now());
                    Order::Wait
                }
                Some(Event::Unguarded) => {
                    self.renew_guard();
                    Order::Wait
                }
                None => self.ending.time_passed(Instant::now()),
            };
            self.carry_out(order)?;
        }
        Ok(())
    }

    /// A wish that comes after the last rank has ended ends what would start next: a restart, or another job.
    fn heed_late_interrupt(&mut self) {
        for event in self.events.try_iter() {
            if let Event::Wished(Wish::End(by)) = event {
                self.interrupted.get_or_insert(by);
            }
        }
    }

    /// Stops the ranks and this process, and has the ranks continue when this process does.
    fn stop_together(&mut self) -> Result<(), LaunchError> {
        let since = Instant::now();
        self.signal_all(ChildSignal::Stop)?;
        let stopped = stop_this_process();
        self.signal_all(ChildSignal::Continue)?;
        self.ending.stood_still(since.elapsed());
        Ok(stopped?)
    }

    /// Somebody has killed the guard, and would leave what the ranks started running after a kill of
    /// this process. The job is worth more than its guard.
    fn renew_guard(&self) {
        let watch = |()| watch_guard(&self.guard, self.unguarded.clone());
        match self.guard.renew().and_then(watch) {
            Ok(_) => warn!("the launcher's guard process was killed; another takes its place"),
            Err(error) => warn!("the launcher's guard process was killed, for good: {error}"),
        }
    }

    fn start_rank(
        &self,
        Setup { options, logs, flights, .. }: Setup<'_>,
        place: &RankEnv,
        mut command: Command,
        events: SyncSender<Event>,
    ) -> Result<RankProcess, LaunchError> {
        // A single rank has the screen for itself.
        if options.nproc_per_node.get() == 1 && !logs.keep(place.local_rank) {
            command.env(OUTPUT, LauncherOutput::Direct.variable());
        } else {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.env(OUTPUT, self.screen.kind().variable());
        }
        if let Some(folder) = flights.to_pass_on() {
            command.env(FLIGHT_DIR_VARIABLE, folder);
        }
        command.envs(options.variables.iter().map(|(name, value)| (name, value)));

        let cores = options.numa_binding.and_then(|binding| binding.cores(&command, place));
        let terminal = self.terminal.as_ref();
        let spawn = || output::spawn(command, place.rank, terminal, &self.guard);
        let mut child = on_cores(cores.as_deref(), spawn)?
            .map_err(|source| spawn_error(&options.program, place.rank, source))?;
        let local_rank = place.local_rank as usize;
        let name = format!("bonfire-wait-{local_rank}");
        let waiter = wait_for(name, child.exit_watch(), move || {
            let at = Instant::now();
            let _ = events.send(Event::Ended { local_rank, at });
        })?;
        let log_place = LogPlace {
            rank: place.rank,
            local_rank: place.local_rank,
            restart_count: place.restart_count,
        };
        let relay = |channel, tail| {
            let is_bare = options.nproc_per_node.get() == 1
                || (options.labels == OutputLabels::Errors && channel == Channel::Output);
            let sink = logs.sink(channel, log_place).map_err(LaunchError::Logs)?;
            let prefix = if is_bare { String::new() } else { format!("[rank {}] ", place.rank) };
            Ok::<_, LaunchError>(Relay {
                rank: place.rank,
                prefix,
                channel,
                screen: Arc::clone(&self.screen),
                dedup: Arc::clone(&self.dedup),
                tail,
                sink,
            })
        };
        let tail = Tail::default();
        let mut relays = Vec::new();
        if let Some(output) = child.take_stdout() {
            relays.push(relay(Channel::Output, Tail::default())?.start(output)?);
        }
        if let Some(error) = child.take_stderr() {
            relays.push(relay(Channel::Error, tail.clone())?.start(error)?);
        }
        Ok(RankProcess { rank: place.rank, child, tail, waiter, relays })
    }

    /// The next event, or nothing when the deadline comes first.
    fn next_event(&self) -> Option<Event> {
        let Some(deadline) = self.ending.deadline() else {
            return Some(self.events.recv().expect("the signal watch keeps a sender"));
        };
        let left = deadline.saturating_duration_since(Instant::now());
        match self.events.recv_timeout(left) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                unreachable!("the signal watch keeps a sender")
            }
        }
    }

    fn rank_ended(&mut self, local_rank: usize, at: Instant) -> Result<(), LaunchError> {
        assert!(
            self.running.remove(&local_rank),
            "local rank {local_rank} ended twice; still running: {:?}",
            self.running
        );
        let status = self.ranks[local_rank].child.reap()?;
        let end = |exit| BadEnd { local_rank, exit, at };
        // What ends after our signals ended because of them.
        if self.ending.has_signalled() {
            return Ok(());
        }
        match Exit::of_failure(status) {
            None => {
                self.first_success.get_or_insert(end(Exit::Code(0)));
            }
            Some(exit) => {
                self.bad_ends.push(end(exit));
                self.ending.rank_failed(Instant::now());
            }
        }
        Ok(())
    }

    fn nobody_can_end(&self) -> bool {
        let mut running = self.running.iter();
        running.all(|&local_rank| self.ranks[local_rank].child.is_stopped())
    }

    /// Notes who does nothing while the job has failed, before our signals wake it.
    fn note_the_stopped(&mut self) {
        let at = Instant::now();
        for &local_rank in &self.running {
            if self.ranks[local_rank].child.is_stopped() {
                self.bad_ends.push(BadEnd { local_rank, exit: Exit::Stopped, at });
            }
        }
    }

    fn carry_out(&mut self, order: Order) -> Result<(), LaunchError> {
        let signal = match order {
            Order::Wait => return Ok(()),
            Order::Terminate => {
                if self.interrupted.is_none() {
                    self.note_the_stopped();
                }
                ChildSignal::Terminate
            }
            Order::Kill => ChildSignal::Kill,
            Order::Abandon => {
                for local_rank in std::mem::take(&mut self.running) {
                    let stuck = &self.ranks[local_rank];
                    warn!(
                        "rank {} (process {}) does not end even after SIGKILL; the kernel holds it, \
                         probably in a device driver",
                        stuck.rank,
                        stuck.child.id()
                    );
                }
                return Ok(());
            }
        };
        self.signal_all(signal)
    }

    fn signal_all(&self, signal: ChildSignal) -> Result<(), LaunchError> {
        for &local_rank in &self.running {
            self.ranks[local_rank].child.signal_group(signal)?;
        }
        Ok(())
    }

    /// Lets the last output reach the screen, and ends the threads of all ranks that have ended.
    fn drain_output(&mut self) {
        let deadline = Instant::now() + OUTPUT_WAIT;
        let threads = self.ranks.iter_mut().flat_map(|rank| rank.relays.drain(..));
        for thread in threads {
            while !thread.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
            // One that still reads is left to end with this process.
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
        for note in self.dedup.take_notes() {
            self.screen.line(Channel::Error, "", note.as_bytes());
        }
        self.screen.release();
        self.screen.clear_status();
    }

    fn verdict(&mut self) -> Result<(), LaunchError> {
        let cause = root_cause(&self.bad_ends, self.first_success);
        let cause = cause.map(|end| self.describe(end));
        for rank in self.ranks.drain(..) {
            if rank.waiter.is_finished() {
                let _ = rank.waiter.join();
            }
        }
        match (cause, self.interrupted) {
            (Some(failure), _) => Err(LaunchError::Rank(Box::new(failure))),
            (None, Some(by)) => Err(LaunchError::Interrupted { by }),
            (None, None) => Ok(()),
        }
    }

    fn describe(&self, end: BadEnd) -> JobFailure {
        let rank = &self.ranks[end.local_rank];
        let host = || {
            let name = rustix::system::uname();
            name.nodename().to_string_lossy().into_owned()
        };
        JobFailure {
            rank: rank.rank,
            process_id: Some(rank.child.id()),
            host: (!self.is_one_host).then(host),
            exit: end.exit,
            last_lines: rank.tail.lines(),
        }
    }
}

/// Reports when the process that stands guard ends before the supervisor does.
fn watch_guard(guard: &Guard, events: SyncSender<Event>) -> io::Result<JoinHandle<()>> {
    let name = "bonfire-wait-guard".to_owned();
    wait_for(name, guard.exit_watch(), move || {
        let _ = events.send(Event::Unguarded);
    })
}

fn wait_for(
    name: String,
    watch: ExitWatch,
    on_end: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name).spawn(move || {
        // A child that cannot be waited for was reaped: the supervisor is gone, and with it the receiver of the news.
        if watch.wait().is_ok() {
            on_end();
        }
    })
}
