//! Sleeping until one of many sockets has news.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::socket::{Descriptor, Handle, Socket};
use super::wires::Entry;
use crate::simulation::place::{Look, here};
use crate::simulation::state::State;
use crate::task::Key;

impl State {
    fn has_news(&self, socket: usize) -> bool {
        match &self.wires.entries[socket] {
            Entry::Endpoint(endpoint) => endpoint.is_readable(),
            Entry::Listener(listener) => listener.is_shut || !listener.queue.is_empty(),
        }
    }
}

/// Sleeps until one of them has something to read or to accept, or has failed, for `timeout` at most;
/// the places of those that have.
pub fn await_news(handles: &[&Handle], timeout: Duration) -> Vec<usize> {
    let keys: Vec<Key> = handles.iter().map(|handle| Key::Socket(handle.0.id)).collect();
    let news = here().wait(Some(timeout), |state| {
        let has_news = |index: &usize| state.has_news(handles[*index].0.id);
        let news: Vec<usize> = (0..handles.len()).filter(has_news).collect();
        if news.is_empty() { Look::Wait(keys.clone()) } else { Look::Done(news) }
    });
    news.unwrap_or_default()
}

/// Sockets, each with a number, of which only changes are reported.
#[derive(Debug)]
pub struct Edges {
    watched: Mutex<Vec<Watched>>,
}

#[derive(Debug)]
struct Watched {
    number: u64,
    /// Not counted as a hold: the system forgets a socket that its owner closes.
    descriptor: std::sync::Weak<Descriptor>,
    /// How much of its news was reported; nothing at first.
    reported: Option<u64>,
}

#[derive(Debug)]
pub struct News(Vec<u64>);

impl Edges {
    /// None yet.
    ///
    /// # Errors
    /// Never.
    pub fn new() -> io::Result<Self> {
        let watched = Mutex::default();
        Ok(Self { watched })
    }

    /// From now on, what comes on `socket` is news of `number`.
    ///
    /// # Errors
    /// Never.
    pub fn add(&self, number: u64, socket: &impl Socket) -> io::Result<()> {
        let descriptor = Arc::downgrade(socket.socket().0);
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.push(Watched { number, descriptor, reported: None });
        Ok(())
    }

    /// Sleeps until there is news or `nap` is over.
    pub fn sleep(&self, nap: Duration) -> News {
        let no_writers: [&super::TcpStream; 0] = [];
        self.sleep_for_room(no_writers.into_iter(), nap)
    }

    /// Sleeps until there is news, one of `writers` takes more bytes, or `nap` is over.
    pub fn sleep_for_room<'a, S: Socket + 'a>(
        &'a self,
        writers: impl Iterator<Item = &'a S>,
        nap: Duration,
    ) -> News {
        let writers: Vec<usize> = writers.map(|writer| writer.socket().0.id).collect();
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = &mut *watched;
        let news = here().wait(Some(nap), |state| {
            let news = tell(state, watched);
            let has_room = |id: &usize| {
                let endpoint = state.wires.endpoint(*id);
                let full = endpoint.peer.is_some_and(|peer| state.room_at(peer) == 0);
                endpoint.write_fault().is_some() || !full
            };
            if !news.is_empty() || writers.iter().any(has_room) {
                return Look::Done(news);
            }
            let sockets = watched.iter().filter_map(|one| one.descriptor.upgrade());
            let mut keys: Vec<Key> = sockets.map(|socket| Key::Socket(socket.id)).collect();
            let peers = writers.iter().filter_map(|id| state.wires.endpoint(*id).peer);
            keys.extend(peers.map(Key::Room));
            Look::Wait(keys)
        });
        News(news.unwrap_or_default())
    }
}

/// The numbers of those that have news since the last report.
fn tell(state: &State, watched: &mut [Watched]) -> Vec<u64> {
    let mut numbers = Vec::new();
    for one in watched {
        let Some(descriptor) = one.descriptor.upgrade() else {
            continue;
        };
        let endpoint = state.wires.endpoint(descriptor.id);
        let is_new = one.reported != Some(endpoint.news);
        if is_new && (one.reported.is_some() || endpoint.is_readable()) {
            numbers.push(one.number);
        }
        one.reported = Some(endpoint.news);
    }
    numbers
}

impl News {
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.0.iter().copied()
    }
}
