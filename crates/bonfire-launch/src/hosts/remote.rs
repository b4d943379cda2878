//! Starts this very command on each host of a hostfile, over the system's ssh, and ends it there.
//!
//! Each host gets a script on the standard input of a shell, so that the job's token is on no command line.
//! When that input ends, as it does with this process or its connection, the script asks the launcher of its
//! host to end, which gives the ranks time to save.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bonfire_collective::JobToken;
use bonfire_plan::Rank;
use bonfire_sys::process::{ChildProcess, ChildSignal, Guard, Interrupt};

use super::{Host, STARTED_OVER_SSH, is_local};
use crate::agent::{Signals, Wish};
use crate::environment::{JOB_TOKEN, JOB_TOKEN_FILE, job_token_from_env};
use crate::error::LaunchError;
use crate::failure::Exit;
use crate::output::{Channel, ErrorDedup, Relay, Screen, Sink, Tail};
use crate::ranks::VISIBLE_DEVICES;

/// The port at which the ranks meet unless the user says another, as DeepSpeed's launcher has it.
const PORT: &str = "29500";
/// How long the launchers of the other hosts may take to notice a failure by themselves.
const HEAR_WAIT: Duration = Duration::from_secs(45);
const OUTPUT_WAIT: Duration = Duration::from_secs(2);
/// The exit code of ssh where it did not reach the host.
const SSH_FAILED: i32 = 255;

/// What of this process's environment goes to the other hosts.
const HANDED_ON: [&str; 10] = [
    "BONFIRE_",
    "BURN_",
    "CUBECL_",
    "CUDA_",
    "LD_LIBRARY_PATH",
    "NCCL_",
    "PET_",
    "RAYON_",
    "RUST_",
    "TOKIO_",
];

/// A job on the hosts of a file.
#[derive(Clone, Debug)]
pub struct HostsOfFile {
    pub(crate) hosts: Vec<Host>,
    pub(crate) ssh_arguments: Vec<String>,
}

enum Event {
    Ended(usize),
    Wished(Wish),
}

/// What runs for a host: ssh, or a shell of this host.
struct Remote {
    host: String,
    child: ChildProcess,
    input: Option<ChildStdin>,
    relays: Vec<JoinHandle<()>>,
}

impl HostsOfFile {
    /// Starts `program` with `arguments`, this process's own, on each host, and returns when all have ended. On
    /// the hosts it finds its place in the environment.
    pub fn run(&self, program: &OsStr, arguments: &[OsString]) -> Result<(), LaunchError> {
        let signals = Signals::watch()?;
        let token = job_token_from_env()?.map_or_else(JobToken::random, Ok)?;
        let guard = Arc::new(Guard::start()?);
        let screen = Arc::new(Screen::standard(None));
        let (sender, events) = sync_channel(self.hosts.len() + 16);
        let wishes = sender.clone();
        let _listening = signals.listen(move |wish| {
            let _ = wishes.try_send(Event::Wished(wish));
        });
        let mut remotes = Vec::new();
        for (node, host) in self.hosts.iter().enumerate() {
            let script = self.script(node, &token, program, arguments)?;
            let remote = self.start(host, &script, node, &sender, &guard, &screen)?;
            remotes.push(remote);
        }
        let result = watch(&mut remotes, &events);
        let deadline = Instant::now() + OUTPUT_WAIT;
        for relay in remotes.iter_mut().flat_map(|remote| remote.relays.drain(..)) {
            while !relay.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
        }
        result
    }

    fn start(
        &self,
        host: &Host,
        script: &[u8],
        node: usize,
        events: &SyncSender<Event>,
        guard: &Arc<Guard>,
        screen: &Arc<Screen>,
    ) -> Result<Remote, LaunchError> {
        let mut command = self.shell(&host.name);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = command.get_program().to_owned();
        let mut child = ChildProcess::spawn(command, guard)
            .map_err(|source| LaunchError::Spawn { program: program.into(), rank: 0, source })?;
        let mut input = child.take_stdin().expect("it was asked for");
        // One that has ended already says so by its end.
        let _ = input.write_all(script);
        let relay = |channel| Relay {
            rank: Rank::new(u32::try_from(node).unwrap_or(u32::MAX)),
            prefix: format!("[{}] ", host.name),
            channel,
            screen: Arc::clone(screen),
            dedup: Arc::new(ErrorDedup::default()),
            tail: Tail::default(),
            sink: Sink { file: None, is_shown: true },
        };
        let (output, error) = (child.take_stdout(), child.take_stderr());
        let relays = [
            relay(Channel::Output).start(output.expect("it was asked for"))?,
            relay(Channel::Error).start(error.expect("it was asked for"))?,
        ];
        let (watch, events) = (child.exit_watch(), events.clone());
        thread::Builder::new().name(format!("bonfire-wait-{node}")).spawn(move || {
            if watch.wait().is_ok() {
                let _ = events.send(Event::Ended(node));
            }
        })?;
        Ok(Remote { host: host.name.clone(), child, input: Some(input), relays: relays.into() })
    }

    /// A shell of a host, which reads what it is to do.
    fn shell(&self, host: &str) -> Command {
        if is_local(host) {
            let mut command = Command::new("/bin/sh");
            command.arg("-s");
            return command;
        }
        let mut command = Command::new("ssh");
        command.args(&self.ssh_arguments);
        // Nobody is there to type a password.
        command.args(["-T", "-o", "BatchMode=yes", "--", host, "exec /bin/sh -s"]);
        command
    }

    fn script(
        &self,
        node: usize,
        token: &JobToken,
        program: &OsStr,
        arguments: &[OsString],
    ) -> io::Result<Vec<u8>> {
        let host = &self.hosts[node];
        let mut script = b"main() {\ncd ".to_vec();
        quote(&mut script, std::env::current_dir()?.as_os_str());
        script.extend_from_slice(b" || exit 1\n");
        let mut export = |name: &str, value: &OsStr| {
            script.extend_from_slice(format!("export {name}=").as_bytes());
            quote(&mut script, value);
            script.push(b'\n');
        };
        for (name, value) in std::env::vars_os() {
            let name = name.to_string_lossy();
            let is_handed_on = HANDED_ON.iter().any(|prefix| name.starts_with(prefix));
            if is_handed_on && is_name(&name) && ![JOB_TOKEN, JOB_TOKEN_FILE].contains(&&*name) {
                export(&name, &value);
            }
        }
        let exported = |name: &str| std::env::var_os(name);
        let of_this_host = |name: &str, text: String| exported(name).unwrap_or_else(|| text.into());
        export(JOB_TOKEN, token.to_hex().as_ref());
        export(STARTED_OVER_SSH, "1".as_ref());
        export("PET_NNODES", self.hosts.len().to_string().as_ref());
        export("PET_NODE_RANK", node.to_string().as_ref());
        export("PET_MASTER_ADDR", &of_this_host("PET_MASTER_ADDR", self.hosts[0].name.clone()));
        export("PET_MASTER_PORT", &of_this_host("PET_MASTER_PORT", PORT.to_owned()));
        export("BONFIRE_NPROC", host.slots.len().to_string().as_ref());
        if let Some(devices) = host.visible_devices() {
            export(VISIBLE_DEVICES, devices.as_ref());
        }
        quote(&mut script, program);
        for argument in arguments {
            script.push(b' ');
            quote(&mut script, argument);
        }
        script.extend_from_slice(WAIT.as_bytes());
        Ok(script)
    }
}

/// The launcher of the host runs beside one that waits for the end of the input. A shell gives what runs beside it
/// no input, so that is kept under another number.
const WAIT: &str = " </dev/null 3<&- &
job=$!
{ cat <&3; kill -TERM $job; } >/dev/null 2>&1 &
wait $job
status=$?
kill $! 2>/dev/null
exit $status
}
exec 3<&0
main
";

/// Waits for the end of all, and ends those that others would wait for in vain.
fn watch(remotes: &mut [Remote], events: &Receiver<Event>) -> Result<(), LaunchError> {
    let mut running = remotes.len();
    let mut first: Option<LaunchError> = None;
    let mut interrupted: Option<Interrupt> = None;
    let mut deadline: Option<Instant> = None;
    while running > 0 {
        let left =
            deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        match events.recv_timeout(left) {
            Ok(Event::Ended(node)) => {
                running -= 1;
                let Some(exit) = Exit::of_failure(remotes[node].child.reap()?) else {
                    continue;
                };
                let wait = match exit {
                    Exit::Code(SSH_FAILED) => Duration::ZERO,
                    _ => HEAR_WAIT,
                };
                let host = remotes[node].host.clone();
                first.get_or_insert(LaunchError::Host { host, exit });
                let at = Instant::now() + wait;
                deadline = Some(deadline.map_or(at, |deadline| deadline.min(at)));
            }
            Ok(Event::Wished(Wish::End(by))) if interrupted.is_none() => {
                interrupted = Some(by);
                hang_up(remotes);
            }
            Ok(Event::Wished(Wish::End(_))) => {
                for remote in remotes.iter() {
                    remote.child.signal_group(ChildSignal::Kill)?;
                }
            }
            Ok(Event::Wished(Wish::Stop)) => {
                tracing::warn!("a job on several hosts cannot be stopped, only ended");
            }
            Err(RecvTimeoutError::Timeout) => {
                hang_up(remotes);
                deadline = None;
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("this process keeps a sender"),
        }
    }
    match (interrupted, first) {
        (Some(by), _) => Err(LaunchError::Interrupted { by }),
        (None, Some(error)) => Err(error),
        (None, None) => Ok(()),
    }
}

fn hang_up(remotes: &mut [Remote]) {
    for remote in remotes {
        remote.input = None;
    }
}

fn is_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A word that a shell takes as it is.
fn quote(script: &mut Vec<u8>, word: &OsStr) {
    script.push(b'\'');
    for &byte in word.as_bytes() {
        match byte {
            b'\'' => script.extend_from_slice(br"'\''"),
            byte => script.push(byte),
        }
    }
    script.push(b'\'');
}
