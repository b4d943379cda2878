use super::*;
use crate::token::JobToken;
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
    TcpStore::connect(
        "127.0.0.1",
        server.local_addr().port(),
        token,
        Duration::from_secs(20),
    )
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
    check(
        &connect(&server, &token).unwrap(),
        &connect(&server, &token).unwrap(),
    );
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
    assert!(
        matches!(refused, StoreError::WrongToken { .. }),
        "{refused}"
    );
    connect(&server, &token).unwrap().set("k", b"v").unwrap();
}

#[test]
fn a_taken_port_is_named() {
    let token = JobToken::empty();
    let server = serve(&token);
    let error = TcpStoreServer::bind(server.local_addr(), &token).unwrap_err();
    assert!(matches!(error, StoreError::AddressInUse { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains(&server.local_addr().port().to_string()),
        "{error}"
    );
}

#[test]
fn a_store_that_is_not_there_is_an_error_naming_the_address() {
    let port = serve(&JobToken::empty()).local_addr().port();
    let error = TcpStore::connect(
        "127.0.0.1",
        port,
        &JobToken::empty(),
        Duration::from_millis(200),
    )
    .unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    assert!(
        error.to_string().contains(&format!("127.0.0.1:{port}")),
        "{error}"
    );
}
