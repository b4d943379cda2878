//! Finding the running jobs of this user on this host, and asking them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use bonfire_plan::Rank;
use serde::de::DeserializeOwned;

use super::TALK_TIMEOUT;
use super::protocol::{JobMember, Question, SocketName};
use crate::health::query::ANSWER_TIMEOUT;
use crate::health::reports::GroupReport;
use bonfire_connect::platform::net::{connect_abstract, is_of_this_user};
use bonfire_connect::platform::thread;

/// Where Linux lists the sockets of the network namespace, those without a file name behind an `@`.
const SOCKETS: &str = "/proc/net/unix";
/// The longest answer: the records of all ranks of a very large job.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
/// Processes that are asked at a time: each takes a thread, and a stopped one its whole time.
const ASKED_AT_ONCE: usize = 32;

/// A running job that has processes of this user on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningJob {
    /// Its processes here that answer, in the order of their ranks; at least one.
    pub members: Vec<JobMember>,
    /// Its processes here that do not.
    pub silent: Vec<SilentProcess>,
}

/// A process that listens but does not answer: it is stopped, or about to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentProcess {
    /// The id of the process.
    pub process_id: u32,
    /// Its rank in its job.
    pub rank: Rank,
}

/// A running job could not be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The list of sockets cannot be read.
    #[error("cannot look for running jobs in {SOCKETS}")]
    Sockets(#[source] io::Error),
    /// All processes of the job on this host have ended, or none answers any more.
    #[error("the job has ended, or none of its processes on this host answers any more")]
    Gone,
}

/// The running jobs of this user that have processes on this host, in the order of their ages, and
/// processes that answer nothing and belong to none of them.
///
/// # Errors
/// If the system does not list its sockets.
pub fn running_jobs() -> Result<(Vec<RunningJob>, Vec<SilentProcess>), InspectError> {
    let listed = fs::read_to_string(SOCKETS).map_err(InspectError::Sockets)?;
    let user = rustix::process::geteuid().as_raw();
    let mut names: Vec<SocketName> = listed
        .lines()
        .filter_map(|line| line.rsplit('@').next()?.parse().ok())
        .filter(|name: &SocketName| name.user == user)
        .collect();
    // A connection under way shows the name once more.
    names.sort_by_key(|name| (name.key.clone(), name.rank, name.process_id, name.nonce));
    names.dedup();
    let mut jobs: BTreeMap<String, RunningJob> = BTreeMap::new();
    let mut strays = BTreeMap::<String, Vec<SilentProcess>>::new();
    for (name, answer) in ask_all(&names) {
        match answer {
            Answer::Member(member) => {
                let job = jobs
                    .entry(name.key)
                    .or_insert_with(|| RunningJob { members: Vec::new(), silent: Vec::new() });
                job.members.push(member);
            }
            Answer::Silence => strays
                .entry(name.key)
                .or_default()
                .push(SilentProcess { process_id: name.process_id, rank: Rank::new(name.rank) }),
            Answer::Gone => {}
        }
    }
    for (key, job) in &mut jobs {
        job.silent = strays.remove(key).unwrap_or_default();
    }
    let mut jobs: Vec<RunningJob> = jobs.into_values().collect();
    jobs.sort_by_key(|job| job.members[0].age);
    Ok((jobs, strays.into_values().flatten().collect()))
}

impl RunningJob {
    /// What the ranks of its groups do, those on other hosts included, with the latest
    /// `operations_max` operations of each: of all groups that have a rank on this host, the group of
    /// all ranks first. Takes a moment if a process is stopped.
    ///
    /// # Errors
    /// [`InspectError::Gone`] if nobody answers any more.
    pub fn report(&self, operations_max: usize) -> Result<Vec<GroupReport>, InspectError> {
        let mut reports: BTreeMap<u32, GroupReport> = BTreeMap::new();
        for member in &self.members {
            for &number in &member.groups {
                if reports.contains_key(&number) {
                    continue;
                }
                let question = Question::Group { number, operations_max };
                let Ok(name) = member.socket.parse::<SocketName>() else {
                    continue;
                };
                let timeout = ANSWER_TIMEOUT + TALK_TIMEOUT;
                if let Ok(Some(report)) = ask::<Option<GroupReport>>(&name, question, timeout) {
                    reports.insert(number, report);
                }
            }
        }
        if reports.is_empty() {
            Err(InspectError::Gone)
        } else {
            Ok(reports.into_values().collect())
        }
    }
}

/// What came of asking a process who it is.
enum Answer {
    Member(JobMember),
    /// It took the question and answered nothing.
    Silence,
    /// It has ended meanwhile, or is not of this user.
    Gone,
}

fn ask_all(names: &[SocketName]) -> Vec<(SocketName, Answer)> {
    let mut answers = Vec::with_capacity(names.len());
    for names in names.chunks(ASKED_AT_ONCE) {
        thread::scope(|scope| {
            let asked: Vec<_> = names.iter().map(|name| scope.spawn(|| who(name))).collect();
            for (name, asked) in names.iter().zip(asked) {
                let answer = match asked {
                    Ok(thread) => thread.join().unwrap_or(Answer::Gone),
                    // No thread is left: as if it were silent.
                    Err(_) => Answer::Silence,
                };
                answers.push((name.clone(), answer));
            }
        });
    }
    answers
}

fn who(name: &SocketName) -> Answer {
    match ask(name, Question::Who, TALK_TIMEOUT) {
        Ok(member) => Answer::Member(member),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
        {
            Answer::Silence
        }
        Err(_) => Answer::Gone,
    }
}

fn ask<A: DeserializeOwned>(
    name: &SocketName,
    question: Question,
    timeout: Duration,
) -> io::Result<A> {
    let mut stream = connect_abstract(&name.to_string())?;
    if !is_of_this_user(&stream) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(TALK_TIMEOUT))?;
    stream.write_all(&serde_json::to_vec(&question)?)?;
    stream.shutdown(Shutdown::Write)?;
    let mut text = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}
