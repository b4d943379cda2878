//! What one end of a control connection does when the other sends, ends or fails.

use bonfire_plan::WorldSize;

use super::*;
use crate::health::flight::RecordTarget;
use crate::health::recorder::Recorder;
use crate::health::reports::RankRecorder;
use bonfire_connect::platform::net::UnixStream;
use bonfire_connect::secure::stream::Stream;

/// A connection of rank 0 to a peer, and the other end of it.
fn connection(peer: u32) -> (Early, Peer) {
    let (near, far) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    let early = Early::new(Rank::new(peer), Stream::Unix(near), Reading::Now).unwrap();
    (early, Peer::new(Rank::new(0), Stream::Unix(far)))
}

/// What the other end hears first of this kind.
fn heard(far: &Peer, kind: Kind) -> Vec<u8> {
    let mut inbox = far.with_stream(Inbox::new).unwrap();
    let mut buffer = [0; 4096];
    let started = clock::now();
    loop {
        assert!(clock::since(started) < Duration::from_secs(60), "nothing came");
        match far.read(&mut buffer) {
            Ok(count) => inbox.feed(&buffer[..count]),
            Err(_) => thread::sleep(ANSWER_LOOK),
        }
        if let Some(text) = inbox.first(kind).unwrap() {
            return text.to_vec();
        }
    }
}

#[test]
fn a_lost_connection_is_notified_to_those_who_still_have_theirs() {
    let ((first, cut), (second, far)) = (connection(1), connection(2));
    let poison = Arc::new(Poison::new(WorldSize::new(3).unwrap()));
    let (peers, options) = (vec![first, second], GroupOptions::default());
    let _control = Control::start(Rank::new(0), peers, poison, &options).unwrap();
    drop(cut);
    let failure: Failure = decode(&heard(&far, Kind::Failure)).unwrap();
    let Failure::Peer { rank, .. } = &failure else {
        panic!("{failure}");
    };
    assert_eq!(*rank, Rank::new(1));
}

/// Whoever drops a group waits for the thread, which must not sleep to the end of its slice.
#[test]
fn the_end_of_a_group_wakes_the_thread_that_watches() {
    let (peer, far) = connection(1);
    let poison = Arc::new(Poison::new(WorldSize::new(2).unwrap()));
    let (peers, options) = (vec![peer], GroupOptions::default());
    let (mut control, mut watcher) =
        Control::prepare(Rank::new(0), peers, poison, &options).unwrap();
    watcher.look_slice = Duration::from_secs(24 * 3600);
    control.watcher = Some(thread::spawn("watcher", move || watcher.run()).unwrap());
    // Its first beat comes right before it sleeps.
    heard(&far, Kind::Heartbeat);
    thread::sleep(Duration::from_millis(50));
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(control);
        let _ = done.send(());
    });
    let ended = is_done.recv_timeout(Duration::from_secs(60));
    assert!(ended.is_ok(), "the thread sleeps on");
}

#[test]
fn an_answer_has_room_whatever_the_program_calls_its_phases() {
    let recorder = Arc::new(Recorder::default());
    recorder.set_phase(recorder.name(&"x".repeat(2 * MESSAGE_BYTES_MAX)));
    let poison = Poison::new(WorldSize::new(2).unwrap());
    let target = RecordTarget {
        folder: None,
        group: 0,
        rank: Rank::new(0),
        job_rank: Rank::new(0),
        world_size: 2,
    };
    poison.reports().add(Rank::new(0), RankRecorder { recorder, target });
    let (near, far) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    let question = Question { round: 7, operations_max: 4 };
    let peer = Peer::new(Rank::new(1), Stream::Unix(near));
    answer(&peer, &question, &poison);
    let far = Peer::new(Rank::new(0), Stream::Unix(far));
    let answer: Answer = decode(&heard(&far, Kind::Answer)).unwrap();
    assert_eq!((answer.round, answer.record.progress), (7, Progress::default()));
}
