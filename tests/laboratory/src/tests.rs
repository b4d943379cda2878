//! What programs see of the simulated machines.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::sync::Condvar;
use crate::{Conditions, Fault, ProcessId, Report, Simulation, clock, net, thread};

const HORIZON: Duration = Duration::from_secs(10_000);
const PATIENCE: Duration = Duration::from_secs(10);

fn conditions() -> Conditions {
    Conditions {
        latency: Duration::from_millis(1)..=Duration::from_millis(30),
        loss: 20,
        window_bytes: 1000,
        backlog: 2,
        short: 3,
        breaks: 0,
        cores: 1,
    }
}

fn door() -> SocketAddr {
    "10.0.0.1:7000".parse().unwrap()
}

/// What processes have to say when they have ended.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn say(&self, text: impl ToString) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push(text.to_string());
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One host sends 10,000 bytes, which another reads to their end; what it says, and the run.
fn transfer(seed: u64, fault: Option<(Duration, Fault)>) -> (Vec<String>, Report) {
    let log = Log::default();
    let mut simulation = Simulation::new(seed, conditions(), HORIZON);
    let own = log.clone();
    simulation.process("reader", 0, move || {
        let listener = net::listen(door()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut bytes = Vec::new();
        match stream.read_to_end(&mut bytes) {
            Ok(_) => own.say("end"),
            Err(error) => own.say(error.kind()),
        }
        let expected = (0..10_000_u32).map(|index| index as u8);
        assert!(bytes.iter().copied().eq(expected.take(bytes.len())));
        own.say(bytes.len());
    });
    let own = log.clone();
    simulation.process("writer", 1, move || {
        let mut stream = loop {
            match net::connect(&door(), PATIENCE) {
                Ok(stream) => break stream,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    thread::sleep(Duration::from_millis(10));
                }
                Err(error) => return own.say(error.kind()),
            }
        };
        let bytes: Vec<u8> = (0..10_000_u32).map(|index| index as u8).collect();
        if let Err(error) = stream.write_all(&bytes) {
            own.say(error.kind());
        }
    });
    if let Some((at, fault)) = fault {
        simulation.fault(at, fault);
    }
    let report = simulation.run();
    (log.lines(), report)
}

#[test]
fn bytes_come_whole_and_in_order_whatever_the_network_does() {
    for seed in 0..50 {
        let (lines, report) = transfer(seed, None);
        assert_eq!(lines, ["end", "10000"], "seed {seed}");
        assert_eq!(report.hang, None, "seed {seed}");
    }
}

#[test]
fn runs_of_one_seed_are_equal_and_of_two_are_not() {
    let trace = |seed| transfer(seed, None).1;
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1).trace, trace(2).trace);
}

#[test]
fn a_process_that_is_killed_closes_its_connections() {
    let mut was_cut_short = 0;
    for seed in 0..50 {
        let at = Duration::from_millis(60 + 10 * seed);
        let (lines, report) = transfer(seed, Some((at, Fault::Kill(ProcessId(1)))));
        // Before it has connected, its reader waits for ever.
        if report.hang.is_none() {
            assert!(lines[0] == "end" || lines[0] == "connection reset", "{lines:?}");
            was_cut_short += u32::from(lines[1] != "10000");
        }
    }
    assert!(was_cut_short > 0, "no kill came in time");
}

#[test]
fn nothing_passes_a_cut_and_what_was_sent_comes_when_it_is_over() {
    for seed in 0..20 {
        let cut = |span| Fault::Cut { side: 0b10, span };
        let (lines, report) = transfer(seed, Some((Duration::ZERO, cut(None))));
        assert_eq!(lines, [ErrorKind::TimedOut.to_string()], "seed {seed}");
        assert!(report.hang.is_some(), "the reader waits for ever, seed {seed}");
        let short = Some(Duration::from_secs(2));
        let at = Duration::from_millis(50);
        let (lines, _) = transfer(seed, Some((at, cut(short))));
        assert_eq!(lines, ["end", "10000"], "seed {seed}");
    }
}

#[test]
fn time_passes_where_all_wait() {
    let mut simulation = Simulation::new(0, conditions(), HORIZON);
    simulation.process("sleeper", 0, || {
        let began = clock::now();
        thread::sleep(Duration::from_secs(3600));
        assert!(clock::since(began) >= Duration::from_secs(3600));
    });
    let report = simulation.run();
    assert_eq!((report.hang, report.panics), (None, Vec::new()));
    assert!(report.time >= Duration::from_secs(3600));
}

#[test]
fn a_wait_that_nothing_ends_is_a_hang_and_a_panic_is_reported() {
    let mut simulation = Simulation::new(0, conditions(), HORIZON);
    simulation.process("waiter", 0, || {
        let lock = crate::sync::Mutex::new(());
        let bell = Condvar::new();
        let _guard = bell.wait(lock.lock());
    });
    simulation.process("clumsy", 0, || panic!("on purpose"));
    let report = simulation.run();
    let hang = report.hang.unwrap();
    assert!(hang.contains("waiter, waiter: Blocked"), "{hang}");
    assert_eq!(report.panics, ["clumsy: on purpose"]);
}

#[test]
fn a_run_ends_when_the_last_process_is_stopped_for_ever() {
    let mut simulation = Simulation::new(0, conditions(), HORIZON);
    simulation.process("quick", 0, || ());
    let sleeper = simulation.process("sleeper", 0, || thread::sleep(Duration::from_secs(60)));
    simulation.servant("server", 0, || thread::sleep(Duration::from_secs(60)));
    let stop = Fault::Stop { process: sleeper, span: None };
    simulation.fault(Duration::from_secs(1), stop);
    let report = simulation.run();
    assert_eq!((report.hang, report.panics), (None, Vec::new()));
}
