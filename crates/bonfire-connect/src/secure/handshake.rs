//! Proof of the job's token, both ways, before anything else on a connection is read.
//!
//! Each side sends a random nonce and answers the other's with `HMAC-SHA256(token, role | nonce of the answerer |
//! nonce of the asker | binding)`. The role byte keeps an attacker from reflecting a challenge; the binding, on
//! encrypted connections, from passing it on. HMAC as in RFC 2104.

use std::io::{self, Read, Write};

use ring::hmac;

use crate::platform::random;
use crate::secure::token::JobToken;

const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
pub(crate) const TLS_CHOICE: &str = "--tls or BONFIRE_TLS";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Connector,
    Acceptor,
}

impl Role {
    fn byte(self) -> u8 {
        match self {
            Self::Connector => 1,
            Self::Acceptor => 2,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Connector => Self::Acceptor,
            Self::Acceptor => Self::Connector,
        }
    }
}

/// The other side did not prove that it belongs to this job.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("the connection broke during the token challenge")]
    Io(#[from] io::Error),
    #[error("the other side does not know this job's token (is it of another job?)")]
    WrongToken,
    #[error("this end uses TLS, but the other does not: start all with the same {TLS_CHOICE}")]
    TlsHereOnly,
    #[error("the other end uses TLS, but this one does not: start all with the same {TLS_CHOICE}")]
    TlsThereOnly,
    #[error("no nonce for the token challenge")]
    Random(#[source] io::Error),
}

/// Runs the challenge, which covers `binding`: what the two ends of an encrypted connection have in
/// common, or nothing. Read and write timeouts are the stream owner's to set.
pub(crate) fn shake_hands<S: Read + Write>(
    stream: &mut S,
    role: Role,
    token: &JobToken,
    binding: &[u8],
) -> Result<(), HandshakeError> {
    let mut mine = [0; NONCE_BYTES];
    random::fill(&mut mine).map_err(HandshakeError::Random)?;
    stream.write_all(&mine)?;
    let mut theirs = [0; NONCE_BYTES];
    stream.read_exact(&mut theirs)?;
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
    let proof = |answerer: Role, of: &[u8; NONCE_BYTES], asker: &[u8; NONCE_BYTES]| {
        [&[answerer.byte()], &of[..], &asker[..], binding].concat()
    };
    stream.write_all(hmac::sign(&key, &proof(role, &mine, &theirs)).as_ref())?;
    let mut answer = [0; PROOF_BYTES];
    stream.read_exact(&mut answer)?;
    hmac::verify(&key, &proof(role.other(), &theirs, &mine), &answer)
        .map_err(|_| HandshakeError::WrongToken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn both(ours: JobToken, theirs: JobToken) -> [Result<(), HandshakeError>; 2] {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let other = std::thread::spawn(move || shake_hands(&mut far, Role::Acceptor, &theirs, &[]));
        let here = shake_hands(&mut near, Role::Connector, &ours, &[]);
        [here, other.join().unwrap()]
    }

    #[test]
    fn one_token_opens_another_does_not() {
        let token = JobToken::random().unwrap();
        assert!(both(token.clone(), token.clone()).iter().all(Result::is_ok));
        for result in both(token, JobToken::random().unwrap()) {
            assert!(matches!(result, Err(HandshakeError::WrongToken)), "{result:?}");
        }
    }

    #[test]
    fn a_replayed_handshake_is_refused() {
        let token = JobToken::random().unwrap();
        // A stranger who has listened knows all that a connector once sent.
        let sent = {
            let (mut near, mut far) = UnixStream::pair().unwrap();
            let theirs = token.clone();
            let other = std::thread::spawn(move || {
                let mut tap = Tap { stream: &mut far, sent: Vec::new() };
                shake_hands(&mut tap, Role::Connector, &theirs, &[]).unwrap();
                tap.sent
            });
            shake_hands(&mut near, Role::Acceptor, &token, &[]).unwrap();
            other.join().unwrap()
        };
        assert_eq!(sent.len(), NONCE_BYTES + PROOF_BYTES);
        let (mut near, mut far) = UnixStream::pair().unwrap();
        far.write_all(&sent).unwrap();
        let result = shake_hands(&mut near, Role::Acceptor, &token, &[]);
        assert!(matches!(result, Err(HandshakeError::WrongToken)), "{result:?}");
    }

    /// Keeps what goes out.
    struct Tap<'a> {
        stream: &'a mut UnixStream,
        sent: Vec<u8>,
    }

    impl Read for Tap<'_> {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.stream.read(bytes)
        }
    }

    impl Write for Tap<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.sent.extend_from_slice(bytes);
            self.stream.write_all(bytes)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            self.stream.flush()
        }
    }

    #[test]
    fn a_reflected_challenge_is_refused() {
        // Both ends claim to be the connector, as a stranger who echoes our bytes would.
        let token = JobToken::random().unwrap();
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let echo = std::thread::spawn(move || {
            let mut bytes = [0; NONCE_BYTES];
            for _ in 0..2 {
                if far.read_exact(&mut bytes).and_then(|()| far.write_all(&bytes)).is_err() {
                    return;
                }
            }
        });
        let result = shake_hands(&mut near, Role::Connector, &token, &[]);
        assert!(matches!(result, Err(HandshakeError::WrongToken)), "{result:?}");
        echo.join().unwrap();
    }
}
