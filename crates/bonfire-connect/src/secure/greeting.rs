//! How every connection begins, before anything else on it is read: both ends say whether it is to be
//! encrypted, encrypt it if so, and prove the job's token to each other.

use std::io::{self, Read, Write};
use std::time::Duration;

use crate::platform::clock;
use crate::secure::handshake::{HandshakeError, Role, shake_hands};
use crate::secure::lobby::Hurried;
use crate::secure::stream::Stream;
use crate::secure::tls::{Identity, TlsStream};
use crate::secure::token::JobToken;

const PLAIN: u8 = b'p';
const TLS: u8 = b't';

/// What an end of a connection insists on.
#[derive(Clone, Copy, Debug)]
pub enum Secrecy<'a> {
    Plain,
    Tls(&'a Identity),
    /// What the connector says. For an acceptor that learns only afterwards what is right.
    Either(&'a Identity),
}

impl<'a> Secrecy<'a> {
    /// Of an end that knows whether it encrypts: with an identity it does.
    pub fn of(identity: Option<&'a Identity>) -> Self {
        identity.map_or(Self::Plain, Self::Tls)
    }
}

/// Begins a connection, for `timeout` at most; the connection as it is to be used.
pub fn greet(
    mut stream: Stream,
    role: Role,
    token: &JobToken,
    secrecy: Secrecy<'_>,
    timeout: Duration,
) -> Result<Stream, HandshakeError> {
    let started = clock::now();
    let left = || timeout.saturating_sub(clock::since(started));
    stream.send_at_once()?;
    let identity = agree(&mut Hurried::new(&mut stream, timeout), role, secrecy)?;
    if let Some(identity) = identity {
        let Stream::Tcp(socket) = stream else {
            return Err(nonsense());
        };
        let sealed = TlsStream::open(socket, role, identity, left())?;
        stream = Stream::Tls(Box::new(sealed));
    }
    let binding = stream.binding()?;
    let binding = binding.as_ref().map_or(&[][..], |binding| binding);
    shake_hands(&mut Hurried::new(&mut stream, left()), role, token, binding)?;
    Ok(stream)
}

/// Finds out whether the connection is encrypted; the identity if so.
fn agree<'a, S: Read + Write>(
    stream: &mut S,
    role: Role,
    secrecy: Secrecy<'a>,
) -> Result<Option<&'a Identity>, HandshakeError> {
    let say = |stream: &mut S, byte: u8| stream.write_all(&[byte]);
    let hear = |stream: &mut S| {
        let mut byte = [0];
        stream.read_exact(&mut byte).map(|()| byte[0])
    };
    let wanted = match secrecy {
        Secrecy::Plain => Some(PLAIN),
        Secrecy::Tls(_) => Some(TLS),
        Secrecy::Either(_) => None,
    };
    let (mine, theirs) = match role {
        Role::Connector => {
            let mine = wanted.expect("a connector knows whom it connects to");
            say(stream, mine)?;
            (mine, hear(stream)?)
        }
        Role::Acceptor => {
            let theirs = hear(stream)?;
            let mine = wanted.unwrap_or(theirs);
            say(stream, mine)?;
            (mine, theirs)
        }
    };
    match (mine, theirs, secrecy) {
        (PLAIN, PLAIN, _) => Ok(None),
        (TLS, TLS, Secrecy::Tls(identity) | Secrecy::Either(identity)) => Ok(Some(identity)),
        (TLS, PLAIN, _) => Err(HandshakeError::TlsHereOnly),
        (PLAIN, TLS, _) => Err(HandshakeError::TlsThereOnly),
        _ => Err(nonsense()),
    }
}

fn nonsense() -> HandshakeError {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the other end is not a process of this version of Bonfire",
    )
    .into()
}

#[cfg(test)]
mod tests;
