//! What happens on the network: connections come to be, bytes arrive, connections break.

use std::io::ErrorKind;
use std::time::Duration;

use super::endpoint::{Endpoint, Phase, Segment};
use super::wires::{Cut, Door, Entry};
use crate::simulation::state::{Event, State};
use crate::task::Key;

/// How long a lost packet takes to be sent again, at first.
const RETRANSMISSION: Duration = Duration::from_millis(200);

/// A packet is sent again after twice as long as the last time, but after this at the latest.
const RETRANSMISSION_MAX: Duration = Duration::from_secs(8);

/// How long a lost request for a connection takes to be sent again, at first.
const REQUEST_AGAIN: Duration = Duration::from_secs(1);

/// How often it is sent at most.
const REQUESTS_MAX: u32 = 6;

/// How long a packet takes within a host.
const LOCAL_LATENCY_MAX: Duration = Duration::from_micros(40);

/// How soon a connection breaks that does so early.
const EARLY: Duration = Duration::from_millis(40);

#[derive(Clone, Debug)]
pub(crate) enum NetEvent {
    /// A request for a connection reaches a host.
    Request {
        client: usize,
        door: Door,
        tries: u32,
    },
    /// The answer reaches who asked.
    Answer {
        client: usize,
        phase: Phase,
    },
    /// The next segment on the way to a socket arrives.
    Arrive {
        socket: usize,
        tries: u32,
    },
    Break {
        socket: usize,
    },
    /// The other host has been silent for too long, unless it is not any more.
    Silence {
        socket: usize,
    },
}

impl State {
    pub(crate) fn happen(&mut self, event: NetEvent) {
        match event {
            NetEvent::Request { client, door, tries } => self.request(client, &door, tries),
            NetEvent::Answer { client, phase } => {
                let endpoint = self.wires.endpoint_mut(client);
                if endpoint.phase == Phase::Connecting {
                    endpoint.phase = phase;
                }
                self.wake(Key::Socket(client));
            }
            NetEvent::Arrive { socket, tries } => self.arrive(socket, tries),
            NetEvent::Break { socket } => {
                let peer = self.wires.endpoint(socket).peer;
                let hosts = self.hosts_of(socket);
                self.report.breaks.push(hosts);
                for socket in [Some(socket), peer].into_iter().flatten() {
                    self.fail(socket, ErrorKind::ConnectionReset);
                }
            }
            NetEvent::Silence { socket } => {
                let hosts = self.hosts_of(socket);
                if self.wires.cut_between(hosts, self.now).is_some() {
                    self.fail(socket, ErrorKind::TimedOut);
                }
            }
        }
    }

    /// A packet's time between two hosts.
    pub(crate) fn latency(&mut self, [one, other]: [usize; 2]) -> Duration {
        if one == other {
            return self.chance.time(Duration::ZERO..=LOCAL_LATENCY_MAX);
        }
        let mut latency = self.chance.time(self.conditions.latency.clone());
        let mut again = RETRANSMISSION;
        while self.chance.once_in(self.conditions.loss) && again < RETRANSMISSION_MAX {
            latency += again;
            again *= 2;
        }
        latency
    }

    pub(super) fn hosts_of(&self, socket: usize) -> [usize; 2] {
        let endpoint = self.wires.endpoint(socket);
        let peer = endpoint.peer.map(|peer| self.wires.endpoint(peer).host);
        [endpoint.host, peer.unwrap_or(endpoint.host)]
    }

    pub(crate) fn ask(&mut self, client: usize, door: Door) {
        let hosts = [self.wires.endpoint(client).host, door.host()];
        let at = self.now + self.latency(hosts);
        let tries = 0;
        let request = NetEvent::Request { client, door, tries };
        self.plan(at, Event::Net(request));
    }

    fn request(&mut self, client: usize, door: &Door, tries: u32) {
        let endpoint = self.wires.endpoint(client);
        if endpoint.is_closed || endpoint.phase != Phase::Connecting {
            return;
        }
        let hosts = [endpoint.host, door.host()];
        if self.wires.cut_between(hosts, self.now).is_some() {
            return self.ask_again(client, door, tries);
        }
        let answer = match self.wires.doors.get(door).copied() {
            None => Phase::Refused,
            Some(listener) => {
                let backlog = self.conditions.backlog;
                let is_full = self.wires.listener_mut(listener).queue.len() >= backlog;
                match (is_full, door) {
                    (false, _) => {
                        self.admit(client, listener);
                        Phase::Open
                    }
                    (true, Door::Tcp { .. }) => return self.ask_again(client, door, tries),
                    (true, Door::Name { .. }) => Phase::Full,
                }
            }
        };
        let at = self.now + self.latency(hosts);
        let phase = answer;
        self.plan(at, Event::Net(NetEvent::Answer { client, phase }));
    }

    fn ask_again(&mut self, client: usize, door: &Door, tries: u32) {
        let pause = REQUEST_AGAIN * 2_u32.pow(tries.min(REQUESTS_MAX));
        let request = NetEvent::Request { client, door: door.clone(), tries: tries + 1 };
        self.plan(self.now + pause, Event::Net(request));
    }

    /// Makes the other end of a connection and leaves it to be accepted.
    fn admit(&mut self, client: usize, listener: usize) {
        let there = self.wires.endpoint(client);
        let (local, remote, is_unix) = (there.remote, there.local, there.is_unix);
        let here = self.wires.listener_mut(listener);
        let (process, host) = (here.process, here.host);
        let mut endpoint = Endpoint::new(process, host, [local, remote]);
        endpoint.is_unix = is_unix;
        endpoint.phase = Phase::Open;
        endpoint.peer = Some(client);
        let server = self.wires.add(Entry::Endpoint(Box::new(endpoint)));
        self.wires.endpoint_mut(client).peer = Some(server);
        self.wires.listener_mut(listener).queue.push_back(server);
        self.wake(Key::Socket(listener));
        if !is_unix && self.chance.once_in(self.conditions.breaks) {
            let at = self.now + self.chance.moment(EARLY);
            self.plan(at, Event::Net(NetEvent::Break { socket: client }));
        }
    }

    pub(crate) fn send(&mut self, socket: usize, segment: Segment) {
        let latency = self.latency(self.hosts_of(socket));
        let now = self.now;
        let target = self.wires.endpoint_mut(socket);
        if target.error.is_some() {
            return;
        }
        let at = target.last_arrival.max(now + latency);
        target.last_arrival = at;
        if let Segment::Bytes(bytes) = &segment {
            target.piped_bytes += bytes.len();
        }
        target.pipe.push_back(segment);
        self.plan(at, Event::Net(NetEvent::Arrive { socket, tries: 0 }));
    }

    fn arrive(&mut self, socket: usize, tries: u32) {
        let hosts = self.hosts_of(socket);
        if let Some(Cut { until, .. }) = self.wires.cut_between(hosts, self.now) {
            if until.is_some() {
                let pause = RETRANSMISSION * 2_u32.pow(tries.min(5));
                let at = self.now + pause.min(RETRANSMISSION_MAX);
                let tries = tries + 1;
                self.plan(at, Event::Net(NetEvent::Arrive { socket, tries }));
            }
            return;
        }
        let Some(segment) = self.wires.endpoint_mut(socket).pipe.pop_front() else {
            return;
        };
        match segment {
            Segment::Bytes(bytes) => self.arrive_bytes(socket, hosts, bytes),
            Segment::End => {
                let target = self.wires.endpoint_mut(socket);
                target.has_ended = true;
                target.news += 1;
            }
            Segment::Reset => self.fail(socket, ErrorKind::ConnectionReset),
        }
        self.wake(Key::Socket(socket));
    }

    fn arrive_bytes(&mut self, socket: usize, hosts: [usize; 2], mut bytes: Vec<u8>) {
        if self.wires.take_flip(hosts) {
            let place = self.chance.index(bytes.len());
            bytes[place] ^= 1 << self.chance.below(8);
            self.report.flips += 1;
        }
        self.trace(((socket as u64) << 32) | bytes.len() as u64);
        let target = self.wires.endpoint_mut(socket);
        target.piped_bytes -= bytes.len();
        if target.is_closed {
            // Nobody will read it: the sender is notified.
            if let Some(peer) = target.peer {
                self.send(peer, Segment::Reset);
            }
            return;
        }
        target.inbox.extend(bytes);
        target.news += 1;
    }

    pub(crate) fn fail(&mut self, socket: usize, kind: ErrorKind) {
        let endpoint = self.wires.endpoint_mut(socket);
        endpoint.fail(kind);
        if endpoint.phase == Phase::Connecting {
            endpoint.phase = Phase::Refused;
        }
        let peer = endpoint.peer;
        self.wake(Key::Socket(socket));
        // Whoever waits for room to send to it, or to send from it, waits in vain.
        self.wake(Key::Room(socket));
        if let Some(peer) = peer {
            self.wake(Key::Room(peer));
        }
    }

    /// Its owner is done with it.
    pub(crate) fn close(&mut self, socket: usize) {
        let unread = match &mut self.wires.entries[socket] {
            Entry::Endpoint(endpoint) => {
                if endpoint.is_closed {
                    return;
                }
                endpoint.is_closed = true;
                let has_unread = !endpoint.inbox.is_empty();
                let says_end = has_unread || !endpoint.is_write_shut;
                endpoint.peer.filter(|_| says_end).map(|peer| (peer, has_unread))
            }
            Entry::Listener(listener) => {
                if listener.is_closed {
                    return;
                }
                listener.is_closed = true;
                let (door, queue) = (listener.door.clone(), std::mem::take(&mut listener.queue));
                self.wires.doors.remove(&door);
                for endpoint in queue {
                    let peer = self.wires.endpoint(endpoint).peer;
                    self.wires.endpoint_mut(endpoint).is_closed = true;
                    if let Some(peer) = peer {
                        self.send(peer, Segment::Reset);
                    }
                }
                None
            }
        };
        if let Some((peer, has_unread)) = unread {
            let segment = if has_unread { Segment::Reset } else { Segment::End };
            self.send(peer, segment);
        }
    }

    pub(crate) fn close_all_of(&mut self, process: usize) {
        for socket in 0..self.wires.entries.len() {
            let owner = match &self.wires.entries[socket] {
                Entry::Endpoint(endpoint) => endpoint.process,
                Entry::Listener(listener) => listener.process,
            };
            if owner == process {
                self.close(socket);
            }
        }
    }
}

impl Door {
    fn host(&self) -> usize {
        match self {
            Self::Tcp { host, .. } | Self::Name { host, .. } => *host,
        }
    }
}
