//! A thousand strangers at the door while a job runs: it runs on. With `--nocapture` it prints the time
//! of a step with and without them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use bonfire_collective::{
    GroupOptions, JobToken, ProcessGroup, ReduceOp, TcpStoreServer, TransportKind,
};
use bonfire_testkit::{Watchdog, env_of};

const STRANGERS: usize = 1000;

/// Times that steps are measured with and without them, in turn.
const ROUNDS: usize = 6;

const STEPS: usize = 200;

/// Connections that never prove anything: silent ones, some that send noise, some that begin as a rank
/// would and stop halfway.
fn flood(address: SocketAddr) -> Vec<TcpStream> {
    let connect = |index: usize| {
        let mut stream = TcpStream::connect(address).ok()?;
        // Who is not heard any more may find the connection closed.
        let _ = match index % 3 {
            0 => Ok(()),
            1 => stream.write_all(&[0xa5; 4096]),
            _ => stream.write_all(&[7; 40]),
        };
        Some(stream)
    };
    (0..STRANGERS).filter_map(connect).collect()
}

/// The median time of a step: a small all-reduce and one of 256 KiB.
fn step_time(group: &ProcessGroup) -> Duration {
    let mut small = [1.0_f32; 4];
    let mut large = vec![1.0_f32; 64 << 10];
    let mut times: Vec<Duration> = (0..STEPS)
        .map(|_| {
            let started = Instant::now();
            group.all_reduce(&mut small, ReduceOp::Mean).unwrap();
            group.all_reduce(&mut large, ReduceOp::Mean).unwrap();
            started.elapsed()
        })
        .collect();
    assert_eq!((small, large[7]), ([1.0; 4], 1.0));
    times.sort_unstable();
    times[STEPS / 2]
}

#[test]
fn a_job_runs_on_while_a_thousand_strangers_knock() {
    let _watchdog = Watchdog::start("flood", Duration::from_secs(240));
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let token = JobToken::random().unwrap();
        let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), &token).unwrap();
        let turn = Barrier::new(3);
        let (server, turn) = (&server, &turn);
        let ratio = thread::scope(|scope| {
            let ranks = [0, 1].map(|rank| {
                let env = env_of(rank, 2, server, &token);
                scope.spawn(move || {
                    let options = GroupOptions::default().with_transport(Some(transport));
                    let group = ProcessGroup::connect(&env, options).unwrap();
                    let measure = |_| {
                        turn.wait();
                        let time = step_time(&group);
                        turn.wait();
                        time
                    };
                    (0..2 * ROUNDS).map(measure).collect::<Vec<_>>()
                })
            });
            let mut came = usize::MAX;
            for round in 0..2 * ROUNDS {
                let strangers = match round % 2 {
                    0 => Vec::new(),
                    _ => flood(server.local_addr()),
                };
                if round % 2 == 1 {
                    came = came.min(strangers.len());
                }
                turn.wait();
                turn.wait();
            }
            assert!(came > STRANGERS / 2, "only {came} could connect");
            let times = ranks.map(|rank| rank.join().unwrap());
            let median = |odd: usize| {
                let mut times: Vec<Duration> =
                    times[0].iter().skip(odd).step_by(2).copied().collect();
                times.sort_unstable();
                times[ROUNDS / 2].as_secs_f64() * 1e6
            };
            let (without, with) = (median(0), median(1));
            println!(
                "{transport}: a step takes {without:.0} us, with {came} strangers {with:.0} us"
            );
            with / without
        });
        println!("{transport}: ratio {ratio:.2}");
    }
}
