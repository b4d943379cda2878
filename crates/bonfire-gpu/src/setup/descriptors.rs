//! Descriptors of device memory that ranks of one host give each other.
//!
//! A rank that gives one listens at a name that is in no file system. The others learn the name and a secret over the
//! group, whose ranks have proved who they are; a connection is answered if it is of the same user and knows the secret.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use bonfire_collective::{CollectiveError, ProcessGroup};
use bonfire_connect::platform::net::{
    Handle, UnixListener, UnixStream, await_news, connect_abstract, is_of_this_user,
    listen_abstract,
};
use bonfire_plan::Rank;
use bonfire_sys::socket::{receive_descriptor, send_descriptor};
use ring::rand::{SecureRandom, SystemRandom};

/// What a descriptor of device memory is marked with.
const MARK: u8 = b'G';

/// How long a rank that has called, or was called, may take. The kernel has made the connection by then.
const ANSWER_MAX: Duration = Duration::from_secs(20);

type Random = [u8; 16];

/// Gives this rank's descriptor to `others`, which are in other processes, and takes theirs: in the order of `others`, with
/// the size that came along. All ranks of the group call it, with or without others; a rank has all of its descriptors or
/// the reason why one is missing.
pub(super) fn exchange(
    group: &ProcessGroup,
    others: &[Rank],
    own: &OwnedFd,
    bytes: usize,
) -> Result<io::Result<Vec<(OwnedFd, usize)>>, CollectiveError> {
    let door = Door::open();
    let mut offer = Vec::new();
    if let Ok(door) = &door {
        offer.extend(door.name);
        offer.extend(door.secret);
        offer.extend((bytes as u64).to_le_bytes());
    }
    let offers = group.all_gather_bytes(&offer)?;
    let calls: Vec<io::Result<(UnixStream, usize)>> =
        others.iter().map(|peer| call(&offers[peer.index()])).collect();
    // Who has called whom; then nobody waits for a call that never comes.
    let mut called = vec![0u8; group.world_size().len()];
    for (peer, call) in others.iter().zip(&calls) {
        called[peer.index()] = u8::from(call.is_ok());
    }
    let called = group.all_gather_bytes(&called)?;
    let callers = called.iter().filter(|by| by[group.rank().index()] == 1);
    let answered = door.and_then(|door| door.answer(callers.count(), own));
    let taken = calls.into_iter().map(|call| {
        let (stream, bytes) = call?;
        Ok((receive_descriptor(stream, MARK)?, bytes))
    });
    let taken: io::Result<Vec<_>> = taken.collect();
    Ok(answered.and(taken))
}

struct Door {
    name: Random,
    secret: Random,
    listener: UnixListener,
}

impl Door {
    fn open() -> io::Result<Self> {
        let (name, secret) = (random()?, random()?);
        let listener = listen_abstract(&text(name))?;
        listener.set_nonblocking(true)?;
        Ok(Self { name, secret, listener })
    }

    fn answer(&self, callers: usize, own: &OwnedFd) -> io::Result<()> {
        let end = Instant::now() + ANSWER_MAX;
        let news = Handle::of(&self.listener)?;
        let mut answered = 0;
        while answered < callers {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    await_news(&[&news], left);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            // Somebody else may call, and is not answered.
            if self.is_known(&stream).unwrap_or(false) {
                send_descriptor(&stream, MARK, own.as_fd())?;
                answered += 1;
            }
        }
        Ok(())
    }

    fn is_known(&self, mut stream: &UnixStream) -> io::Result<bool> {
        if !is_of_this_user(stream) {
            return Ok(false);
        }
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        let mut secret = Random::default();
        stream.read_exact(&mut secret)?;
        Ok(secret == self.secret)
    }
}

/// A connection to the rank that made an offer, and the size of what it gives.
fn call(offer: &[u8]) -> io::Result<(UnixStream, usize)> {
    let none = || io::Error::other("it cannot listen for other processes");
    let (name, rest) = offer.split_first_chunk::<16>().ok_or_else(none)?;
    let (secret, bytes) = rest.split_first_chunk::<16>().ok_or_else(none)?;
    let bytes = u64::from_le_bytes(bytes.try_into().map_err(|_| none())?);
    let mut stream = connect_abstract(&text(*name))?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.write_all(secret)?;
    Ok((stream, bytes as usize))
}

fn text(name: Random) -> String {
    format!("bonfire-memory-{:032x}", u128::from_le_bytes(name))
}

fn random() -> io::Result<Random> {
    let mut bytes = Random::default();
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| io::Error::other("the operating system has no random bytes"))?;
    Ok(bytes)
}
