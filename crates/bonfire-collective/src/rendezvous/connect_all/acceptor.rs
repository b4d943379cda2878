//! Where connections from higher ranks prove themselves.

use std::time::Duration;

use super::hello::{Hello, settle};
use super::{ConnectAll, HANDSHAKE_TIMEOUT, foreign};
use bonfire_connect::connections::Tls;
use bonfire_connect::platform::net::{Handle, await_news, is_of_this_user};
use bonfire_connect::platform::sync::Mutex;
use bonfire_connect::secure::greeting::{Secrecy, greet};
use bonfire_connect::secure::handshake::{HandshakeError, Role};
use bonfire_connect::secure::lobby::{Hurried, Lobby, Place};
use bonfire_connect::secure::stream::Stream;

pub(super) struct Acceptor<'a> {
    all: &'a ConnectAll<'a>,
    secrecy: Secrecy<'a>,
    pub(super) lobby: Lobby,
    /// Those that have, with what they say they are.
    proven: Mutex<Vec<(Hello, Stream)>>,
}

impl<'a> Acceptor<'a> {
    pub(super) fn new(all: &'a ConnectAll<'a>) -> Self {
        Self {
            all,
            secrecy: match (all.tls, all.identity) {
                (Tls::Hosts, Some(identity)) => Secrecy::Either(identity),
                (_, identity) => Secrecy::of(identity),
            },
            lobby: Lobby::default(),
            proven: Mutex::new(Vec::new()),
        }
    }

    /// Handles one connection; one that does not prove the token is dropped without an answer.
    pub(super) fn receive(&self, stream: Stream, place: Place) {
        let accepted = self.accept(stream);
        self.lobby.leave(place);
        if let Ok(accepted) = accepted {
            let mut proven = self.proven.lock();
            proven.push(accepted);
        }
    }

    pub(super) fn take_proven(&self) -> Vec<(Hello, Stream)> {
        std::mem::take(&mut self.proven.lock())
    }

    fn accept(&self, stream: Stream) -> Result<(Hello, Stream), HandshakeError> {
        let (all, role) = (self.all, Role::Acceptor);
        stream.set_blocking()?;
        let secrecy = match &stream {
            Stream::Unix(unix) if !is_of_this_user(unix) => return Err(foreign().into()),
            Stream::Unix(_) => Secrecy::Plain,
            Stream::Tcp(_) | Stream::Tls(_) => self.secrecy,
        };
        let mut stream = greet(stream, role, all.token, secrecy, HANDSHAKE_TIMEOUT)?;
        // An acceptor finds out who it is only now, and whether the connection is as it must be.
        let is_plain = matches!(stream, Stream::Tcp(_));
        let is_sealed = matches!(stream, Stream::Tls(_));
        let is_proper = |hello: Hello| {
            let is_as_due = || if all.is_sealed(hello.rank) { !is_plain } else { !is_sealed };
            // First: a rank outside the group has no host.
            all.is_dialer(hello) && is_as_due()
        };
        let mut hurried = Hurried::new(&mut stream, HANDSHAKE_TIMEOUT);
        let hello = Hello::receive(&mut hurried, all.group, is_proper)?;
        let handle = Handle::of(&stream)?;
        let has_news = || !await_news(&[&handle], Duration::ZERO).is_empty();
        settle(&mut Hurried::new(&mut stream, HANDSHAKE_TIMEOUT), has_news)?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        Ok((hello, stream))
    }
}
