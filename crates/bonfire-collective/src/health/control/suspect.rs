//! Why a rank is silent, as far as the system knows.

use std::time::Duration;

use bonfire_connect::platform::host;
use bonfire_connect::secure::stream::FarEnd;

/// What a silent rank is blamed for; nothing if a debugger holds it, which is somebody's wish.
pub(super) fn cause(far_end: FarEnd, silence: Duration) -> Option<String> {
    let state = |process: u32| (process, host::process_state(process));
    let process = match far_end {
        FarEnd::Process(process) => Some(state(process)),
        FarEnd::Host { .. } | FarEnd::Unknown => None,
    };
    explain(far_end, process, silence)
}

/// As [`cause`] for a rank that was never heard: it may still be joining, so only what is known of a
/// process of this machine counts against it.
pub(super) fn cause_from_the_start(far_end: FarEnd, silence: Duration) -> Option<String> {
    let FarEnd::Process(process) = far_end else {
        return None;
    };
    let is_stopped = host::process_state(process) == Some('T');
    is_stopped.then(|| cause(far_end, silence)).flatten()
}

fn explain(
    far_end: FarEnd,
    process: Option<(u32, Option<char>)>,
    silence: Duration,
) -> Option<String> {
    let seconds = silence.as_secs();
    let what = match (far_end, process) {
        (_, Some((_, Some('t')))) => return None,
        (_, Some((id, Some('T')))) => format!("its process {id} is stopped (SIGSTOP or SIGTSTP)"),
        (_, Some((id, Some(state)))) => {
            format!("its process {id} is there (state {state}) but does not run: it is frozen")
        }
        (FarEnd::Host { unacknowledged: 0 }, _) => {
            "its process is stopped or frozen, though its host answers".to_owned()
        }
        (FarEnd::Host { .. }, _) => "its host cannot be reached".to_owned(),
        _ => "its process is stopped or frozen, or its host cannot be reached".to_owned(),
    };
    Some(format!("{what}: no heartbeat for {seconds} s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_distinguished() {
        let process = FarEnd::Process(7);
        let host = |unacknowledged| FarEnd::Host { unacknowledged };
        for (far_end, state, part) in [
            (process, Some((7, Some('T'))), "its process 7 is stopped (SIGSTOP"),
            (process, Some((7, Some('D'))), "state D) but does not run"),
            (process, Some((7, None)), "stopped or frozen, or its host"),
            (host(0), None, "though its host answers"),
            (host(70), None, "its host cannot be reached"),
            (FarEnd::Unknown, None, "stopped or frozen, or its host"),
        ] {
            let cause = explain(far_end, state, Duration::from_millis(15_100)).unwrap();
            assert!(cause.contains(part), "{cause}");
            assert!(cause.ends_with(": no heartbeat for 15 s"), "{cause}");
        }
    }

    #[test]
    fn whom_a_debugger_holds_is_blamed_for_nothing() {
        let state = Some((7, Some('t')));
        assert_eq!(explain(FarEnd::Process(7), state, Duration::from_secs(99)), None);
    }

    #[test]
    fn a_process_that_never_said_anything_is_blamed_only_if_it_is_stopped() {
        let silence = Duration::from_secs(15);
        assert_eq!(cause_from_the_start(FarEnd::Unknown, silence), None);
        let host = FarEnd::Host { unacknowledged: 70 };
        assert_eq!(cause_from_the_start(host, silence), None);
        let this = FarEnd::Process(std::process::id());
        assert_eq!(cause_from_the_start(this, silence), None);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = child.id();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        let began = std::time::Instant::now();
        let cause = loop {
            if let Some(cause) = cause_from_the_start(FarEnd::Process(id), silence) {
                break Some(cause);
            }
            if began.elapsed() > Duration::from_secs(30) {
                break None;
            }
        };
        child.kill().unwrap();
        child.wait().unwrap();
        let cause = cause.expect("a stopped process is seen");
        assert!(cause.contains("is stopped (SIGSTOP"), "{cause}");
    }

    #[test]
    fn this_process_runs() {
        let cause = cause(FarEnd::Process(std::process::id()), Duration::from_secs(20)).unwrap();
        assert!(cause.contains("does not run"), "{cause}");
    }
}
