use super::*;
use crate::connections::Tls;
use crate::secure::greeting::{Secrecy, greet};
use crate::secure::handshake::Role;
use crate::secure::stream::Stream;
use crate::secure::token::JobToken;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Read;
use std::net::TcpStream;

fn check(store: &(impl Store + 'static), other: &(impl Store + 'static)) {
    store.set("a", b"1").unwrap();
    assert_eq!(other.get("a", Duration::from_secs(10)).unwrap(), b"1");
    store.set("a", b"").unwrap();
    assert_eq!(other.get("a", Duration::from_secs(10)).unwrap(), b"");
    assert_eq!(store.add("n", 2).unwrap(), 2);
    assert_eq!(other.add("n", -5).unwrap(), -3);
    let missing = other.get("nobody", Duration::from_millis(20)).unwrap_err();
    assert!(matches!(missing, StoreError::Timeout { .. }), "{missing}");
    let long = store.set("k", &vec![0; VALUE_BYTES_MAX + 1]).unwrap_err();
    assert!(matches!(long, StoreError::TooLong { .. }), "{long}");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| other.get("late", Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(20));
        store.set("late", b"here").unwrap();
        assert_eq!(waiter.join().unwrap().unwrap(), b"here");
    });
}

fn connect(server: &TcpStoreServer, token: &JobToken) -> Result<TcpStore, StoreError> {
    TcpStore::connect("127.0.0.1", server.local_addr().port(), token, Duration::from_secs(20))
}

fn serve(token: &JobToken) -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), token).unwrap()
}

#[test]
fn memory_store_keeps_its_promises() {
    let store = MemoryStore::new();
    check(&store, &store);
}

#[test]
fn tcp_store_keeps_its_promises() {
    let token = JobToken::random().unwrap();
    let server = serve(&token);
    check(&connect(&server, &token).unwrap(), &connect(&server, &token).unwrap());
}

fn connect_with(
    server: &TcpStoreServer,
    token: &JobToken,
    tls: Tls,
) -> Result<TcpStore, StoreError> {
    let port = server.local_addr().port();
    TcpStore::connect_with("127.0.0.1", port, token, tls, Duration::from_secs(20))
}

#[test]
fn tcp_store_keeps_its_promises_over_tls() {
    let token = JobToken::random().unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let server = TcpStoreServer::bind_with(address, &token, Tls::All).unwrap();
    let client = || connect_with(&server, &token, Tls::All).unwrap();
    check(&client(), &client());
    let stranger = JobToken::random().unwrap();
    let error = connect_with(&server, &stranger, Tls::All).unwrap_err();
    assert!(matches!(error, StoreError::WrongToken { .. }), "{error}");
}

#[test]
fn a_store_and_a_rank_that_differ_in_tls_are_notified() {
    let token = JobToken::random().unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    for [ours, theirs] in [[Tls::All, Tls::Off], [Tls::Off, Tls::All]] {
        let server = TcpStoreServer::bind_with(address, &token, theirs).unwrap();
        let error = connect_with(&server, &token, ours).unwrap_err();
        let StoreError::TlsDiffers { here, there, .. } = &error else {
            panic!("{error}");
        };
        let expected = match ours {
            Tls::All => ("TLS", "no TLS"),
            _ => ("no TLS", "TLS"),
        };
        assert_eq!((*here, *there), expected);
        assert!(error.to_string().contains("--tls or BONFIRE_TLS"), "{error}");
    }
    // On loopback, `hosts` covers nothing, so neither end needs to know of it.
    let server = TcpStoreServer::bind_with(address, &token, Tls::Off).unwrap();
    connect_with(&server, &token, Tls::Hosts).unwrap();
}

#[test]
fn a_server_that_stops_still_answers_what_it_has_done() {
    let token = JobToken::random().unwrap();
    for _ in 0..100 {
        let server = serve(&token);
        let writer = connect(&server, &token).unwrap();
        let reader = connect(&server, &token).unwrap();
        std::thread::scope(|scope| {
            let written = scope.spawn(|| writer.set("last", b"word"));
            reader.get("last", Duration::from_secs(60)).unwrap();
            // As rank 0 does when it has seen that all are connected.
            drop(server);
            written.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_stranger_is_refused_and_disturbs_nobody() {
    let token = JobToken::random().unwrap();
    let server = serve(&token);
    let mut silent = TcpStream::connect(server.local_addr()).unwrap();
    std::io::Write::write_all(&mut silent, &[0xff; 300]).unwrap();
    let refused = connect(&server, &JobToken::random().unwrap()).unwrap_err();
    assert!(matches!(refused, StoreError::WrongToken { .. }), "{refused}");
    connect(&server, &token).unwrap().set("k", b"v").unwrap();
}

#[test]
fn a_taken_port_is_named() {
    let token = JobToken::empty();
    let server = serve(&token);
    let error = TcpStoreServer::bind(server.local_addr(), &token).unwrap_err();
    assert!(matches!(error, StoreError::AddressInUse { .. }), "{error}");
    assert!(error.to_string().contains(&server.local_addr().port().to_string()), "{error}");
}

#[test]
fn a_store_that_is_not_there_is_an_error_naming_the_address() {
    let port = serve(&JobToken::empty()).local_addr().port();
    let error =
        TcpStore::connect("127.0.0.1", port, &JobToken::empty(), Duration::from_millis(200))
            .unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
}

/// Reads until the other end has nothing more to say.
#[track_caller]
fn is_ended(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut rest = Vec::new();
    // A reset is an end too.
    if let Err(error) = std::io::Read::read_to_end(stream, &mut rest) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
}

#[test]
fn a_thousand_idle_connections_keep_nobody_out() {
    let token = JobToken::random().unwrap();
    let server = serve(&token);
    let before = connect(&server, &token).unwrap();
    let mut idle: Vec<TcpStream> =
        (0..1000).map(|_| TcpStream::connect(server.local_addr()).unwrap()).collect();
    let after = connect(&server, &token).unwrap();
    after.set("k", b"v").unwrap();
    assert_eq!(before.get("k", Duration::from_secs(10)).unwrap(), b"v");
    // The first of them had to make room; the server waits for none.
    is_ended(&mut idle[0]);
    drop(server);
}

#[test]
fn frames_that_make_no_sense_end_their_connection_only() {
    let token = JobToken::random().unwrap();
    let server = serve(&token);
    let bystander = connect(&server, &token).unwrap();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed.to_le_bytes()
    };
    // With the right sums, of no body.
    let head = |verb: u8, key: u32, value: u32| {
        let mut frame = vec![verb];
        frame.extend_from_slice(&key.to_le_bytes());
        frame.extend_from_slice(&value.to_le_bytes());
        frame.resize(17, 0);
        frame.extend_from_slice(&crc32c::crc32c(&[]).to_le_bytes());
        frame.extend_from_slice(&crc32c::crc32c(&frame).to_le_bytes());
        frame
    };
    let mut frames = vec![
        head(1, u32::MAX, 0),
        head(1, 1, u32::MAX),
        // Truncated: the end comes before the key.
        head(1, 1 << 10, 0),
        vec![1, 2, 3],
        // A verb that there is none of.
        head(9, 0, 0),
        // A good one with a wrong sum.
        [&head(1, 0, 0)[..21], &[0; 4]].concat(),
    ];
    frames.extend((0..200).map(|_| (0..5).flat_map(|_| random()).collect()));
    for frame in frames {
        let stream = Stream::Tcp(TcpStream::connect(server.local_addr()).unwrap());
        let timeout = Duration::from_secs(30);
        let stream = greet(stream, Role::Connector, &token, Secrecy::Plain, timeout).unwrap();
        let Stream::Tcp(mut stream) = stream else {
            panic!("{stream:?}");
        };
        std::io::Write::write_all(&mut stream, &frame).unwrap();
        // The server may have ended the connection already.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        is_ended(&mut stream);
    }
    bystander.set("k", b"v").unwrap();
    assert_eq!(bystander.get("k", Duration::ZERO).unwrap(), b"v");
}

/// Says to a copy of this program which test it is to run in its own process.
const OWN_PROCESS: &str = "BONFIRE_TEST_OWN_PROCESS";

/// A container may limit threads, and each connection takes one, a stranger's too.
#[test]
fn a_thread_that_cannot_be_started_does_not_end_the_store() {
    if std::env::var_os(OWN_PROCESS).is_none() {
        let mut this = std::process::Command::new(std::env::current_exe().unwrap());
        let name = "store::tests::a_thread_that_cannot_be_started_does_not_end_the_store";
        this.args(["--exact", name, "--nocapture"]);
        // Memory that glibc keeps, a stack of a thread that ended or an arena, would be room for one more thread.
        this.env("GLIBC_TUNABLES", "glibc.pthread.stack_cache_size=0:glibc.malloc.arena_max=1");
        let output = this.env(OWN_PROCESS, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        return;
    }
    let token = JobToken::random().unwrap();
    let server = serve(&token);
    // Its thread runs, and so has all its memory, when it has answered.
    let client = connect(&server, &token).unwrap();
    client.set("a", b"0").unwrap();
    let address_space = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
        pages * rustix::param::page_size() as u64
    };
    // The stack of one more thread does not fit.
    let before = getrlimit(Resource::As);
    let tight = Rlimit { current: Some(address_space() + (1 << 20)), ..before };
    setrlimit(Resource::As, tight).unwrap();
    let mut stranger = TcpStream::connect(server.local_addr()).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The store does not speak first, so all that can come is the end.
    let came = stranger.read(&mut [0]);
    setrlimit(Resource::As, before).unwrap();
    assert_eq!(came.unwrap(), 0, "a thread was started all the same");
    client.set("a", b"1").unwrap();
    connect(&server, &token).unwrap().set("a", b"2").unwrap();
}

/// Debian's /etc/hosts has 127.0.1.1 for the own name. 127.1 is such a name to the resolver.
#[test]
fn a_store_for_other_hosts_is_not_served_on_the_loopback_address_of_a_name() {
    let token = JobToken::random().unwrap();
    let serve = |host, clients| {
        let timeout = Duration::from_secs(60);
        TcpStoreServer::bind_host(host, 0, &token, Tls::Off, clients, timeout)
    };
    let error = serve("127.1", Clients::Hosts).unwrap_err();
    assert!(matches!(error, StoreError::LoopbackMaster { .. }), "{error}");
    // On one host it is as good as any other, and so is one that somebody chose.
    serve("127.1", Clients::OneHost).unwrap();
    serve("127.0.0.1", Clients::Hosts).unwrap();
    let error = serve("192.0.2.1", Clients::Hosts).unwrap_err();
    assert!(matches!(error, StoreError::NotMyAddress { .. }), "{error}");
}
