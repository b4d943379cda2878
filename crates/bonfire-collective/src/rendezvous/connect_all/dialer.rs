//! The connections that a rank makes to the lower ones, some at a time, each again and again until it
//! is made. A rank that cannot be reached keeps no other waiting.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::hello::Hello;
use super::{ConnectAll, HANDSHAKE_TIMEOUT, RETRY_PAUSE, foreign};
use crate::rendezvous::Deadline;
use bonfire_connect::platform::net::{connect, connect_abstract, is_of_this_user};
use bonfire_connect::platform::sync::Mutex;
use bonfire_connect::platform::thread;
use bonfire_connect::secure::greeting::{Secrecy, greet};
use bonfire_connect::secure::handshake::{HandshakeError, Role};
use bonfire_connect::secure::lobby::{Hurried, Lobby};
use bonfire_connect::secure::stream::Stream;

/// Connections that are tried at one time. Most of the time goes into waiting for the other end.
pub(super) const DIALERS_MAX: usize = 16;
/// The pause after a failure doubles this often, to half a second or so.
const DOUBLINGS_MAX: u32 = 5;
/// Longer than an acceptor hears a connection, twice, so that it is the one that gives up.
const TIMEOUT: Duration = HANDSHAKE_TIMEOUT.saturating_mul(3);

pub(super) struct Dialer<'a> {
    all: &'a ConnectAll<'a>,
    deadline: Deadline,
    waiting: Mutex<VecDeque<Dial>>,
    made: Mutex<Vec<(Hello, Stream)>>,
    lobby: Lobby,
    stop: AtomicBool,
}

struct Dial {
    /// With the rank that it goes to.
    hello: Hello,
    /// How often it has failed, and why the last time.
    failures: u32,
    reason: Option<String>,
}

impl<'a> Dialer<'a> {
    /// Of these connections, each with the rank that it goes to.
    pub(super) fn new(all: &'a ConnectAll<'a>, hellos: &[Hello], deadline: Deadline) -> Self {
        Self {
            all,
            deadline,
            waiting: Mutex::new(hellos.iter().copied().map(Dial::new).collect()),
            made: Mutex::new(Vec::new()),
            lobby: Lobby::default(),
            stop: AtomicBool::new(false),
        }
    }

    /// Makes connections until there are none to be made. Ends soon after [`stop`](Self::stop).
    pub(super) fn work(&self) {
        while !self.has_stopped() {
            let Some(mut call) = self.waiting.lock().pop_front() else {
                return;
            };
            let hello = call.hello;
            match self.dial(hello) {
                Ok(stream) => {
                    let mut made = self.made.lock();
                    made.push((hello, stream));
                }
                Err(error) => {
                    let pause = RETRY_PAUSE * 2_u32.pow(call.failures.min(DOUBLINGS_MAX));
                    call.failures += 1;
                    call.reason = Some(match error {
                        HandshakeError::Io(source) => source.to_string(),
                        other => other.to_string(),
                    });
                    self.waiting.lock().push_back(call);
                    thread::sleep(pause);
                }
            }
        }
    }

    pub(super) fn stop(&self) {
        // Release pairs with the acquire in `has_stopped`; a thread that enters the lobby later looks there.
        self.stop.store(true, Ordering::Release);
        self.lobby.clear();
    }

    pub(super) fn take_made(&self) -> Vec<(Hello, Stream)> {
        std::mem::take(&mut self.made.lock())
    }

    pub(super) fn reason(&self, hello: Hello) -> String {
        let waiting = self.waiting.lock();
        let call = waiting.iter().find(|call| call.hello == hello);
        let reason = call.and_then(|call| call.reason.clone());
        reason.unwrap_or_else(|| "it does not answer".to_owned())
    }

    fn dial(&self, hello: Hello) -> Result<Stream, HandshakeError> {
        let all = self.all;
        let theirs = &all.addresses[hello.rank.index()];
        let over_unix = all.is_over_unix(hello);
        let stream = if over_unix {
            let stream = connect_abstract(&theirs.unix)?;
            if !is_of_this_user(&stream) {
                return Err(foreign().into());
            }
            Stream::Unix(stream)
        } else {
            let timeout = self.deadline.left().clamp(RETRY_PAUSE, HANDSHAKE_TIMEOUT);
            let address = theirs.seen_from(&all.addresses[all.me.index()]);
            connect(&address, timeout).map(Stream::Tcp)?
        };
        let place = self.lobby.enter(&stream)?;
        let sent = if self.has_stopped() {
            Err(std::io::Error::from(std::io::ErrorKind::Interrupted).into())
        } else {
            self.introduce(stream, hello, over_unix)
        };
        self.lobby.leave(place);
        sent
    }

    fn introduce(
        &self,
        stream: Stream,
        hello: Hello,
        over_unix: bool,
    ) -> Result<Stream, HandshakeError> {
        let all = self.all;
        let identity = all.identity.filter(|_| !over_unix && all.is_sealed(hello.rank));
        let secrecy = Secrecy::of(identity);
        let mut stream = greet(stream, Role::Connector, all.token, secrecy, TIMEOUT)?;
        let mine = Hello { rank: all.me, ..hello };
        mine.send(&mut Hurried::new(&mut stream, TIMEOUT), all.group)?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        Ok(stream)
    }

    fn has_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

impl Dial {
    fn new(hello: Hello) -> Self {
        Self { hello, failures: 0, reason: None }
    }
}
