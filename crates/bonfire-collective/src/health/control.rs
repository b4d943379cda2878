//! The control channel: one connection to every peer beside the data path, read by one thread.
//!
//! It carries failures, reports of what the ranks were doing, what they do at the moment when somebody
//! asks, heartbeats, and farewells; and its end of stream is how the death of a process is seen: the operating system
//! closes the connection even after SIGKILL. Nothing on the step path touches it.

mod early;
mod line;
mod pulse;
mod suspect;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bonfire_plan::Rank;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::health::failure::Failure;
use crate::health::flight::FlightRecord;
use crate::health::poison::Poison;
use crate::health::recorder::Progress;
use crate::health::reports::{RankReport, Reports};
use crate::health::stragglers::{Heartbeat, Stragglers};
use crate::options::GroupOptions;
use bonfire_connect::platform::clock;
use bonfire_connect::platform::net::{Handle, await_news};
use bonfire_connect::platform::thread::{self, JoinHandle};

pub(crate) use early::{Early, Reading};
pub(crate) use line::Peer;
use line::{Inbox, Kind, MESSAGE_BYTES_MAX, Nonsense};
use pulse::Pulse;

/// How often the thread looks around while nothing comes. The end of the group wakes it.
const LOOK_SLICE: Duration = Duration::from_millis(100);
/// How often it tries to send what a connection did not take.
const BACKLOG_SLICE: Duration = Duration::from_millis(5);
/// How long a program has to notice a failure.
const HANGING: Duration = Duration::from_secs(1);
/// How long a rank that leaves tries to say so to peers that take nothing.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);
const ANSWER_LOOK: Duration = Duration::from_millis(2);

/// What is wrong with a peer that is not a rank of Bonfire's.
const NONSENSE: &str =
    "it sent something that is not a control message, or that was changed on the way";

#[derive(Debug)]
pub(crate) struct Control {
    peers: Arc<Vec<Peer>>,
    poison: Arc<Poison>,
    stop: Arc<AtomicBool>,
    /// Of the connections, shared with the thread that watches: a descriptor for each peer counts.
    handles: Vec<Arc<Handle>>,
    watcher: Option<JoinHandle<()>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Question {
    round: u64,
    operations_max: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    round: u64,
    record: FlightRecord,
}

impl Control {
    /// Starts to watch the connections. `peers` has one for every other rank.
    pub(crate) fn start(
        my_rank: Rank,
        peers: Vec<Early>,
        poison: Arc<Poison>,
        options: &GroupOptions,
    ) -> io::Result<Self> {
        let (mut control, watcher) = Self::prepare(my_rank, peers, poison, options)?;
        if !control.peers.is_empty() {
            let name = format!("bonfire-ctl-{my_rank}");
            control.watcher = Some(thread::spawn(&name, move || watcher.run())?);
        }
        Ok(control)
    }

    /// The connections, and the watcher that is to run on a thread of its own.
    fn prepare(
        my_rank: Rank,
        peers: Vec<Early>,
        poison: Arc<Poison>,
        options: &GroupOptions,
    ) -> io::Result<(Self, Watcher)> {
        for early in &peers {
            early.with_stream(|stream| {
                stream.set_nonblocking()?;
                stream.notice_silence()
            })?;
        }
        let handle = |early: &Early| Arc::clone(&early.inbox.handle);
        let handles = peers.iter().map(handle).collect();
        let split = |early: Early| (early.peer, early.inbox);
        let (peers, inboxes): (Vec<Peer>, Vec<Inbox>) = peers.into_iter().map(split).unzip();
        let peers = Arc::new(peers);
        let stop = Arc::new(AtomicBool::new(false));
        let now = clock::now();
        let world_size = peers.len() as u32 + 1;
        let is_first = my_rank == Rank::new(0);
        let watcher = Watcher {
            me: my_rank,
            peers: Arc::clone(&peers),
            inboxes,
            poison: Arc::clone(&poison),
            stop: Arc::clone(&stop),
            look_slice: LOOK_SLICE,
            pulse: Pulse::new(my_rank, world_size, options.heartbeat_timeout, now),
            stragglers: is_first.then(|| Stragglers::new(world_size, now)),
        };
        let control = Self { peers, poison, stop, handles, watcher: None };
        Ok((control, watcher))
    }

    /// Whom questions can be put to, as long as this rank has not left.
    pub(crate) fn peers(&self) -> Weak<Vec<Peer>> {
        Arc::downgrade(&self.peers)
    }

    /// Reports to every peer why the group failed, and what the ranks of this process were doing. A
    /// peer that cannot be notified has failed itself.
    pub(crate) fn broadcast(&self, failure: &Failure, reports: &Reports) {
        send_all(&self.peers, Kind::Failure, failure);
        send_reports(&self.peers, failure, reports);
    }

    /// Says farewell and stops watching. Peers keep what was sent before.
    pub(crate) fn leave(&mut self) {
        say_farewell(&self.peers, &self.poison);
        self.stop();
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the thread that watches.
        for handle in &self.handles {
            handle.hang_up();
        }
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Asks every peer what its ranks do, and waits until all have said it, or for `timeout`: a process
/// that is stopped says nothing. The answers are in the reports.
pub(crate) fn ask(peers: &[Peer], poison: &Poison, operations_max: usize, timeout: Duration) {
    let round = poison.reports().begin_round();
    let question = Question { round, operations_max };
    send_all(peers, Kind::Question, &question);
    let started = clock::now();
    while clock::since(started) < timeout {
        let answers = poison.reports().answers();
        let owes =
            |peer: &&Peer| !answers.contains_key(&peer.rank) && !poison.has_departed(peer.rank);
        if !peers.iter().any(|peer| owes(&peer)) {
            return;
        }
        thread::sleep(ANSWER_LOOK);
    }
}

fn encode(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("control messages are plain data")
}

fn decode<M: DeserializeOwned>(text: &[u8]) -> Result<M, Nonsense> {
    serde_json::from_slice(text).map_err(|_| Nonsense)
}

fn send_all(peers: &[Peer], kind: Kind, message: &impl Serialize) {
    let text = encode(message);
    for peer in peers {
        peer.send(kind, &text);
    }
}

/// Tells every peer that this rank leaves, and waits until that is sent, for a second at most.
pub(crate) fn say_farewell(peers: &[Peer], poison: &Poison) {
    // A rank that leaves because of a failure is not the one that failed; a peer that does not know
    // of it yet must not take it for that.
    if let Some(failure) = poison.failure() {
        send_all(peers, Kind::Failure, &failure);
    }
    for peer in peers {
        peer.send(Kind::Farewell, &[]);
    }
    let started = clock::now();
    while peers.iter().any(Peer::has_backlog) && clock::since(started) < FAREWELL_TIMEOUT {
        // The thread that watches sends the rest.
        thread::sleep(ANSWER_LOOK);
    }
}

/// Tells some of the peers of a failure that is not their group's own.
pub(crate) fn notify(peers: &[Peer], failure: &Failure, is_notified: impl Fn(Rank) -> bool) {
    let text = encode(failure);
    for peer in peers.iter().filter(|peer| is_notified(peer.rank)) {
        peer.send(Kind::Failure, &text);
    }
}

/// Tells every peer what this process was doing, where that can say who is to blame.
fn send_reports(peers: &[Peer], failure: &Failure, reports: &Reports) {
    if !matches!(failure, Failure::Timeout(_) | Failure::Mismatch(_)) {
        return;
    }
    for report in reports.own() {
        send_all(peers, Kind::Report, &report);
    }
}

/// Sends one peer what the ranks of this process do.
fn answer(peer: &Peer, question: &Question, poison: &Poison) {
    let failure = poison.failure().map(|failure| failure.to_string());
    let records = poison.reports().own_records(failure.as_deref(), question.operations_max);
    for record in records {
        let round = question.round;
        let mut answer = Answer { round, record };
        let mut text = encode(&answer);
        while text.len() > MESSAGE_BYTES_MAX {
            // Names may be of any length; the latest operations matter most.
            let record = &mut answer.record;
            if record.operations.is_empty() {
                record.progress = Progress::default();
                record.failure = None;
            }
            record.operations.truncate(record.operations.len() / 2);
            text = encode(&answer);
        }
        peer.send(Kind::Answer, &text);
    }
}

struct Watcher {
    me: Rank,
    peers: Arc<Vec<Peer>>,
    inboxes: Vec<Inbox>,
    poison: Arc<Poison>,
    stop: Arc<AtomicBool>,
    look_slice: Duration,
    pulse: Pulse,
    stragglers: Option<Stragglers>,
}

impl Watcher {
    fn run(mut self) {
        let mut failed = None;
        self.look_around();
        for index in 0..self.inboxes.len() {
            // What was said while this rank was joining.
            if self.interpret(index).is_err() {
                self.lose(index, NONSENSE.to_owned());
            }
        }
        while !self.stop.load(Ordering::Acquire) {
            for index in self.wait() {
                self.receive(index);
            }
            for peer in &*self.peers {
                peer.flush();
            }
            let Some(failure) = self.poison.failure() else {
                self.look_around();
                continue;
            };
            match failed {
                None => {
                    send_reports(&self.peers, &failure, self.poison.reports());
                    failed = Some(clock::now());
                }
                // The program hangs, or it would have written them itself, with the verdict.
                Some(since) if clock::since(since) >= HANGING => {
                    let reports = self.poison.reports();
                    reports.write_flight_records(&failure.to_string());
                }
                Some(_) => {}
            }
        }
    }

    /// The peers of which there is news, after a while at most.
    fn wait(&self) -> Vec<usize> {
        let mut places: Vec<usize> = Vec::new();
        let mut handles: Vec<&Handle> = Vec::new();
        for (place, inbox) in self.inboxes.iter().enumerate() {
            if inbox.is_open {
                places.push(place);
                handles.push(&inbox.handle);
            }
        }
        let slice =
            if self.peers.iter().any(Peer::has_backlog) { BACKLOG_SLICE } else { self.look_slice };
        let news = await_news(&handles, slice);
        news.into_iter().map(|ready| places[ready]).collect()
    }

    /// What is done from time to time while all is well.
    fn look_around(&mut self) {
        let now = clock::now();
        if self.pulse.is_due(now) {
            self.beat(now);
        }
        for (rank, silence) in self.pulse.silent(now) {
            self.suspect(rank, silence);
        }
        for (rank, silence) in self.pulse.never_heard(now) {
            match suspect::cause_from_the_start(self.peer(rank).far_end(), silence) {
                Some(cause) => self.blame(rank, cause),
                None => self.pulse.excuse(rank, now),
            }
        }
        let report = self.stragglers.as_mut().and_then(|known| known.report(now));
        if let (Some(report), Some(known)) = (report, &mut self.stragglers) {
            if known.is_worth_a_line(&report, now) {
                tracing::warn!(target: "bonfire", "{report}");
            }
            send_all(&self.peers, Kind::Stragglers, &report);
            self.poison.reports().keep_stragglers(report);
        }
    }

    fn beat(&mut self, now: Instant) {
        let recorders = self.poison.reports().recorders();
        let own = recorders.iter().find(|known| known.target.rank == self.me);
        // Before the group is complete there is nothing to report but that this rank is there.
        let heartbeat = own.map_or_else(Heartbeat::default, |own| {
            let (waited, alive) = own.recorder.waited();
            Heartbeat { step: own.recorder.step(), waited, alive }
        });
        let text = encode(&heartbeat);
        for peer in &*self.peers {
            // Whether a silent one's host acknowledges shows only if there is something to acknowledge.
            if self.pulse.is_listener(peer.rank) || self.pulse.is_quiet(peer.rank, now) {
                peer.send(Kind::Heartbeat, &text);
            }
        }
        if let Some(stragglers) = &mut self.stragglers {
            stragglers.receive_beat(self.me, heartbeat);
        }
    }

    fn suspect(&mut self, rank: Rank, silence: Duration) {
        if self.poison.has_departed(rank) {
            self.pulse.forget(rank);
            return;
        }
        let Some(cause) = suspect::cause(self.peer(rank).far_end(), silence) else {
            self.pulse.forget(rank);
            tracing::warn!(
                target: "bonfire",
                "rank {}: a debugger holds rank {rank}, which is not taken for a failure", self.me
            );
            return;
        };
        self.blame(rank, cause);
    }

    fn blame(&self, rank: Rank, cause: String) {
        let is_first = self.poison.set(Failure::Peer { rank, cause });
        if is_first && let Some(failure) = self.poison.failure() {
            send_all(&self.peers, Kind::Failure, &failure);
        }
    }

    fn peer(&self, rank: Rank) -> &Peer {
        let peer = self.peers.iter().find(|peer| peer.rank == rank);
        peer.expect("only peers are heard")
    }

    fn receive_beat(&mut self, rank: Rank, heartbeat: Heartbeat) {
        self.pulse.receive_beat(rank, clock::now());
        if let Some(stragglers) = &mut self.stragglers {
            stragglers.receive_beat(rank, heartbeat);
        }
    }

    fn receive(&mut self, index: usize) {
        let mut buffer = [0; 4096];
        while self.inboxes[index].is_open {
            let peer = &self.peers[index];
            let end = match peer.read(&mut buffer) {
                Ok(0) => "its process ended without leaving the group".to_owned(),
                Ok(count) => {
                    self.inboxes[index].feed(&buffer[..count]);
                    match self.interpret(index) {
                        Ok(()) => continue,
                        Err(Nonsense) => NONSENSE.to_owned(),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => format!("connection lost: {error}"),
            };
            self.lose(index, end);
        }
    }

    /// The connection to a peer has come to an end.
    fn lose(&mut self, index: usize, end: String) {
        // Whoever leaves ends the connections itself.
        if self.stop.load(Ordering::Acquire) {
            self.inboxes[index].is_open = false;
            return;
        }
        let rank = self.peers[index].rank;
        self.inboxes[index].is_open = false;
        self.pulse.forget(rank);
        // A farewell makes the end a normal one.
        if end == NONSENSE || !self.poison.has_departed(rank) {
            // Others may still be connected to it, and would wait.
            self.blame(rank, end);
        }
    }

    fn interpret(&mut self, index: usize) -> Result<(), Nonsense> {
        while let Some((kind, text)) = self.inboxes[index].next()? {
            let (peer, poison) = (&self.peers[index], &*self.poison);
            match kind {
                Kind::Farewell => {
                    poison.depart(peer.rank);
                    self.pulse.forget(peer.rank);
                }
                Kind::Report => poison.reports().receive(decode::<RankReport>(&text)?),
                Kind::Joined => poison.reports().joined(peer.rank),
                Kind::Failure => {
                    poison.set(decode(&text)?);
                }
                Kind::Question => answer(peer, &decode(&text)?, poison),
                Kind::Answer => {
                    let Answer { round, record } = decode(&text)?;
                    poison.reports().answer(round, record);
                }
                Kind::Heartbeat => self.receive_beat(peer.rank, decode(&text)?),
                Kind::Stragglers => poison.reports().keep_stragglers(decode(&text)?),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
