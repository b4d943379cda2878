//! What the machine itself can do, as the measure beside an all-reduce of two ranks.
//!
//! The limits are measured with as few instructions as the task allows and nothing else: no frames,
//! no checks, no waits but busy ones. Call them in the run that they are compared with, because a
//! figure of this kind changes with the neighbours of a machine and with its temperature.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bonfire_sys::{Arena, Block, streaming};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

/// Buffers rotate through no more than this many, which small sizes would reach.
const BUFFERS_MAX: usize = 512;

/// Rounds of a measurement at most; small sizes reach it first.
const ROUNDS_MAX: usize = 2_000;

/// Bytes that a measurement moves in all, so that large sizes do not take minutes.
const MOVED_BYTES: usize = 2 << 30;

/// Rounds of a measurement at least.
const ROUNDS_MIN: usize = 10;

/// The most that one read or write of the loopback exchange asks for. Larger calls keep the other
/// direction waiting, smaller ones are system calls for nothing: 3.3 GB/s each way at 16 MB with
/// this, 1.9 with a megabyte, 1.2 with 64 KiB (two cores of a Sapphire Rapids server, 2026-11-21).
const CALL_BYTES_MAX: usize = 256 << 10;

/// How far sending may be ahead of receiving. Without a bound the bytes under way leave the caches,
/// and the same machine drops from 3.3 to 1.9 GB/s.
const AHEAD_BYTES_MAX: usize = 256 << 10;

/// Kernel buffer of each direction; fixed, because one that grows lets the bytes under way grow.
const SOCKET_BUFFER_BYTES: usize = 2 << 20;

/// How much memory the buffers of each rank take together: they take turns, so that no round finds
/// its data in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The memory of one rank.
    pub bytes: usize,
}

impl Default for Rotation {
    /// More than common last-level caches hold.
    fn default() -> Self {
        Self { bytes: 192 << 20 }
    }
}

impl Rotation {
    fn buffers_of(self, bytes: usize) -> usize {
        self.bytes.div_ceil(bytes.max(1)).clamp(2, BUFFERS_MAX)
    }
}

/// A measured bandwidth in GB/s, comparable with the algbw of an all-reduce of as many bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Of the fastest round: what the machine can do.
    pub best: f64,
    /// Of the median round: what to compare a median with.
    pub median: f64,
}

impl Limit {
    fn of(bytes: usize, mut rounds: Vec<Duration>) -> Self {
        assert!(!rounds.is_empty(), "a limit of {bytes} bytes needs rounds");
        rounds.sort_unstable();
        let gb_per_s = |time: Duration| bytes as f64 / time.as_secs_f64().max(1e-9) / 1e9;
        Self { best: gb_per_s(rounds[0]), median: gb_per_s(rounds[rounds.len() / 2]) }
    }
}

fn rounds_of(bytes: usize) -> usize {
    (MOVED_BYTES / bytes.max(1)).clamp(ROUNDS_MIN, ROUNDS_MAX)
}

/// Two threads exchange `bytes` over one TCP connection of the loopback device, both directions at
/// once, without ever sleeping: the bytes that a rank of an all-reduce of two sends and receives.
///
/// # Panics
/// If the loopback device has no connection to give, or `bytes` is 0.
pub fn loopback_duplex(bytes: usize, rotation: Rotation) -> Limit {
    loopback_of(bytes, rounds_of(bytes), rotation)
}

fn loopback_of(bytes: usize, rounds: usize, rotation: Rotation) -> Limit {
    assert!(bytes > 0, "an exchange of nothing has no bandwidth");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port on loopback");
    let address = listener.local_addr().expect("the listener is bound");
    let near = TcpStream::connect(address).expect("loopback connects");
    let (far, _) = listener.accept().expect("loopback connects");
    let gate = Gate::default();
    let gate = &gate;
    let rounds = thread::scope(|scope| {
        scope.spawn(move || exchange_rounds(far, bytes, rounds, rotation, gate));
        exchange_rounds(near, bytes, rounds, rotation, gate)
    });
    Limit::of(bytes, rounds)
}

fn exchange_rounds(
    mut stream: TcpStream,
    bytes: usize,
    rounds: usize,
    rotation: Rotation,
    gate: &Gate,
) -> Vec<Duration> {
    stream.set_nodelay(true).expect("a TCP option");
    stream.set_nonblocking(true).expect("a socket option");
    set_socket_send_buffer_size(&stream, SOCKET_BUFFER_BYTES).expect("a socket option");
    set_socket_recv_buffer_size(&stream, SOCKET_BUFFER_BYTES).expect("a socket option");
    let buffers = rotation.buffers_of(bytes);
    // Written once, so that every page is there and no two are the same page of zeros.
    let mut data = vec![vec![1_u8; bytes]; buffers];
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds {
        gate.pass();
        let started = Instant::now();
        let [outgoing, incoming] = data
            .get_disjoint_mut([round % buffers, (round + 1) % buffers])
            .expect("at least two buffers rotate");
        exchange(&mut stream, outgoing, incoming);
        // Until the other side has everything too: what is left in the buffers counts.
        gate.pass();
        times.push(started.elapsed());
    }
    times
}

/// Sends all of `outgoing` and fills `incoming`, looking at both directions in turn.
fn exchange(stream: &mut TcpStream, outgoing: &[u8], incoming: &mut [u8]) {
    let (mut sent, mut received) = (0, 0);
    while sent < outgoing.len() || received < incoming.len() {
        if sent < outgoing.len() && sent < received + AHEAD_BYTES_MAX {
            let end = outgoing.len().min(sent + CALL_BYTES_MAX);
            sent += moved(stream.write(&outgoing[sent..end]));
        }
        if received < incoming.len() {
            let end = incoming.len().min(received + CALL_BYTES_MAX);
            received += moved(stream.read(&mut incoming[received..end]));
        }
    }
}

/// Bytes that a call moved; none when the kernel has no room or no data at the moment.
fn moved(result: std::io::Result<usize>) -> usize {
    match result {
        Ok(0) => panic!("the other thread of the exchange is gone"),
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
        Err(error) => panic!("the exchange broke: {error}"),
    }
}

/// Two threads add two buffers of f32 in place, `bytes` each: each thread reads its half of both and
/// writes the sum to both, which is all the memory traffic that an all-reduce of two ranks needs. The
/// buffers are in huge pages where the kernel has them.
///
/// # Panics
/// If `bytes` is less than one element.
pub fn in_place_sum(bytes: usize, rotation: Rotation) -> Limit {
    sum_of(bytes, rounds_of(bytes), rotation)
}

fn sum_of(bytes: usize, rounds: usize, rotation: Rotation) -> Limit {
    let count = bytes / size_of::<f32>();
    assert!(count > 0, "a sum of nothing has no bandwidth");
    let buffers = rotation.buffers_of(bytes);
    let [mut first, mut second] = [1.0, 0.5].map(|value| filled(buffers * count, value));
    let (mut low, mut high) = (Vec::new(), Vec::new());
    for (a, b) in first.chunks_mut(count).zip(second.chunks_mut(count)) {
        let (a_low, a_high) = a.split_at_mut(count / 2);
        let (b_low, b_high) = b.split_at_mut(count / 2);
        low.push((a_low, b_low));
        high.push((a_high, b_high));
    }
    both(bytes, rounds, [low, high], |(a, b)| {
        for (a, b) in a.iter_mut().zip(b.iter_mut()) {
            // Half of the sum, so that the numbers stay where they are however often they are added.
            let sum = (*a + *b) * 0.5;
            *a = sum;
            *b = sum;
        }
    })
}

/// As [`in_place_sum`], with the sums written to two other buffers by streaming stores.
///
/// # Panics
/// If `bytes` is less than one element.
pub fn streamed_sum(bytes: usize, rotation: Rotation) -> Limit {
    streamed_of(bytes, rounds_of(bytes), rotation)
}

fn streamed_of(bytes: usize, rounds: usize, rotation: Rotation) -> Limit {
    let count = bytes / size_of::<f32>();
    assert!(count > 0, "a sum of nothing has no bandwidth");
    let buffers = rotation.buffers_of(bytes);
    let [first, second, mut one, mut other] =
        [1.0, 0.5, 0.0, 0.0].map(|value| filled(buffers * count, value));
    let (mut low, mut high) = (Vec::new(), Vec::new());
    let inputs = first.chunks(count).zip(second.chunks(count));
    let outputs = one.chunks_mut(count).zip(other.chunks_mut(count));
    for ((a, b), (c, d)) in inputs.zip(outputs) {
        let (c_low, c_high) = c.split_at_mut(count / 2);
        let (d_low, d_high) = d.split_at_mut(count / 2);
        low.push(([&a[..count / 2], &b[..count / 2]], [c_low, d_low]));
        high.push(([&a[count / 2..], &b[count / 2..]], [c_high, d_high]));
    }
    both(bytes, rounds, [low, high], |([a, b], targets)| {
        let mut targets = targets.each_mut().map(|it| bytemuck::cast_slice_mut(it));
        streaming::write(&mut targets, &mut [0.0_f32; 1024], |range, sums| {
            for ((sum, a), b) in sums.iter_mut().zip(&a[range.clone()]).zip(&b[range]) {
                *sum = a + b;
            }
        });
    })
}

/// `count` elements, in huge pages where the kernel has them.
fn filled(count: usize, value: f32) -> Block<f32> {
    let room = count * size_of::<f32>() + (4 << 20);
    let arena = Arena::for_threads(room).expect("addresses for a measurement");
    let mut block = arena.allocate(count).expect("memory for a measurement");
    block.fill(value);
    block
}

/// Two threads, each of which does the work of its half in turn on one buffer after another.
fn both<W: Send>(
    bytes: usize,
    rounds: usize,
    halves: [Vec<W>; 2],
    work: impl Fn(&mut W) + Sync,
) -> Limit {
    let gate = Gate::default();
    let run = |mut half: Vec<W>| -> Vec<Duration> {
        let mut times = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let len = half.len();
            gate.pass();
            let started = Instant::now();
            work(&mut half[round % len]);
            // Until the other half is there too: an all-reduce is done when both are.
            gate.pass();
            times.push(started.elapsed());
        }
        times
    };
    let [low, high] = halves;
    let times = thread::scope(|scope| {
        let run = &run;
        scope.spawn(move || run(low));
        run(high)
    });
    Limit::of(bytes, times)
}

/// A barrier of two threads that only ever spins.
#[derive(Debug, Default)]
struct Gate {
    arrivals: AtomicUsize,
}

impl Gate {
    fn pass(&self) {
        // AcqRel and Acquire: what either thread did before the gate, the other sees after it.
        let arrival = self.arrivals.fetch_add(1, Ordering::AcqRel);
        let both = (arrival / 2 + 1) * 2;
        while self.arrivals.load(Ordering::Acquire) < both {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Watchdog;

    /// Far beyond what a small measurement takes.
    const LIMIT: Duration = Duration::from_secs(120);

    #[test]
    fn the_limits_are_positive_and_the_best_round_is_the_best() {
        let _watchdog = Watchdog::start("limits", LIMIT);
        for bytes in [4, 100_000, 1 << 20] {
            let rotation = Rotation { bytes: 1 << 22 };
            for limit in [
                loopback_of(bytes, 5, rotation),
                sum_of(bytes, 5, rotation),
                streamed_of(bytes, 5, rotation),
            ] {
                assert!(limit.best.is_finite() && limit.median > 0.0, "{bytes} bytes: {limit:?}");
                assert!(limit.best >= limit.median, "{bytes} bytes: {limit:?}");
            }
        }
    }

    #[test]
    fn an_exchange_moves_every_byte_both_ways() {
        let _watchdog = Watchdog::start("exchange", LIMIT);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|index| (index % 251) as u8).collect();
        let reversed: Vec<u8> = bytes.iter().rev().copied().collect();
        let (mut here, mut there) = (vec![0; bytes.len()], vec![0; bytes.len()]);
        thread::scope(|scope| {
            scope.spawn(|| exchange(&mut far, &reversed, &mut there));
            exchange(&mut near, &bytes, &mut here);
        });
        assert!(here == reversed, "the near side has other bytes");
        assert!(there == bytes, "the far side has other bytes");
    }
}
