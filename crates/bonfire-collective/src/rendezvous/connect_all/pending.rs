//! Connections coming together, and what those that are there say meanwhile.

use std::time::Duration;

use bonfire_plan::{Rank, WorldSize};

use super::acceptor::Acceptor;
use super::dialer::Dialer;
use super::hello::Hello;
use super::listeners::Listeners;
use super::{ConnectAll, Connections, Guard, failure_for_peers};
use crate::health::control::Early;
use crate::health::failure::Failure;
use crate::health::reports::RankReport;
use crate::rendezvous::error::Result;
use crate::rendezvous::{ConnectError, Deadline};
use bonfire_connect::platform::net::{await_news, is_exhaustion};
use bonfire_connect::platform::thread;
use bonfire_connect::store::LongWait;

/// Longest sleep while waiting for a connection.
const ACCEPT_SLICE: Duration = Duration::from_millis(200);
/// Longest sleep while connections are proving themselves.
const TALK_SLICE: Duration = Duration::from_millis(2);
/// How long a rank waits for others before it says so to those that are there, and then says whether
/// that has changed.
const REPORT_AFTER: Duration = Duration::from_secs(1);
/// Longest time between two looks at the connections that are there, and at the guard.
const LOOK_AFTER: Duration = Duration::from_millis(20);
/// How long a rank that gives up hears those that are proving themselves.
const PARTING_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) struct PendingConnections<'scope, 'a> {
    all: &'a ConnectAll<'a>,
    dialer: &'scope Dialer<'a>,
    acceptor: &'scope Acceptor<'a>,
    expected: Vec<Hello>,
    pub(super) there: Connections,
    /// The ranks that this rank has reported as awaited.
    reported: Vec<Rank>,
    /// Those that make connections or hear one. Each connection proves itself on a thread of its own, so
    /// that none that is silent or slow keeps another waiting.
    dialers: Vec<thread::ScopedJoinHandle<'scope, ()>>,
    accepting: Vec<thread::ScopedJoinHandle<'scope, ()>>,
}

impl<'scope, 'a> PendingConnections<'scope, 'a> {
    /// Nobody is there yet. `dialers` make the connections to the lower ranks.
    pub(super) fn new(
        all: &'a ConnectAll<'a>,
        dialer: &'scope Dialer<'a>,
        acceptor: &'scope Acceptor<'a>,
        dialers: Vec<thread::ScopedJoinHandle<'scope, ()>>,
    ) -> Self {
        Self {
            all,
            dialer,
            acceptor,
            expected: all.hellos(|peer| peer != all.me),
            there: Connections::default(),
            reported: Vec::new(),
            dialers,
            accepting: Vec::new(),
        }
    }

    pub(super) fn gather(
        &mut self,
        scope: &thread::Scope<'scope, '_>,
        listeners: &Listeners,
        deadline: Deadline,
        guard: Guard<'_>,
    ) -> Result<()> {
        let mut report = Deadline::after(REPORT_AFTER);
        let mut look = Deadline::after(Duration::ZERO);
        let mut shortage = LongWait::begin();
        while !self.expected.is_empty() {
            if look.left().is_zero() {
                self.receive(deadline)?;
                guard(&self.missing())?;
                look = Deadline::after(LOOK_AFTER);
            }
            if deadline.left().is_zero() {
                return Err(self.explain(deadline));
            }
            if report.left().is_zero() {
                self.send_missing();
                report = Deadline::after(REPORT_AFTER);
            }
            self.dialers.retain(|thread| !thread.is_finished());
            self.accepting.retain(|thread| !thread.is_finished());
            let timeout = if self.dialers.is_empty() && self.accepting.is_empty() {
                ACCEPT_SLICE
            } else {
                TALK_SLICE
            };
            match listeners.accept(timeout) {
                Ok(None) => {}
                Ok(Some(stream)) => {
                    let acceptor = self.acceptor;
                    if let Ok(place) = acceptor.lobby.enter(&stream) {
                        match scope.spawn(move || acceptor.receive(stream, place)) {
                            Ok(thread) => self.accepting.push(thread),
                            // No thread is left for it: it ends, and a rank tries again.
                            Err(_) => acceptor.lobby.leave(place),
                        }
                    }
                }
                // Strangers have taken all descriptors, and the lobby gives some back; or the limit is low.
                Err(source) if is_exhaustion(&source) => {
                    shortage.log(|| format!("a free descriptor ({source}; raise `ulimit -n`)"));
                    thread::sleep(TALK_SLICE);
                }
                Err(source) => {
                    return Err(ConnectError::System { call: "accept", source });
                }
            }
            let mut come = self.acceptor.take_proven();
            come.extend(self.dialer.take_made());
            for (hello, stream) in come {
                // Whoever is there already is dropped without a word.
                if let Some(index) = self.expected.iter().position(|one| *one == hello) {
                    self.expected.swap_remove(index);
                    let reading = self.all.reading(hello.rank);
                    let added = self.there.add(hello, stream, reading);
                    added.map_err(|source| ConnectError::System { call: "dup", source })?;
                }
            }
        }
        Ok(())
    }

    fn missing(&self) -> Vec<Rank> {
        let mut missing: Vec<Rank> = self.expected.iter().map(|hello| hello.rank).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Hears those that are there: one that is lost or has given up need not be waited for.
    fn receive(&mut self, deadline: Deadline) -> Result<()> {
        let control = &mut self.there.control;
        let open = control.iter().enumerate();
        let (places, handles): (Vec<usize>, Vec<_>) =
            open.filter_map(|(place, early)| Some((place, early.handle()?))).unzip();
        for news in await_news(&handles, Duration::ZERO) {
            return Err(match control[places[news]].receive() {
                None => continue,
                // Whoever waited for this rank in vain does not know whom this one waits for.
                Some(Failure::Timeout(_)) => self.explain(deadline),
                Some(failure) => ConnectError::GroupFailed(Box::new(failure.into())),
            });
        }
        Ok(())
    }

    /// Tells the others whom this rank waits for: they may have joined already, and wait for this one.
    fn send_missing(&mut self) {
        let missing = self.missing();
        if missing == self.reported {
            return;
        }
        let report = RankReport::of_joining(self.all.me, missing.clone());
        for early in &self.there.control {
            early.send_missing(&report);
        }
        self.reported = missing;
    }

    pub(super) fn broadcast_outcome(&mut self, gathered: &Result<()>) {
        let failure = match gathered {
            Ok(()) if self.reported.is_empty() => return,
            Ok(()) => {
                let joined = self.there.control.iter();
                return joined.for_each(Early::send_joined);
            }
            Err(error) => failure_for_peers(self.all.me, self.all.group, error),
        };
        if let Some(failure) = failure {
            self.take_those_under_way();
            for early in &self.there.control {
                early.send_failure(&failure);
            }
        }
    }

    /// A rank that has proved itself believes that it is connected, and is to be notified, too.
    fn take_those_under_way(&mut self) {
        self.dialer.stop();
        let timeout = Deadline::after(PARTING_TIMEOUT);
        while !timeout.left().is_zero() && !self.accepting.is_empty() {
            self.accepting.retain(|thread| !thread.is_finished());
            thread::sleep(TALK_SLICE);
        }
        let mut come = self.acceptor.take_proven();
        come.extend(self.dialer.take_made());
        for (hello, stream) in come {
            // A rank that cannot be notified is no worse off than without it.
            let _ = self.there.add(hello, stream, self.all.reading(hello.rank));
        }
    }

    fn explain(&self, deadline: Deadline) -> ConnectError {
        let all = self.all;
        let missing = self.missing();
        if let &[theirs] = &missing[..]
            && theirs < all.me
        {
            let hello = self.expected[0];
            let address = &all.addresses[theirs.index()];
            return ConnectError::Unreachable {
                mine: all.me,
                theirs,
                address: if all.is_over_unix(hello) {
                    format!("Unix socket @{}", address.unix)
                } else {
                    address.tcp.to_string()
                },
                reason: self.dialer.reason(hello),
            };
        }
        let world_size = WorldSize::new(all.addresses.len() as u32);
        deadline.missed(missing, world_size.expect("this rank is in the world"))
    }
}
