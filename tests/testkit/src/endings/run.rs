//! Runs a job into its misfortune and judges how it ends.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use bonfire_collective::FLIGHT_DIR_VARIABLE;
use rustix::time::{ClockId, clock_gettime};

use super::checkpoint::Checkpoint;
use super::residue::{MARK, Residue};
use super::{Misfortune, Scenario, model};
use crate::job::{Job, JobEnd, Signal, signal_process};

/// A job that has not ended after this long hangs.
const WATCHDOG: Duration = Duration::from_secs(60);

/// How long processes may outlive their launcher.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// What the file is called whose appearance starts the training.
const GO: &str = "go";

/// A good end, and how long it took.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    /// The steps that the last checkpoint holds, if there is one.
    pub checkpoint: Option<u64>,
    /// How long it took; nothing where nothing failed.
    pub times: Option<Times>,
}

#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// From the misfortune to the first rank that noticed it; zero for one that no rank had to
    /// notice.
    pub to_detection: Duration,
    /// From there until no process was left.
    pub to_the_end: Duration,
}

struct Course {
    end: JobEnd,
    /// When something was done to the job from outside.
    struck: Option<Duration>,
    gone: Duration,
}

/// The time on the clock of this machine, which all processes share.
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).expect("the clock starts at 0");
    Duration::new(seconds, u32::try_from(time.tv_nsec).expect("less than a second"))
}

/// Runs one scenario over a transport with the program of the ranks.
///
/// # Errors
/// What was wrong with the ending.
pub fn run(program: &Path, transport: &str, scenario: &Scenario) -> Result<Ending, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut residue = Residue::new();
    let mut command = Command::new(program);
    command
        .args([transport, scenario.misfortune.name()])
        .arg(scenario.seed.to_string())
        .arg(folder.path())
        .env(FLIGHT_DIR_VARIABLE, folder.path().join("flights"))
        .env(MARK, residue.mark());
    let course = strike(&mut command, scenario, folder.path(), &mut residue);
    let judged = course.and_then(|course| {
        judge_shared_memory()?;
        let said = || {
            let (out, err) = (course.end.stdout.join("\n"), course.end.stderr.join("\n"));
            format!("\n--- it said:\n{}\n--- and:\n{err}", last_lines(&out, 30))
        };
        judge(scenario, &course, folder.path()).map_err(|wrong| format!("{wrong}{}", said()))
    });
    residue.clear();
    judged
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Starts the job, lets the misfortune happen, and waits for the end.
fn strike(
    command: &mut Command,
    scenario: &Scenario,
    folder: &Path,
    residue: &mut Residue,
) -> Result<Course, String> {
    let job = Job::start_for(command, WATCHDOG);
    let mut pids = vec![0; scenario.world_size as usize];
    for _ in 0..scenario.world_size {
        let line = job.try_line()?;
        let (rank, pid) = parsed(&line, "here ").ok_or_else(|| format!("unexpected: {line}"))?;
        pids[rank as usize] = u32::try_from(pid).map_err(|error| error.to_string())?;
    }
    residue.note_sockets();
    if residue.sockets() == 0 {
        return Err("a job of several ranks has sockets, but none was seen".to_owned());
    }
    std::fs::write(folder.join(GO), b"").map_err(|error| error.to_string())?;
    let struck = match scenario.misfortune {
        one if one.is_from_outside() => {
            while parsed(&job.try_line()?, "step ") != Some((scenario.rank, scenario.step)) {}
            thread::sleep(Duration::from_micros(scenario.delay_us));
            let victim = pids[scenario.rank as usize];
            let moment = now();
            match one {
                Misfortune::Kill => signal_process(victim, Signal::KILL),
                Misfortune::Stop => signal_process(victim, Signal::STOP),
                Misfortune::KillLauncher => job.signal(Signal::KILL),
                _ => job.signal(Signal::INT),
            }
            Some(moment)
        }
        _ => None,
    };
    let end = job.try_end()?;
    residue.wait_for_the_last(LAST_WAIT)?;
    Ok(Course { end, struck, gone: now() })
}

/// The rank and the number of a line such as `[rank 2] step 17`.
fn parsed(line: &str, what: &str) -> Option<(u32, u64)> {
    let (rank, rest) = line.strip_prefix("[rank ")?.split_once("] ")?;
    let number = rest.strip_prefix(what)?.split(' ').next()?;
    Some((rank.parse().ok()?, number.parse().ok()?))
}

fn judge_shared_memory() -> Result<(), String> {
    match Residue::shared_memory() {
        names if names.is_empty() => Ok(()),
        names => Err(format!("shared memory is left: {names:?}")),
    }
}

fn judge(scenario: &Scenario, course: &Course, folder: &Path) -> Result<Ending, String> {
    let steps = match scenario.misfortune {
        Misfortune::EarlyStop => Some(agreed_end(scenario, course, Some(scenario.step))?),
        Misfortune::OneBatchFewer => {
            Some(agreed_end(scenario, course, Some(scenario.batches - 1))?)
        }
        Misfortune::OneBatchShadowed => Some(agreed_end(scenario, course, Some(scenario.batches))?),
        Misfortune::Interrupt => Some(agreed_end(scenario, course, None)?),
        Misfortune::KillLauncher => None,
        _ => {
            named_last(scenario, course)?;
            None
        }
    };
    judge_exit(scenario, course)?;
    let checkpoint = judge_checkpoint(scenario, course, folder, steps)?;
    let times = match steps {
        Some(_) => None,
        None => Some(times(scenario, course)?),
    };
    Ok(Ending { checkpoint, times })
}

/// All ranks ended after one and the same step; which.
fn agreed_end(scenario: &Scenario, course: &Course, due: Option<u64>) -> Result<u64, String> {
    let ends = course.end.stdout.iter();
    let ends: Vec<(u32, u64)> = ends.filter_map(|line| parsed(line, "ended after ")).collect();
    let Some(&(_, steps)) = ends.first() else {
        return Err("no rank says that it ended".to_owned());
    };
    let is_agreed =
        ends.len() == scenario.world_size as usize && ends.iter().all(|(_, step)| *step == steps);
    if !is_agreed || due.is_some_and(|due| due != steps) {
        return Err(format!("the ranks ended after {ends:?}, where {due:?} was due"));
    }
    Ok(steps)
}

/// The verdict names the culprit, and nothing but the culprit's own last words comes after it.
fn named_last(scenario: &Scenario, course: &Course) -> Result<(), String> {
    let verdict = format!("error: root cause: rank {} (", scenario.rank);
    let words = format!("  [rank {}] ", scenario.rank);
    let lines = &course.end.stderr;
    let Some(at) = lines.iter().rposition(|line| line.starts_with(&verdict)) else {
        return Err(format!("rank {} is not named", scenario.rank));
    };
    match lines[at + 1..].iter().find(|line| !line.starts_with(&words)) {
        Some(line) => Err(format!("after the verdict comes {line:?}")),
        None => Ok(()),
    }
}

fn judge_exit(scenario: &Scenario, course: &Course) -> Result<(), String> {
    use std::os::unix::process::ExitStatusExt;
    let status = course.end.status;
    let is_right = match scenario.misfortune {
        Misfortune::EarlyStop | Misfortune::OneBatchFewer | Misfortune::OneBatchShadowed => {
            status.success()
        }
        Misfortune::DatasetError | Misfortune::ExitZero => status.code() == Some(1),
        Misfortune::Panic => status.code() == Some(101),
        Misfortune::Kill => status.code() == Some(128 + 9),
        Misfortune::Stop => status.code() == Some(128 + 19),
        Misfortune::KillLauncher => status.signal() == Some(9),
        Misfortune::Interrupt => status.code() == Some(128 + 2),
    };
    if is_right {
        return Ok(());
    }
    Err(format!("the launcher ended with {status}"))
}

/// The last checkpoint is whole, holds what was said to be in it, and is what the training comes to.
fn judge_checkpoint(
    scenario: &Scenario,
    course: &Course,
    folder: &Path,
    end: Option<u64>,
) -> Result<Option<u64>, String> {
    let lines = course.end.stdout.iter();
    let said = lines.filter_map(|line| parsed(line, "saved ")).map(|(_, step)| step);
    let said = said.max();
    let Some(checkpoint) = Checkpoint::load(folder)? else {
        return match said.or(end) {
            None => Ok(None),
            Some(step) => Err(format!("the checkpoint of step {step} is lost")),
        };
    };
    let step = checkpoint.step;
    if said.is_some_and(|said| step < said) || end.is_some_and(|end| step != end) {
        return Err(format!(
            "the checkpoint is of step {step}; {said:?} was saved, and the end is {end:?}"
        ));
    }
    let batches: Vec<u64> =
        (0..scenario.world_size).map(|rank| scenario.batches_of(rank)).collect();
    if checkpoint.weights != model::expected(scenario.seed, &batches, step) {
        return Err(format!("the checkpoint of step {step} is wrong"));
    }
    Ok(Some(step))
}

fn times(scenario: &Scenario, course: &Course) -> Result<Times, String> {
    let heard = course.end.stderr.iter().filter_map(|line| heard(line)).min();
    let detected = match (scenario.misfortune, heard) {
        // No process is left to receive it, and the kernel needs none.
        (Misfortune::KillLauncher, _) => course.struck.expect("it was struck"),
        (_, Some(heard)) => heard,
        (_, None) => return Err("no rank noticed it".to_owned()),
    };
    Ok(Times {
        to_detection: course
            .struck
            .map_or(Duration::ZERO, |struck| detected.saturating_sub(struck)),
        to_the_end: course.gone.saturating_sub(detected),
    })
}

/// The time in a line such as `[rank 1] heard at 12.345678: ...`.
fn heard(line: &str) -> Option<Duration> {
    let (_, rest) = line.split_once("] heard at ")?;
    let seconds = rest.split(':').next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ranks_are_read() {
        assert_eq!(parsed("[rank 2] step 17", "step "), Some((2, 17)));
        assert_eq!(parsed("[rank 2] ended after 4 steps", "ended after "), Some((2, 4)));
        assert_eq!(parsed("[rank 2] saved 17", "step "), None);
        let heard = heard("[rank 1] heard at 12.345678: rank 2 failed: it panicked");
        assert_eq!(heard, Some(Duration::from_micros(12_345_678)));
    }
}
