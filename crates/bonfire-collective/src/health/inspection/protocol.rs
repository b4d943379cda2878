//! What is asked and answered at the socket of a running process.
//!
//! The asker writes one JSON value and closes its half; the process writes one JSON value and closes the connection.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use bonfire_plan::Rank;
use serde::{Deserialize, Serialize};

use crate::options::place::RankEnv;
use bonfire_connect::platform::random;
use bonfire_connect::secure::token::JobToken;

const PREFIX: &str = "bonfire-ask";
/// Digits of the text by which processes of one job know each other's sockets.
const KEY_DIGITS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Question {
    /// Which rank of which job are you? The answer is a [`JobMember`].
    Who,
    /// What do the ranks of this group do? The answer is a `GroupReport`, if the process is in it.
    Group { number: u32, operations_max: usize },
}

/// A process of a running job, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobMember {
    /// The name of the job; empty if it has none.
    pub job_id: String,
    /// The same for all processes of one start of a job, and for no others.
    pub key: String,
    /// How often all ranks of the job were started again.
    pub restart_count: u32,
    /// This process among all of the job.
    pub rank: Rank,
    /// The ranks of the job.
    pub world_size: u32,
    /// The id of the process.
    pub process_id: u32,
    /// The process of the launcher of its host, if Bonfire's launcher started it.
    pub launcher_id: Option<u32>,
    /// The program, without folder and arguments.
    pub program: String,
    /// How long ago it met the others.
    pub age: Duration,
    /// The groups that it is in, by their numbers.
    pub groups: Vec<u32>,
    pub(super) socket: String,
}

/// The name of a process's socket, which says enough to place a process that answers nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SocketName {
    pub(super) user: u32,
    pub(super) key: String,
    pub(super) rank: u32,
    pub(super) process_id: u32,
    /// Tells apart those who have all else in common: groups that one process joined as one rank.
    pub(super) nonce: u32,
}

impl SocketName {
    pub(super) fn of(env: &RankEnv) -> Self {
        let mut nonce = [0; 4];
        // Without it, the name may be taken, and that is found out.
        let _ = random::fill(&mut nonce);
        Self {
            user: rustix::process::geteuid().as_raw(),
            key: key(env),
            rank: env.rank.get(),
            process_id: std::process::id(),
            nonce: u32::from_le_bytes(nonce),
        }
    }
}

/// It distinguishes jobs and says nothing of what it is made of, the token among that.
fn key(env: &RankEnv) -> String {
    let text = format!(
        "inspect {} {}:{} {}",
        env.restart_count, env.master_addr, env.master_port, env.world_size
    );
    let token: JobToken = env.connection_token().for_job(&text);
    token.to_hex()[..KEY_DIGITS].to_owned()
}

impl fmt::Display for SocketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, key, rank, process_id, nonce } = self;
        write!(f, "{PREFIX}-{user}-{key}-{rank}-{process_id}-{nonce}")
    }
}

#[derive(Debug)]
pub(super) struct NoSuchSocket;

impl FromStr for SocketName {
    type Err = NoSuchSocket;

    fn from_str(text: &str) -> Result<Self, NoSuchSocket> {
        let rest = text.strip_prefix(PREFIX).ok_or(NoSuchSocket)?;
        let words: Vec<&str> = rest.split('-').collect();
        let ["", user, key, rank, process_id, nonce] = words[..] else {
            return Err(NoSuchSocket);
        };
        let number = |word: &str| word.parse().map_err(|_| NoSuchSocket);
        Ok(Self {
            user: number(user)?,
            key: key.to_owned(),
            rank: number(rank)?,
            process_id: number(process_id)?,
            nonce: number(nonce)?,
        })
    }
}

impl JobMember {
    pub(super) fn of(env: &RankEnv, name: &SocketName) -> Self {
        Self {
            job_id: env.job_id.clone(),
            key: name.key.clone(),
            restart_count: env.restart_count,
            rank: env.rank,
            world_size: env.world_size.get(),
            process_id: name.process_id,
            launcher_id: env.launcher_id,
            program: program_name(std::env::args_os().next()),
            age: Duration::ZERO,
            groups: Vec::new(),
            socket: name.to_string(),
        }
    }
}

fn program_name(program: Option<OsString>) -> String {
    let program = program.unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_not() {
        let name = SocketName {
            user: 1000,
            key: "00ff".to_owned(),
            rank: 12,
            process_id: 99,
            nonce: u32::MAX,
        };
        let text = name.to_string();
        assert_eq!(text.parse::<SocketName>().ok(), Some(name));
        for other in ["", "bonfire-ask", "bonfire-ask-1-k-2-3", "bonfire-00ff", &text[1..]] {
            assert!(other.parse::<SocketName>().is_err(), "{other}");
        }
        // What the kernel takes, with the zero byte before it.
        let longest = SocketName {
            user: u32::MAX,
            key: "f".repeat(KEY_DIGITS),
            rank: u32::MAX,
            process_id: u32::MAX,
            nonce: u32::MAX,
        };
        assert!(longest.to_string().len() < 108);
    }

    #[test]
    fn a_program_is_named_without_its_folder() {
        assert_eq!(program_name(Some("/usr/bin/train".into())), "train");
        assert_eq!(program_name(None), "");
    }
}
