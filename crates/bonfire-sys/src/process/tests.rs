use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::mpsc;

use super::*;

/// A generous bound for what takes milliseconds, so that a hang fails instead of lasting.
const WATCHDOG: Duration = Duration::from_secs(30);

fn shell(script: &str) -> ChildProcess {
    guarded(script, &Arc::new(Guard::start().unwrap()))
}

fn guarded(script: &str, guard: &Arc<Guard>) -> ChildProcess {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    ChildProcess::spawn(command, guard).unwrap()
}

/// Whether a process exists and is not a zombie.
fn is_running(pid: u32) -> bool {
    ProcessStat::read(pid).is_some_and(|stat| !['Z', 'X'].contains(&stat.state))
}

#[track_caller]
fn wait_until_gone(pid: u32) {
    let deadline = Instant::now() + WATCHDOG;
    while is_running(pid) {
        assert!(Instant::now() < deadline, "process {pid} still runs");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The first line of a child's output, as a number.
fn printed_id(child: &mut ChildProcess) -> u32 {
    let mut stdout = child.take_stdout().unwrap();
    let mut line = String::new();
    let mut byte = [0];
    while stdout.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        line.push(byte[0].into());
    }
    line.parse().unwrap()
}

#[test]
fn the_exit_status_is_reported() {
    let mut child = shell("exit 7");
    child.exit_watch().wait().unwrap();
    assert_eq!(child.reap().unwrap().code(), Some(7));
    assert_eq!(child.reap().unwrap().code(), Some(7), "a second reap repeats it");
    child.signal_group(ChildSignal::Kill).unwrap();
}

#[test]
fn both_signals_end_a_child() {
    for (signal, number) in [(ChildSignal::Terminate, 15), (ChildSignal::Kill, 9)] {
        let mut child = shell("exec sleep 1000");
        child.signal_group(signal).unwrap();
        assert_eq!(child.reap().unwrap().signal(), Some(number));
    }
}

#[test]
fn a_stopped_child_is_seen_and_still_ends_when_asked() {
    let mut child = shell("trap 'exit 3' TERM; kill -STOP $$; while true; do sleep 0.01; done");
    let deadline = Instant::now() + WATCHDOG;
    while !child.is_stopped() {
        assert!(Instant::now() < deadline, "the child does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.signal_group(ChildSignal::Terminate).unwrap();
    assert_eq!(child.reap().unwrap().code(), Some(3));
    assert!(!child.is_stopped());
}

#[test]
fn a_child_that_goes_on_is_not_stopped() {
    let mut child = shell("kill -STOP $$; echo 1; exec sleep 1000");
    while !child.is_stopped() {
        std::thread::sleep(Duration::from_millis(1));
    }
    rustix::process::kill_process(child.pid, Signal::CONT).unwrap();
    assert_eq!(printed_id(&mut child), 1);
    assert!(!child.is_stopped());
    child.signal_group(ChildSignal::Kill).unwrap();
    child.reap().unwrap();
}

#[test]
fn reaping_ends_what_the_child_left_in_its_group() {
    let mut child = shell("sleep 1000 & echo $!");
    let left = printed_id(&mut child);
    assert!(child.reap().unwrap().success());
    wait_until_gone(left);
}

#[test]
fn dropping_ends_the_child() {
    let child = shell("exec sleep 1000");
    let pid = child.id();
    drop(child);
    wait_until_gone(pid);
}

#[test]
fn a_child_dies_with_the_thread_that_started_it() {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let child = shell("exec sleep 1000");
        sender.send(child.id()).unwrap();
        // As when the launcher is killed: nobody runs destructors.
        std::mem::forget(child);
    });
    let pid = receiver.recv_timeout(WATCHDOG).unwrap();
    thread.join().unwrap();
    wait_until_gone(pid);
}

#[test]
fn a_guard_ends_the_groups_that_were_not_released() {
    let guard = Guard::start().unwrap();
    let group = |script: &str| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null());
        command.stdout(Stdio::piped()).process_group(0);
        command.spawn().unwrap()
    };
    let [mut guarded, mut released] = ["sleep 1000 & wait", "exec sleep 1000"].map(group);
    guard.watch(Pid::from_child(&guarded));
    guard.watch(Pid::from_child(&released));
    guard.release(Pid::from_child(&released));
    // As when the launcher is killed: the pipe ends, and nobody says anything.
    drop(guard);
    assert_eq!(guarded.wait().unwrap().signal(), Some(9));
    let mut rest = Vec::new();
    // The grandchild had the other end of this pipe.
    guarded.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
    assert!(is_running(released.id()), "it was no group of the guard's any more");
    released.kill().unwrap();
    released.wait().unwrap();
}

#[test]
fn a_guard_holds_nothing_of_its_launcher_open() {
    let (mut reader, writer) = io::pipe().unwrap();
    let guard = Guard::start().unwrap();
    drop(writer);
    // If the guard had a copy of the writing end, this would wait for it for ever.
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    drop(guard);
}

#[test]
fn a_missing_program_is_an_error_of_spawn() {
    let guard = Arc::new(Guard::start().unwrap());
    let error = ChildProcess::spawn(Command::new("/nonexistent/program"), &guard).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_watch_turns_signals_into_values_one_watch_after_the_other() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t"));
    let ignored = u64::from_str_radix(ignored.unwrap(), 16).unwrap();
    let hangups_were_ignored = (ignored >> (Signal::HUP.as_raw() - 1)) & 1 == 1;
    for _ in 0..2 {
        let (sender, receiver) = mpsc::channel();
        let watch = InterruptWatch::start(move |interrupt| {
            sender.send(interrupt).unwrap();
        })
        .unwrap();
        let twice = InterruptWatch::start(|_| {}).unwrap_err();
        assert_eq!(twice.kind(), io::ErrorKind::ResourceBusy);
        for (signal, interrupt) in [
            (Signal::INT, Interrupt::Interrupt),
            (Signal::TERM, Interrupt::Terminate),
            (Signal::HUP, Interrupt::Hangup),
        ] {
            if signal == Signal::HUP && hangups_were_ignored {
                continue; // The tests are to outlive their terminal, and so is whoever watches.
            }
            rustix::process::kill_process(rustix::process::getpid(), signal).unwrap();
            assert_eq!(receiver.recv_timeout(WATCHDOG).unwrap(), interrupt);
        }
        drop(watch);
    }
}

#[test]
fn every_watch_hears_of_requests() {
    let watch = || {
        let (sender, heard) = mpsc::channel();
        let watch = RequestWatch::start(move || sender.send(()).unwrap()).unwrap();
        (watch.expect("no test handles SIGUSR1"), heard)
    };
    let (one, one_heard) = watch();
    let (_other, other_heard) = watch();
    let ask = || {
        let me = rustix::process::getpid();
        rustix::process::kill_process(me, Signal::USR1).unwrap();
    };
    let timeout = Duration::from_secs(60);
    ask();
    one_heard.recv_timeout(timeout).unwrap();
    other_heard.recv_timeout(timeout).unwrap();
    drop(one);
    ask();
    other_heard.recv_timeout(timeout).unwrap();
    assert!(one_heard.try_recv().is_err());
}
