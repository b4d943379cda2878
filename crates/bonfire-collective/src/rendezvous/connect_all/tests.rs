//! What a rank may not believe too early, and whom it may not keep waiting.

use std::io::Read;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};

use super::hello::settle;
use super::*;
use crate::options::place::HostId;
use bonfire_connect::platform::net::{connect_abstract, listen_abstract};
use bonfire_connect::secure::greeting::{Secrecy, greet};
use bonfire_connect::secure::handshake::Role;

/// Far more than two ranks of one machine take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Where a rank is that is alone on its host.
fn address(rank: u32, tcp: std::net::SocketAddr) -> Address {
    Address {
        host: HostId::of_this_process(Some(&format!("host {rank}"))),
        unix: String::new(),
        tcp,
        shares: true,
    }
}

/// The ranks as rank 1 knows them: itself, and others at these addresses.
fn all<'a>(
    token: &'a JobToken,
    addresses: &'a [Address],
    kinds: &'a [Option<TransportKind>],
) -> ConnectAll<'a> {
    ConnectAll {
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
fn a_connection_that_the_acceptor_drops_is_made_again_also_after_its_welcome() {
    let token = JobToken::random().unwrap();
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let (listeners, own) = Listeners::open("127.0.0.1:0".parse().unwrap()).unwrap();
    let addresses = [address(0, door.local_addr().unwrap()), address(1, own)];
    let kinds = kinds(2);
    let all = all(&token, &addresses, &kinds);
    std::thread::scope(|scope| {
        let connecting =
            scope.spawn(|| all.connect(listeners, Deadline::after(TIMEOUT), &|_: &[Rank]| Ok(())));
        // Each of the two connections is lost twice: behind its hello, and behind its welcome.
        let (mut received, mut ready) = (Vec::new(), Vec::new());
        while ready.len() < 2 {
            let stream = Stream::Tcp(door.accept().unwrap().0);
            let greeted = greet(stream, Role::Acceptor, &token, Secrecy::Plain, TIMEOUT);
            let mut stream = greeted.unwrap();
            let hello = Hello::receive(&mut stream, 7, |hello| {
                let is_welcome = received.contains(&hello);
                received.push(hello);
                is_welcome
            });
            if let Ok(hello) = hello
                && received.iter().filter(|one| **one == hello).count() > 2
            {
                settle(&mut stream, || false).unwrap();
                ready.push(stream);
            }
        }
        assert_eq!(received.len(), 6, "{received:?}");
        let connections = connecting.join().unwrap().unwrap();
        assert_eq!(connections.control.len(), 1);
        assert_eq!(connections.data[&Rank::new(0)].len(), 1);
    });
}

fn unless(is_through: &AtomicBool) -> Result<(), ConnectError> {
    let cause = String::new();
    if is_through.load(Ordering::Relaxed) {
        Err(ConnectError::ParentFailed { cause })
    } else {
        Ok(())
    }
}

#[test]
fn a_lower_rank_that_does_not_answer_keeps_no_higher_one_out() {
    let token = JobToken::random().unwrap();
    // The system takes its connections, and it never says anything.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (listeners, own) = Listeners::open("127.0.0.1:0".parse().unwrap()).unwrap();
    let addresses = [address(0, silent.local_addr().unwrap()), address(1, own), address(2, own)];
    let kinds = kinds(3);
    let all = all(&token, &addresses, &kinds);
    let is_through = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            all.connect(listeners, Deadline::after(TIMEOUT), &|_: &[Rank]| unless(&is_through))
        });
        let stream = Stream::Tcp(std::net::TcpStream::connect(own).unwrap());
        let greeted = greet(stream, Role::Connector, &token, Secrecy::Plain, TIMEOUT);
        let hello = Hello { rank: Rank::new(2), purpose: Purpose::Control };
        let mut stream = greeted.unwrap();
        let sent = hello.send(&mut stream, 7);
        is_through.store(true, Ordering::Relaxed);
        sent.unwrap();
        let error = connecting.join().unwrap().unwrap_err();
        assert!(matches!(error, ConnectError::ParentFailed { .. }), "{error}");
    });
}

/// Runs `body` on a thread that belongs to another user; nothing if only root may have such.
fn as_another_user<T: Send>(body: impl FnOnce() -> T + Send) -> Option<T> {
    let on_thread = || {
        let nobody = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_uid(nobody).ok()?;
        Some(body())
    };
    std::thread::scope(|scope| scope.spawn(on_thread).join().unwrap())
}

/// Memory is handed over on these connections. Without a token nothing else keeps such a one out.
#[test]
fn another_user_of_the_host_joins_no_job_without_a_token() {
    let token = JobToken::empty();
    let (listeners, own) = Listeners::open("127.0.0.1:0".parse().unwrap()).unwrap();
    let foreign = format!("bonfire-test-foreign-{}", std::process::id());
    let address = |unix: &str| Address {
        host: HostId::of_this_process(Some("one host")),
        unix: unix.to_owned(),
        tcp: own,
        shares: true,
    };
    let door = as_another_user(|| listen_abstract(&foreign).unwrap());
    let Some(door) = door else {
        println!("skipped: only root may have threads of another user");
        return;
    };
    let mine = listeners.unix_name().to_owned();
    let addresses = [address(&foreign), address(&mine), address("")];
    let kinds = [Some(TransportKind::Shm), None, Some(TransportKind::Shm)];
    let all = all(&token, &addresses, &kinds);
    let is_through = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            all.connect(listeners, Deadline::after(TIMEOUT), &|_: &[Rank]| unless(&is_through))
        });
        let mut said = Vec::new();
        let called = door.accept().unwrap().0.read_to_end(&mut said);
        let greeted = as_another_user(|| {
            let stream = Stream::Unix(connect_abstract(&mine).unwrap());
            greet(stream, Role::Connector, &token, Secrecy::Plain, TIMEOUT).is_ok()
        });
        is_through.store(true, Ordering::Relaxed);
        assert!(connecting.join().unwrap().is_err());
        assert!(called.is_ok() && said.is_empty(), "it spoke to {said:?}");
        assert_eq!(greeted, Some(false), "it listened to another user");
    });
}
