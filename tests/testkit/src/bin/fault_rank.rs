//! One rank that meets a misfortune: `fault-rank WAY FAULT [FOLDER]`, where the way is as in
//! [`bonfire_testkit::over`] and the folder is for flight records. The last rank has the fault, the others must notice
//! it. Prints `heard: ERROR` when an operation fails.

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use bonfire_collective::{ProcessGroup, ReduceOp};
use bonfire_launch::rank_from_env;
use bonfire_testkit::{Signal, Watchdog, over, signal_process};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketAddrAny, getpeername, getsockname, shutdown};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// Longer than any test waits: an error from this timeout would be the wrong one.
const TIMEOUT: Duration = Duration::from_secs(150);

/// Of the fault that is to run into it, and how long that keeps the last rank busy: so long that the
/// others give up, and that a rank counts as hanging.
const SHORT_TIMEOUT: Duration = Duration::from_secs(2);
const BUSY: Duration = Duration::from_secs(6);

/// Short, for a fault that only heartbeats find, and for how long that lasts: longer.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(4);
const STOPPED_S: u32 = 8;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("heard: {error}");
            ExitCode::from(3)
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let _watchdog = Watchdog::start("fault-rank", Duration::from_secs(200));
    let mut args = std::env::args().skip(1);
    let (Some(way), Some(fault)) = (args.next(), args.next()) else {
        return Err("usage: fault-rank WAY FAULT [FOLDER]".into());
    };
    let options = over(&way)?
        .with_timeout(TIMEOUT)
        .with_flight_dir(args.next().map(PathBuf::from))
        .with_heartbeat_timeout(Some(HEARTBEAT_TIMEOUT));
    let group = ProcessGroup::connect(&rank_from_env()?, options)?;
    let mut data = vec![1.0_f32; 100_000];
    for _ in 0..10 {
        group.all_reduce(&mut data, ReduceOp::Mean)?;
    }
    let group = match fault.as_str() {
        "busy" => group.with_timeout(SHORT_TIMEOUT),
        _ => group,
    };
    if fault == "cut" {
        for connection in tcp_connections()? {
            println!("has {} {}", connection.own_port, connection.peer_port);
        }
        group.barrier()?;
    }
    if group.rank().get() + 1 == group.world_size().get() {
        match fault.as_str() {
            "kill" => {
                // Dies as by SIGKILL: no destructor runs.
                std::process::abort();
            }
            "exit" => std::process::exit(0),
            "leave" => return Ok(()),
            "panic" => panic!("the model is not finite"),
            "abort" => {
                group.abort("the data set ended early");
                return Ok(());
            }
            "hang" => {
                println!("hanging");
                loop {
                    thread::sleep(Duration::from_secs(1));
                }
            }
            "busy" => thread::sleep(BUSY),
            "cut" => cut_a_stream()?,
            "stop" => stop_for_a_while()?,
            "none" => {}
            other => return Err(format!("unknown fault {other:?}").into()),
        }
    }
    group.all_reduce(&mut data, ReduceOp::Mean)?;
    group.barrier()?;
    Ok(())
}

/// Ends the third of this process's TCP connections, and says which it is.
fn cut_a_stream() -> Result<(), Box<dyn std::error::Error>> {
    let connections = tcp_connections()?;
    let third = connections.get(2).ok_or("there are fewer connections")?;
    println!("cuts {} {}", third.own_port, third.peer_port);
    Ok(shutdown(&third.socket, Shutdown::Both)?)
}

struct Connection {
    socket: OwnedFd,
    own_port: u16,
    peer_port: u16,
}

/// The TCP connections of this process: none but streams use TCP within a host.
fn tcp_connections() -> Result<Vec<Connection>, Errno> {
    let myself = pidfd_open(getpid(), PidfdFlags::empty())?;
    let mut connections = Vec::new();
    for number in 0..1024 {
        let socket = match pidfd_getfd(&myself, number, PidfdGetfdFlags::empty()) {
            Ok(descriptor) => descriptor,
            Err(Errno::BADF) => continue,
            Err(error) => return Err(error),
        };
        let port = |address: SocketAddrAny| Some(SocketAddrV4::try_from(address).ok()?.port());
        let ends = [getsockname(&socket).ok(), getpeername(&socket).ok().flatten()]
            .map(|end| end.and_then(port));
        if let [Some(own_port), Some(peer_port)] = ends {
            connections.push(Connection { socket, own_port, peer_port });
        }
    }
    Ok(connections)
}

/// Stops this process, which a child of it continues later.
fn stop_for_a_while() -> std::io::Result<()> {
    let me = std::process::id();
    let script = format!("sleep {STOPPED_S}; kill -CONT {me}");
    let mut child = Command::new("sh").args(["-c", &script]).spawn()?;
    signal_process(me, Signal::STOP);
    child.wait()?;
    Ok(())
}
