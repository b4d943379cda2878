//! Connections with and without TLS, honest and with somebody in between.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

type Greeted = Result<Stream, HandshakeError>;

fn token() -> JobToken {
    JobToken::random().unwrap()
}

fn identity() -> Identity {
    Identity::new().unwrap()
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

/// Both ends of a connection: what the connector and what the acceptor have of it.
fn greet_both(
    (near, far): (TcpStream, TcpStream),
    tokens: [&JobToken; 2],
    [here, there]: [Secrecy<'_>; 2],
) -> [Greeted; 2] {
    let [near, far] = [near, far].map(Stream::Tcp);
    thread::scope(|scope| {
        let acceptor = scope.spawn(|| greet(far, Role::Acceptor, tokens[1], there, PATIENCE));
        let connector = greet(near, Role::Connector, tokens[0], here, PATIENCE);
        [connector, acceptor.join().unwrap()]
    })
}

/// Sends more than all buffers hold from each end to the other at once.
fn exchange(streams: [Stream; 2]) {
    let sent: Vec<u8> = (0..8 << 20).map(|index: u32| (index / 7) as u8).collect();
    thread::scope(|scope| {
        for mut stream in streams {
            let sent = &sent;
            scope.spawn(move || {
                stream.set_nonblocking().unwrap();
                let (mut written, mut received) = (0, Vec::new());
                let mut buffer = vec![0; 100_000];
                while written < sent.len() || received.len() < sent.len() {
                    if written < sent.len() {
                        written += again(stream.write(&sent[written..]));
                    }
                    let _ = again(stream.flush().map(|()| 0));
                    received.extend_from_slice({
                        let len = again(stream.read(&mut buffer));
                        &buffer[..len]
                    });
                }
                while stream.flush().is_err() {}
                assert!(received == *sent, "other bytes came");
            });
        }
    });
}

/// Nothing, if there is nothing to be done at the moment.
fn again(result: io::Result<usize>) -> usize {
    match result {
        Ok(len) => len,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            thread::yield_now();
            0
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn bytes_arrive_both_ways_at_once_with_tls_and_without() {
    let (token, identity) = (token(), identity());
    let tls = Secrecy::Tls(&identity);
    for secrecy in [Secrecy::Plain, tls] {
        let streams = greet_both(pair(), [&token; 2], [secrecy; 2]).map(Result::unwrap);
        let is_tls = |stream: &Stream| matches!(stream, Stream::Tls(_));
        let expected = matches!(secrecy, Secrecy::Tls(_));
        assert!(streams.iter().all(|stream| is_tls(stream) == expected));
        exchange(streams);
    }
}

#[test]
fn an_acceptor_that_cannot_know_yet_follows_the_connector() {
    let (token, identity) = (token(), identity());
    let either = Secrecy::Either(&identity);
    let [near, far] = greet_both(pair(), [&token; 2], [Secrecy::Tls(&identity), either]);
    assert!(matches!((near.unwrap(), far.unwrap()), (Stream::Tls(_), Stream::Tls(_))));
    let [near, far] = greet_both(pair(), [&token; 2], [Secrecy::Plain, either]);
    assert!(matches!((near.unwrap(), far.unwrap()), (Stream::Tcp(_), Stream::Tcp(_))));
}

#[test]
fn another_token_is_refused_over_tls_too() {
    let (ours, theirs, identity) = (token(), token(), identity());
    for end in greet_both(pair(), [&ours, &theirs], [Secrecy::Tls(&identity); 2]) {
        assert!(matches!(end, Err(HandshakeError::WrongToken)), "{end:?}");
    }
}

#[test]
fn ends_that_differ_both_learn_which_has_tls() {
    let (token, identity) = (token(), identity());
    let tls = Secrecy::Tls(&identity);
    for (secrecy, sealed) in [([tls, Secrecy::Plain], 0), ([Secrecy::Plain, tls], 1)] {
        for (end, result) in greet_both(pair(), [&token; 2], secrecy).into_iter().enumerate() {
            let error = result.unwrap_err();
            let said = if end == sealed {
                "this end uses TLS, but the other does not"
            } else {
                "the other end uses TLS, but this one does not"
            };
            assert!(error.to_string().starts_with(said), "{error}");
            assert!(error.to_string().contains("BONFIRE_TLS"), "{error}");
        }
    }
}

#[test]
fn each_connection_has_a_value_of_its_own_for_the_challenge() {
    let (token, identity) = (token(), identity());
    let values = [(); 2].map(|()| {
        let ends = greet_both(pair(), [&token; 2], [Secrecy::Tls(&identity); 2]);
        let [near, far] = ends.map(|end| end.unwrap().binding().unwrap().unwrap());
        assert_eq!(near, far);
        near
    });
    assert_ne!(values[0], values[1]);
}

/// Passes what the ends prove to each other on, in the order in which they say it.
fn pass_on(connector: &mut Stream, acceptor: &mut Stream) -> io::Result<()> {
    let mut message = [0; 32];
    for _nonce_and_proof in 0..2 {
        connector.read_exact(&mut message)?;
        acceptor.write_all(&message)?;
        acceptor.read_exact(&mut message)?;
        connector.write_all(&message)?;
    }
    Ok(())
}

/// Somebody in between, who speaks with each end as the other would, with TLS or without, but has no
/// token.
fn with_somebody_between(secrecy: [Secrecy<'_>; 2], token: &JobToken) -> [Greeted; 2] {
    let ((near, to_near), (to_far, far)) = (pair(), pair());
    let stranger = identity();
    let has_tls = secrecy.map(|secrecy| matches!(secrecy, Secrecy::Tls(_)));
    thread::scope(|scope| {
        scope.spawn(move || {
            let byte = |has_tls| if has_tls { TLS } else { PLAIN };
            let seal = |mut socket: TcpStream, role, has_tls| {
                let mut asked = [byte(has_tls)];
                if role == Role::Connector {
                    socket.write_all(&asked).unwrap();
                }
                socket.read_exact(&mut asked).unwrap();
                assert_eq!(asked, [byte(has_tls)]);
                if role == Role::Acceptor {
                    socket.write_all(&asked).unwrap();
                }
                if !has_tls {
                    return Stream::Tcp(socket);
                }
                let sealed = TlsStream::open(socket, role, &stranger, PATIENCE).unwrap();
                Stream::Tls(Box::new(sealed))
            };
            let mut connector = seal(to_near, Role::Acceptor, has_tls[0]);
            let mut acceptor = seal(to_far, Role::Connector, has_tls[1]);
            // An end that refuses hangs up.
            let _ = pass_on(&mut connector, &mut acceptor);
        });
        greet_both((near, far), [token; 2], secrecy)
    })
}

#[test]
fn somebody_between_two_ends_of_tls_is_refused_by_both() {
    let (token, identity) = (token(), identity());
    let tls = Secrecy::Tls(&identity);
    for end in with_somebody_between([tls; 2], &token) {
        assert!(matches!(end, Err(HandshakeError::WrongToken)), "{end:?}");
    }
    // The same stranger passes where there is no TLS: it is TLS that keeps it out.
    for end in with_somebody_between([Secrecy::Plain; 2], &token) {
        assert!(end.is_ok(), "{end:?}");
    }
}

#[test]
fn somebody_between_who_takes_tls_from_one_end_is_refused_by_both() {
    let (token, identity) = (token(), identity());
    let secrecy = [Secrecy::Tls(&identity), Secrecy::Either(&identity)];
    for end in with_somebody_between(secrecy, &token) {
        assert!(matches!(end, Err(HandshakeError::WrongToken)), "{end:?}");
    }
}

/// Everything that one end sends to the other, as the network sees it.
fn overheard(secrecy: Secrecy<'_>, payload: &[u8]) -> Vec<u8> {
    let token = token();
    let ((near, to_near), (to_far, far)) = (pair(), pair());
    let mut back = (to_far.try_clone().unwrap(), to_near.try_clone().unwrap());
    thread::scope(|scope| {
        scope.spawn(move || io::copy(&mut back.0, &mut back.1));
        let tap = scope.spawn(move || {
            let (mut from, mut to) = (to_near, to_far);
            let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
            loop {
                match from.read(&mut buffer).unwrap_or(0) {
                    0 => break,
                    len => {
                        heard.extend_from_slice(&buffer[..len]);
                        to.write_all(&buffer[..len]).unwrap();
                    }
                }
            }
            to.shutdown(Shutdown::Both).unwrap();
            heard
        });
        let ends = greet_both((near, far), [&token; 2], [secrecy; 2]);
        let [mut near, mut far] = ends.map(Result::unwrap);
        near.write_all(payload).unwrap();
        let mut received = vec![0; payload.len()];
        far.read_exact(&mut received).unwrap();
        assert_eq!(received, payload);
        drop(near);
        let heard = tap.join().unwrap();
        drop(far);
        heard
    })
}

#[test]
fn what_is_sent_over_tls_is_not_on_the_network() {
    let identity = identity();
    let payload: Vec<u8> = (0..100_000).map(|index: u32| (index * 31 % 251) as u8).collect();
    let is_in = |heard: &[u8]| {
        let part = &payload[1000..1016];
        heard.windows(part.len()).any(|window| window == part)
    };
    let tls = overheard(Secrecy::Tls(&identity), &payload);
    assert!(tls.len() > payload.len() && !is_in(&tls));
    assert!(is_in(&overheard(Secrecy::Plain, &payload)));
}
