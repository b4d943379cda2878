//! The control channel: one connection to every peer beside the data path, read by one thread.
//!
//! It carries failures, accounts of what the ranks were doing, and farewells, and its end of stream is how the death of a process is seen:
//! the operating system closes the connection even after SIGKILL. Nothing on the step path touches it.
//!
//! A message is `kind u8 | length u32 | JSON`, at most [`MESSAGE_BYTES_MAX`] long.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bonfire_plan::Rank;

use crate::CollectiveError;
use crate::accounts::{Account, Accounts};
use crate::error::Failure;
use crate::platform::clock;
use crate::platform::net::{Handle, await_news};
use crate::platform::sync::Mutex;
use crate::platform::thread::{self, JoinHandle};
use crate::poison::Poison;
use crate::stream::Stream;

/// A failure's text is cut to this; more is no help to anybody.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// How often the thread looks whether the group has ended.
const POLL_SLICE: Duration = Duration::from_millis(100);

/// How long a program has to notice a failure.
const HANGING: Duration = Duration::from_secs(1);

const KIND_FAILURE: u8 = 1;
const KIND_FAREWELL: u8 = 2;
const KIND_ACCOUNT: u8 = 3;

/// The control connections of one rank.
#[derive(Debug)]
pub(crate) struct Control {
    peers: Arc<Vec<Peer>>,
    stop: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Peer {
    rank: Rank,
    /// Both directions of one socket; reading and writing do not disturb each other.
    stream: Mutex<Stream>,
}

impl Control {
    /// Starts to watch the connections. `peers` has one for every other rank.
    pub(crate) fn start(
        my_rank: Rank,
        peers: Vec<(Rank, Stream)>,
        poison: Arc<Poison>,
    ) -> io::Result<Self> {
        // Second handles, so that polling does not hold the write locks.
        let mut handles = Vec::with_capacity(peers.len());
        for (_, stream) in &peers {
            stream.set_nonblocking()?;
            stream.notice_silence()?;
            handles.push(Handle::of(stream)?);
        }
        let peers: Vec<Peer> = peers
            .into_iter()
            .map(|(rank, stream)| Peer {
                rank,
                stream: Mutex::new(stream),
            })
            .collect();
        let peers = Arc::new(peers);
        let stop = Arc::new(AtomicBool::new(false));
        let watcher = if peers.is_empty() {
            None
        } else {
            let (peers, stop) = (Arc::clone(&peers), Arc::clone(&stop));
            let name = format!("bonfire-ctl-{my_rank}");
            Some(thread::spawn(&name, move || {
                watch(&peers, &handles, &poison, &stop);
            })?)
        };
        Ok(Self {
            peers,
            stop,
            watcher,
        })
    }

    /// Tells every peer why the group failed, and what the ranks of this process were doing. A peer
    /// that cannot be told has failed itself.
    pub(crate) fn broadcast(&self, failure: &Failure, accounts: &Accounts) {
        let text = serde_json::to_vec(failure).expect("a failure is plain data");
        send_all(&self.peers, KIND_FAILURE, &text);
        testify(&self.peers, failure, accounts);
    }

    /// Says farewell and stops watching. Peers keep what was sent before.
    pub(crate) fn leave(&mut self) {
        send_all(&self.peers, KIND_FAREWELL, &[]);
        self.stop.store(true, Ordering::Release);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

fn send_all(peers: &[Peer], kind: u8, text: &[u8]) {
    let text = &text[..text.len().min(MESSAGE_BYTES_MAX)];
    let mut message = vec![kind];
    message.extend_from_slice(&(text.len() as u32).to_le_bytes());
    message.extend_from_slice(text);
    for peer in peers {
        let mut stream = peer.stream.lock().unwrap_or_else(PoisonError::into_inner);
        // The socket's buffer takes a message of this size at once unless the peer is stopped,
        // and then it must not hold up the others.
        let _ = stream.write_all(&message);
    }
}

/// Tells every peer what this process was doing, where that can say who is to blame.
fn testify(peers: &[Peer], failure: &Failure, accounts: &Accounts) {
    if !matches!(failure, Failure::Timeout(_)) {
        return;
    }
    for account in accounts.own() {
        let text = serde_json::to_vec(&account).expect("an account is plain data");
        send_all(peers, KIND_ACCOUNT, &text);
    }
}

/// What the watcher knows of one peer.
struct Inbox {
    bytes: Vec<u8>,
    open: bool,
}

fn watch(peers: &[Peer], handles: &[Handle], poison: &Poison, stop: &AtomicBool) {
    let mut inboxes: Vec<Inbox> = peers
        .iter()
        .map(|_| Inbox {
            bytes: Vec::new(),
            open: true,
        })
        .collect();
    let mut failed = None;
    while !stop.load(Ordering::Acquire) {
        let mut polled: Vec<usize> = Vec::new();
        let mut interests: Vec<&Handle> = Vec::new();
        for (index, inbox) in inboxes.iter().enumerate() {
            if inbox.open {
                polled.push(index);
                interests.push(&handles[index]);
            }
        }
        for ready in await_news(&interests, POLL_SLICE) {
            let index = polled[ready];
            receive(&peers[index], &mut inboxes[index], poison);
        }
        let Some(failure) = poison.failure() else {
            continue;
        };
        match failed {
            None => {
                testify(peers, &failure, poison.accounts());
                failed = Some(clock::now());
            }
            // The program hangs, or it would have written them itself, with the verdict.
            Some(since) if clock::since(since) >= HANGING => {
                let error = CollectiveError::from(failure);
                poison.accounts().write_flight_records(&error.to_string());
            }
            Some(_) => {}
        }
    }
}

fn receive(peer: &Peer, inbox: &mut Inbox, poison: &Poison) {
    let mut buffer = [0; 4096];
    loop {
        let read = {
            let mut stream = peer.stream.lock().unwrap_or_else(PoisonError::into_inner);
            stream.read(&mut buffer)
        };
        match read {
            Ok(0) => {
                return close(
                    peer,
                    inbox,
                    poison,
                    "its process ended without leaving the group",
                );
            }
            Ok(len) => inbox.bytes.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return close(peer, inbox, poison, &format!("connection lost: {error}")),
        }
        if !interpret(peer, inbox, poison) {
            return close(
                peer,
                inbox,
                poison,
                "it sent something that is not a control message",
            );
        }
    }
}

/// Takes the complete messages out of the inbox; false for nonsense.
fn interpret(peer: &Peer, inbox: &mut Inbox, poison: &Poison) -> bool {
    while inbox.bytes.len() >= 5 {
        let len = u32::from_le_bytes(inbox.bytes[1..5].try_into().expect("four bytes")) as usize;
        if len > MESSAGE_BYTES_MAX {
            return false;
        }
        if inbox.bytes.len() < 5 + len {
            return true;
        }
        let kind = inbox.bytes[0];
        let text: Vec<u8> = inbox.bytes.drain(..5 + len).skip(5).collect();
        match kind {
            KIND_FAREWELL => poison.depart(peer.rank),
            KIND_ACCOUNT => match serde_json::from_slice::<Account>(&text) {
                Ok(account) => poison.accounts().receive(account),
                Err(_) => return false,
            },
            KIND_FAILURE => match serde_json::from_slice::<Failure>(&text) {
                Ok(failure) => {
                    poison.set(failure);
                }
                Err(_) => return false,
            },
            _ => return false,
        }
    }
    true
}

fn close(peer: &Peer, inbox: &mut Inbox, poison: &Poison, cause: &str) {
    // What came before the end of the stream counts: a farewell makes the end a normal one.
    let understood = interpret(peer, inbox, poison);
    inbox.open = false;
    if !understood || !poison.has_departed(peer.rank) {
        poison.set(Failure::Peer {
            rank: peer.rank,
            cause: cause.to_owned(),
        });
    }
}
