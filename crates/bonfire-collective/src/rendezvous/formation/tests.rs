//! Waiting for descriptors, with a real process at the other end.

use std::process::{Child, Command};

use super::*;
use crate::health::control::Reading;
use crate::options::place::HostId;
use bonfire_connect::platform::host;
use bonfire_connect::platform::net::{UnixListener, connect_abstract, descriptor, listen_abstract};
use bonfire_connect::secure::stream::Stream;
use bonfire_sys::socket::{receive_descriptor, send_descriptor};
use rustix::process::{Pid, Signal, kill_process};

/// Far more than two processes of one machine take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Says to a copy of this program where it is to connect, and what then.
const PART: &str = "BONFIRE_TEST_PART";

const NEVER: Guard<'static> = &|_| Ok(());

/// What `body` makes of a formation as rank `me`. Rank 2 cannot share memory.
fn forming<R>(me: u32, heartbeat: Duration, body: impl FnOnce(&Formation<'_>) -> R) -> R {
    let options = GroupOptions { heartbeat_timeout: Some(heartbeat), ..GroupOptions::default() };
    let address = Address {
        host: HostId::of_this_process(None),
        unix: String::new(),
        tcp: "127.0.0.1:1".parse().unwrap(),
        shares: true,
    };
    let other = Address { shares: false, ..address.clone() };
    body(&Formation {
        me: Rank::new(me),
        group: 0,
        token: &JobToken::empty(),
        addresses: &[address.clone(), address, other],
        options: &options,
        chunk_bytes: 4096,
        streams: 1,
        has_stream_threads: false,
        deadline: Deadline::after(TIMEOUT),
        guard: NEVER,
    })
}

/// A file of the other rank.
fn receive(formation: &Formation<'_>, early: &Early) -> Result<(), ConnectError> {
    let take =
        |early: &Early| early.with_stream(|stream| receive_descriptor(descriptor(stream)?, b'T'));
    formation.receive_from(vec![early], take).map(drop)
}

/// Plays a part in a process of its own; not a test by itself.
#[test]
fn part() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let (name, is_to_stop) = part.split_once(' ').unwrap();
    let stream = Stream::Unix(connect_abstract(name).unwrap());
    if is_to_stop == "stop" {
        kill_process(rustix::process::getpid(), Signal::STOP).unwrap();
    }
    let early = Early::new(Rank::new(0), stream, Reading::Later).unwrap();
    forming(1, TIMEOUT, |formation| receive(formation, &early)).unwrap();
}

/// The process of rank 1, connected to this one, and in state `state`.
fn rank_1(part: &str, state: char) -> (Child, Early) {
    let name = format!("bonfire-test-{part}-{}", std::process::id());
    let listener: UnixListener = listen_abstract(&name).unwrap();
    let mut this = Command::new(std::env::current_exe().unwrap());
    this.args(["rendezvous::formation::tests::part", "--exact"]);
    let child = this.env(PART, format!("{name} {part}")).spawn().unwrap();
    let stream = Stream::Unix(listener.accept().unwrap().0);
    await_state(&child, state);
    let early = Early::new(Rank::new(1), stream, Reading::Later).unwrap();
    (child, early)
}

fn await_state(child: &Child, state: char) {
    let started = clock::now();
    while host::process_state(child.id()) != Some(state) {
        assert!(clock::since(started) < TIMEOUT, "never in state {state}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_rank_that_is_stopped_before_it_hands_over_memory_is_named() {
    let (mut child, early) = rank_1("stop", 'T');
    let heartbeat = Duration::from_millis(300);
    let error = forming(0, heartbeat, |formation| receive(formation, &early)).unwrap_err();
    child.kill().unwrap();
    child.wait().unwrap();
    let text = error.to_string();
    assert!(text.contains("rank 1 failed") && text.contains("is stopped (SIGSTOP"), "{text}");
}

#[test]
fn a_rank_that_ends_before_it_hands_over_memory_is_named() {
    let (mut child, early) = rank_1("stop", 'T');
    child.kill().unwrap();
    child.wait().unwrap();
    let error = forming(0, TIMEOUT, |formation| receive(formation, &early)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("rank 1 failed: its process ended"), "{text}");
}

/// As a freezer or a debugger does it. The kernel ends waits with a time limit then.
#[test]
fn a_rank_that_is_stopped_for_a_moment_goes_on_waiting_for_memory() {
    let (mut child, early) = rank_1("wait", 'S');
    let process = Pid::from_child(&child);
    for _ in 0..20 {
        kill_process(process, Signal::STOP).unwrap();
        await_state(&child, 'T');
        kill_process(process, Signal::CONT).unwrap();
        await_state(&child, 'S');
    }
    let file = std::fs::File::open("/dev/null").unwrap();
    let sent = early.with_stream(|stream| {
        send_descriptor(descriptor(stream)?, b'T', std::os::fd::AsFd::as_fd(&file))
    });
    sent.unwrap();
    assert!(child.wait().unwrap().success(), "it did not wait");
}

/// As in a container whose filter of system calls refuses `memfd_create`.
#[test]
fn a_rank_that_cannot_make_shared_memory_uses_sockets() {
    let unix = Some(TransportKind::Unix);
    let chosen = |me| forming(me, TIMEOUT, |formation| formation.choose_transports());
    assert_eq!(chosen(0).unwrap(), [None, Some(TransportKind::Shm), unix]);
    assert_eq!(chosen(2).unwrap(), [unix, unix, None]);
    assert!(bonfire_sys::can_share_memory());
}
