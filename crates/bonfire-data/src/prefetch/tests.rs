//! Workers of different speed, workers that fail, and epochs that end early.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use bonfire_collective::{Rank, WorldSize};

use super::*;
use crate::{DistributedSampler, Loader};

fn loader(len: usize, batch_size: usize) -> Loader {
    let sampler = DistributedSampler::of(Rank::new(0), WorldSize::ONE, len);
    Loader::of(sampler, batch_size).with_shuffle(1)
}

fn config(workers: usize, depth: usize) -> Prefetch {
    Prefetch { workers, depth, timeout: Duration::from_secs(60) }
}

#[test]
fn batches_keep_their_order_and_their_state() {
    for (workers, depth) in [(0, 0), (1, 1), (3, 7), (4, 100)] {
        let mut plain = loader(50, 3).next_epoch();
        // Early batches take longest.
        let slow_start = AtomicUsize::new(20);
        let prefetched = loader(50, 3)
            .next_epoch()
            .prefetch(config(workers, depth), move |indices| {
                let left = slow_start.fetch_sub(1, Ordering::Relaxed) as u64;
                thread::sleep(Duration::from_micros(100 * left));
                Ok::<_, BoxError>(indices.iter().sum::<usize>())
            })
            .unwrap();
        assert_eq!(prefetched.len(), plain.len());
        for prepared in prefetched {
            let Prepared { batch, indices, state } = prepared.unwrap();
            assert_eq!(indices, plain.next().unwrap());
            assert_eq!(batch, indices.iter().sum::<usize>());
            assert_eq!(state, plain.state());
        }
        assert_eq!(plain.next(), None);
    }
}

#[test]
fn batches_are_prepared_ahead_but_not_further_than_asked() {
    let prepared = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&prepared);
    let mut batches = loader(100, 1)
        .next_epoch()
        .prefetch(config(2, 5), move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok::<_, BoxError>(())
        })
        .unwrap();
    let wait_for = |expected: usize| {
        let started = Instant::now();
        while prepared.load(Ordering::SeqCst) < expected {
            assert!(started.elapsed() < Duration::from_secs(60), "nothing is prepared");
            thread::yield_now();
        }
    };
    wait_for(5);
    assert_eq!(prepared.load(Ordering::SeqCst), 5);
    batches.next().unwrap().unwrap();
    wait_for(6);
    assert_eq!(prepared.load(Ordering::SeqCst), 6);
}

#[test]
fn an_error_and_a_panic_of_a_worker_come_with_their_batch() {
    let prepare = |indices: &[usize]| match indices[0] {
        7 => Err("cannot read image 7"),
        8 => panic!("index out of range"),
        _ => Ok(()),
    };
    let batches = loader(20, 1).next_epoch().prefetch(config(2, 4), prepare);
    let mut failed = Vec::new();
    let order: Vec<usize> = loader(20, 1).next_epoch().flatten().collect();
    for (index, batch) in order.into_iter().zip(batches.unwrap()) {
        if let Err(error) = batch {
            failed.push((index, error.to_string()));
        }
    }
    failed.sort();
    assert_eq!(failed.len(), 2);
    assert!(failed[0].0 == 7 && failed[0].1.contains("cannot read image 7"));
    assert!(failed[1].0 == 8 && failed[1].1.contains("panicked: index out of range"));
}

#[test]
fn a_batch_that_hangs_is_an_error() {
    let short = Prefetch { timeout: Duration::from_millis(50), ..config(1, 1) };
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    let mut batches = loader(4, 1)
        .next_epoch()
        .prefetch(short, move |_| {
            let _ = held.lock().unwrap().recv();
            Ok::<_, BoxError>(())
        })
        .unwrap();
    let error = batches.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("longer than 50ms"), "{error}");
    drop(batches);
    drop(release);
}

#[test]
fn workers_stop_when_the_rest_is_dropped() {
    let prepared = Arc::new(AtomicUsize::new(0));
    let (count, alive) = (Arc::clone(&prepared), Arc::downgrade(&prepared));
    let batches = loader(1000, 1)
        .next_epoch()
        .prefetch(config(2, 1000), move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(20));
            Ok::<_, BoxError>(())
        })
        .unwrap();
    drop(batches);
    let started = Instant::now();
    // What they hold on to goes with them.
    while alive.strong_count() > 1 {
        assert!(started.elapsed() < Duration::from_secs(60), "they work on");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(prepared.load(Ordering::SeqCst) < 1000);
}
