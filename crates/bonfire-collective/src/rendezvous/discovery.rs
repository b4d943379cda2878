//! How ranks of one host find rank 0's store without a port that somebody must choose: rank 0 sends
//! it to processes that ask at a Unix-domain socket named by the job.
//!
//! Only processes of the same user get an answer, and only a process of the same user is believed:
//! the kernel says who is at the other end. So the token that goes this way stays within the user.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bonfire_plan::Rank;

use super::ConnectError;
use super::store_address::{StoreAddress, TEXT_BYTES_MAX};
use crate::options::place::RankEnv;
use bonfire_connect::platform::net::{
    Handle, UnixListener, await_news, connect_abstract, is_of_this_user, listen_abstract,
};
use bonfire_connect::platform::thread::{self, JoinHandle};
use bonfire_connect::secure::token::JobToken;

/// Longest sleep of the thread that answers.
const ANSWER_SLICE: Duration = Duration::from_millis(100);
/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// How long either end may take over a line of text.
const TALK_TIMEOUT: Duration = Duration::from_secs(2);

/// Answers other ranks until it is dropped.
#[derive(Debug)]
pub(super) struct Discovery {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Discovery {
    pub(super) fn serve(env: &RankEnv, store_address: &StoreAddress) -> Result<Self, ConnectError> {
        let system = |source| ConnectError::System { call: "bind", source };
        let listener = listen_abstract(&name(env)).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => ConnectError::RankTaken { rank: env.rank },
            _ => system(error),
        })?;
        listener.set_nonblocking(true).map_err(system)?;
        let handle = Handle::of(&listener).map_err(system)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, text) = (Arc::clone(&stop), store_address.to_string());
        let thread = thread::spawn("bonfire-find", move || {
            answer(&listener, &handle, &text, &stopped);
        })
        .map_err(ConnectError::Thread)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(listener: &UnixListener, handle: &Handle, text: &str, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        if await_news(&[handle], ANSWER_SLICE).is_empty() {
            continue;
        }
        let Ok((mut stream, _)) = listener.accept() else {
            // Without a descriptor for it, the connection stays news.
            thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        // A process that gets no answer, or does not read it, is not a rank of this job.
        if is_of_this_user(&stream) && stream.set_write_timeout(Some(TALK_TIMEOUT)).is_ok() {
            let _ = stream.write_all(text.as_bytes());
        }
    }
}

pub(super) fn ask(env: &RankEnv) -> Result<Option<StoreAddress>, ConnectError> {
    let Ok(stream) = connect_abstract(&name(env)) else {
        return Ok(None);
    };
    if !is_of_this_user(&stream) {
        // Somebody has taken the name, which only their end can free.
        return Err(ConnectError::RankTaken { rank: Rank::new(0) });
    }
    let mut text = String::new();
    let read = stream
        .set_read_timeout(Some(TALK_TIMEOUT))
        .and_then(|()| stream.take(TEXT_BYTES_MAX as u64).read_to_string(&mut text));
    Ok(read.ok().and_then(|_| text.parse().ok()))
}

/// The name depends on all that distinguishes jobs, users and attempts, and says none of it.
fn name(env: &RankEnv) -> String {
    let user = rustix::process::geteuid().as_raw();
    let (job, attempt) = (&env.job_id, env.restart_count);
    let name = JobToken::empty().for_job(&format!("discovery {user} {attempt} {job}"));
    format!("bonfire-discovery-{}", &name.to_hex()[..32])
}
