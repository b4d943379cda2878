//! A running job can be asked what its ranks do.
//!
//! Each process listens on an abstract Unix-domain socket for as long as one of its groups lives, and one
//! thread of it answers, whatever the program does meanwhile: computes, waits, or hangs. Whoever asks one
//! process of a job learns of all, on all hosts, because that one asks the others over the control
//! channel. SIGUSR1 makes a process say the same on its error stream.
//!
//! Only the same user is answered, and only the same user is believed, on the kernel's word. Nothing of
//! this has a name in a file system, so nothing of it outlives the process.

mod client;
mod protocol;
mod signal;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bonfire_sys::process::RequestWatch;

use crate::health::poison::Poison;
use crate::health::query;
use crate::health::reports::GroupReport;
use crate::options::RecordOnSignal;
use crate::options::place::RankEnv;
use bonfire_connect::platform::clock;
use bonfire_connect::platform::net::{
    Handle, UnixListener, UnixStream, await_news, is_of_this_user, listen_abstract,
};
use bonfire_connect::platform::sync::Mutex;
use bonfire_connect::platform::thread::{self, JoinHandle};

pub use client::{InspectError, RunningJob, SilentProcess, running_jobs};
pub use protocol::JobMember;
use protocol::{Question, SocketName};

/// How long either end may take over what it says at once.
const TALK_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest sleep of the thread that answers, which is woken when it is to end.
const SLICE: Duration = Duration::from_secs(1);
/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
const QUESTION_BYTES_MAX: u64 = 256;

#[derive(Debug)]
pub(crate) struct Inspection {
    inspector: Arc<Inspector>,
    stop: Arc<AtomicBool>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    _requests: Option<RequestWatch>,
}

#[derive(Debug)]
struct Inspector {
    member: JobMember,
    opened: Instant,
    /// The groups that this process has a rank in.
    groups: Mutex<Vec<Weak<Poison>>>,
}

impl Inspection {
    pub(crate) fn open(env: &RankEnv, on_signal: RecordOnSignal) -> io::Result<Self> {
        let name = SocketName::of(env);
        let listener = listen_abstract(&name.to_string())?;
        listener.set_nonblocking(true)?;
        let (handle, waited_for) = (Handle::of(&listener)?, Handle::of(&listener)?);
        let inspector = Arc::new(Inspector {
            member: JobMember::of(env, &name),
            opened: clock::now(),
            groups: Mutex::default(),
        });
        let stop = Arc::new(AtomicBool::new(false));
        let (inspector_there, stopped) = (Arc::clone(&inspector), Arc::clone(&stop));
        let thread = thread::spawn(&format!("bonfire-ask-{}", env.rank), move || {
            while !stopped.load(Ordering::Acquire) {
                inspector_there.serve(&listener, &waited_for);
            }
        })?;
        let inspector_there = Arc::clone(&inspector);
        Ok(Self {
            inspector,
            stop,
            handle,
            thread: Some(thread),
            _requests: signal::watch(on_signal, env, move || inspector_there.record_all()),
        })
    }

    pub(crate) fn add(&self, group: &Arc<Poison>) {
        let mut groups = self.inspector.groups.lock();
        groups.retain(|known| known.strong_count() > 0);
        groups.push(Arc::downgrade(group));
    }
}

impl Drop for Inspection {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.handle.hang_up();
        if let Some(thread) = self.thread.take() {
            // It is asleep, or about to give up on the process it talks to.
            let _ = thread.join();
        }
    }
}

impl Inspector {
    fn serve(&self, listener: &UnixListener, handle: &Handle) {
        if await_news(&[handle], SLICE).is_empty() {
            return;
        }
        match listener.accept() {
            // Whoever does not listen to the answer does not need it.
            Ok((stream, _)) => drop(self.answer(stream)),
            // Without a descriptor for it, the connection stays news.
            Err(_) => thread::sleep(ACCEPT_PAUSE),
        }
    }

    fn answer(&self, mut stream: UnixStream) -> io::Result<()> {
        if !is_of_this_user(&stream) {
            return Ok(());
        }
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(TALK_TIMEOUT))?;
        stream.set_write_timeout(Some(TALK_TIMEOUT))?;
        let mut text = Vec::new();
        (&stream).take(QUESTION_BYTES_MAX).read_to_end(&mut text)?;
        let answer = match serde_json::from_slice(&text)? {
            Question::Who => serde_json::to_vec(&self.member())?,
            Question::Group { number, operations_max } => {
                serde_json::to_vec(&self.report(number, operations_max))?
            }
        };
        stream.write_all(&answer)
    }

    fn member(&self) -> JobMember {
        JobMember {
            age: clock::since(self.opened),
            groups: self.groups().keys().copied().collect(),
            ..self.member.clone()
        }
    }

    /// What the ranks of a group do; nothing if this process is in none with this number any more.
    fn report(&self, number: u32, operations_max: usize) -> Option<GroupReport> {
        query::report(self.groups().get(&number)?, operations_max)
    }

    fn groups(&self) -> BTreeMap<u32, Arc<Poison>> {
        let groups: Vec<Arc<Poison>> =
            self.groups.lock().iter().filter_map(Weak::upgrade).collect();
        let numbered = |group: Arc<Poison>| Some((group.bond()?.number, group));
        groups.into_iter().filter_map(numbered).collect()
    }
}
