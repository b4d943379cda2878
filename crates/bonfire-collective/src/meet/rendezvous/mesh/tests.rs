//! What a rank may not believe too early, and whom it may not keep waiting.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::options::place::HostId;
use bonfire_connect::secure::greeting::{Secrecy, greet};
use bonfire_connect::secure::handshake::Role;

/// Far more than two ranks of one machine take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where a rank is that is alone on its host.
fn address(rank: u32, tcp: std::net::SocketAddr) -> Address {
    Address {
        host: HostId::of_this_process(Some(&format!("host {rank}"))),
        unix: String::new(),
        tcp,
    }
}

/// The ranks as rank 1 knows them: itself, and others at these addresses.
fn mesh<'a>(
    token: &'a JobToken,
    addresses: &'a [Address],
    kinds: &'a [Option<TransportKind>],
) -> Mesh<'a> {
    Mesh {
        me: Rank::new(1),
        group: 7,
        token,
        addresses,
        kinds,
        streams: 1,
        tls: Tls::Off,
        identity: None,
    }
}

fn kinds(ranks: usize) -> Vec<Option<TransportKind>> {
    let kind = |rank| (rank != 1).then_some(TransportKind::Tcp);
    (0..ranks).map(kind).collect()
}

#[test]
fn a_hello_without_an_answer_is_said_again() {
    let token = JobToken::random().unwrap();
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let (listeners, own) = Listeners::open("127.0.0.1".parse().unwrap()).unwrap();
    let addresses = [address(0, door.local_addr().unwrap()), address(1, own)];
    let kinds = kinds(2);
    let mesh = mesh(&token, &addresses, &kinds);
    std::thread::scope(|scope| {
        let connecting = scope
            .spawn(|| mesh.connect(listeners, Deadline::after(PATIENCE), &|_: &[Rank]| Ok(())));
        let (mut heard, mut welcome) = (Vec::new(), Vec::new());
        while welcome.len() < 2 {
            let stream = Stream::Tcp(door.accept().unwrap().0);
            let greeted = greet(stream, Role::Acceptor, &token, Secrecy::Plain, PATIENCE);
            let mut stream = greeted.unwrap();
            // The first time, the connection is lost behind the hello.
            let result = Hello::hear(&mut stream, 7, |hello| {
                let again = heard.contains(&hello);
                heard.push(hello);
                again
            });
            welcome.extend(result.is_ok().then_some(stream));
        }
        assert_eq!(heard.len(), 4, "{heard:?}");
        let connections = connecting.join().unwrap().unwrap();
        assert_eq!(connections.control.len(), 1);
        assert_eq!(connections.data[&Rank::new(0)].len(), 1);
    });
}

#[test]
fn a_lower_rank_that_does_not_answer_keeps_no_higher_one_out() {
    let token = JobToken::random().unwrap();
    // The system takes its connections, and it never says anything.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (listeners, own) = Listeners::open("127.0.0.1".parse().unwrap()).unwrap();
    let addresses = [
        address(0, silent.local_addr().unwrap()),
        address(1, own),
        address(2, own),
    ];
    let kinds = kinds(3);
    let mesh = mesh(&token, &addresses, &kinds);
    let is_through = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let guard = |_: &[Rank]| match is_through.load(Ordering::Relaxed) {
            true => Err(ConnectError::ParentFailed {
                cause: String::new(),
            }),
            false => Ok(()),
        };
        let connecting =
            scope.spawn(move || mesh.connect(listeners, Deadline::after(PATIENCE), &guard));
        let stream = Stream::Tcp(std::net::TcpStream::connect(own).unwrap());
        let greeted = greet(stream, Role::Connector, &token, Secrecy::Plain, PATIENCE);
        let hello = Hello {
            rank: Rank::new(2),
            purpose: Purpose::Control,
        };
        let mut stream = greeted.unwrap();
        let said = hello.say(&mut stream, 7);
        is_through.store(true, Ordering::Relaxed);
        said.unwrap();
        let error = connecting.join().unwrap().unwrap_err();
        assert!(
            matches!(error, ConnectError::ParentFailed { .. }),
            "{error}"
        );
    });
}
