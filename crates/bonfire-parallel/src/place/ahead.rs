//! Reads parameters from a file before they are used.
//!
//! A thread reads what came next the last time, parameters of no more bytes together than the largest has. Reading one
//! takes up to three times its bytes for a moment: as the file has it, aligned, and transposed. Waiting for the thread
//! is waiting for the disk.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use bonfire_collective::Mutex;
use burn::tensor::TensorData;
use burn_store::bridge;
use burn_store::burn_pack::Tensor as StoredTensor;

/// The maximum number of parameters that are read ahead: enough for the small ones of several layers.
const AHEAD_MAX: usize = 16;

type Read = Result<TensorData, String>;

/// Forward and backward passes use parameters in different orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pass {
    Forward,
    Backward,
}

/// Parameters that stay in files, by their numbers.
pub(super) struct ReadAhead {
    stored: Arc<HashMap<usize, StoredTensor>>,
    ahead_bytes_max: usize,
    state: Mutex<State>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    /// `None` when the thread is to end.
    wanted: Option<SyncSender<usize>>,
    read: Receiver<Read>,
    /// Requests to the thread, in that order.
    ahead: VecDeque<usize>,
    last: Option<(Pass, usize)>,
    /// The parameter that came next the last time.
    next: HashMap<(Pass, usize), usize>,
}

impl std::fmt::Debug for ReadAhead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadAhead({} parameters)", self.stored.len())
    }
}

impl ReadAhead {
    pub(super) fn new(stored: HashMap<usize, StoredTensor>) -> Self {
        let stored = Arc::new(stored);
        let (wanted, asked) = sync_channel::<usize>(AHEAD_MAX);
        let (done, read) = sync_channel(AHEAD_MAX);
        let files = Arc::clone(&stored);
        let read_all = move || {
            for index in asked {
                if done.send(values(&files[&index])).is_err() {
                    return;
                }
            }
        };
        let builder = thread::Builder::new().name("bonfire-read-ahead".to_owned());
        // Without a thread nothing is read ahead.
        let thread = if stored.is_empty() { None } else { builder.spawn(read_all).ok() };
        Self {
            ahead_bytes_max: stored.values().map(StoredTensor::byte_len).max().unwrap_or(0),
            stored,
            state: Mutex::new(State {
                wanted: thread.is_some().then_some(wanted),
                read,
                ahead: VecDeque::new(),
                last: None,
                next: HashMap::new(),
            }),
            thread,
        }
    }

    pub(super) fn take(&self, index: usize, pass: Pass) -> Read {
        let mut state = self.state.lock();
        if let Some((last_pass, last)) = state.last
            && last_pass == pass
        {
            state.next.insert((pass, last), index);
        }
        state.last = Some((pass, index));
        let mut found = None;
        // What was read for nothing goes: the order has changed.
        while found.is_none()
            && let Some(first) = state.ahead.pop_front()
        {
            let Ok(values) = state.read.recv() else {
                state.wanted = None;
                state.ahead.clear();
                break;
            };
            found = (first == index).then_some(values);
        }
        self.ask(&mut state, index, pass);
        drop(state);
        found.unwrap_or_else(|| values(&self.stored[&index]))
    }

    /// Requests the parameters that came next the last time.
    fn ask(&self, state: &mut State, index: usize, pass: Pass) {
        let bytes = |index: &usize| self.stored[index].byte_len();
        let mut ahead_bytes: usize = state.ahead.iter().map(bytes).sum();
        let mut last = *state.ahead.back().unwrap_or(&index);
        while state.ahead.len() < AHEAD_MAX
            && let Some(&next) = state.next.get(&(pass, last))
            && next != index
            && !state.ahead.contains(&next)
        {
            ahead_bytes += bytes(&next);
            let is_asked = |wanted: &SyncSender<usize>| wanted.send(next).is_ok();
            if ahead_bytes > self.ahead_bytes_max || !state.wanted.as_ref().is_some_and(is_asked) {
                return;
            }
            state.ahead.push_back(next);
            last = next;
        }
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.wanted = None;
        state.read = sync_channel(0).1;
        drop(state);
        // It reads one parameter to its end at most; a panic of it was an error of its caller.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn values(stored: &StoredTensor) -> Read {
    bridge::to_data(stored).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Shape};
    use burn_store::burn_pack::Error;

    use super::*;

    /// Which parameters were read, and whether by the thread.
    type Reads = Arc<Mutex<Vec<(usize, bool)>>>;

    /// Parameters of so many numbers, each of which is that of the parameter; the last cannot be read.
    fn files(counts: &[usize]) -> (ReadAhead, Reads) {
        let reads = Reads::default();
        let stored = |(index, &count): (usize, &usize)| {
            let (reads, last) = (Arc::clone(&reads), counts.len() - 1);
            let read = move || {
                let by_thread = thread::current().name() == Some("bonfire-read-ahead");
                reads.lock().push((index, by_thread));
                if index == last {
                    Err(Error::IoError("gone".to_owned()))
                } else {
                    Ok(TensorData::new(vec![index as f32; count], [count]))
                }
            };
            let shape = Shape::from([count]);
            let name = index.to_string();
            (index, bridge::deferred(name, DType::F32, shape, None, read))
        };
        let ahead = ReadAhead::new(counts.iter().enumerate().map(stored).collect());
        (ahead, reads)
    }

    fn pass(ahead: &ReadAhead, order: impl IntoIterator<Item = usize>) {
        for index in order {
            let values = ahead.take(index, Pass::Forward).unwrap();
            assert_eq!(values.try_to_vec::<f32>().unwrap()[0], index as f32);
        }
    }

    #[test]
    fn what_came_next_the_last_time_is_read_while_this_is_used() {
        // A small one goes with the one before it.
        let (ahead, reads) = files(&[9, 9, 2, 7, 9]);
        let read = |by_thread: bool| {
            let reads = std::mem::take(&mut *reads.lock()).into_iter();
            let reads = reads.filter(|(_, thread)| *thread == by_thread);
            reads.map(|(index, _)| index).collect::<Vec<_>>()
        };
        pass(&ahead, 0..4);
        assert_eq!(read(false), [0, 1, 2, 3]);
        pass(&ahead, 0..1);
        assert_eq!(read(false), [0]);
        // 1 is there or on its way, and all that follow.
        pass(&ahead, 1..4);
        pass(&ahead, 0..4);
        assert!(read(false).is_empty());
        // 0 is read for nothing, and the order is another from now on.
        pass(&ahead, [2, 1, 0]);
        pass(&ahead, [2, 1, 0, 2, 1, 0]);
        let _ = read(false);
        pass(&ahead, [2, 1, 0, 2, 1, 0]);
        assert!(read(false).is_empty());
    }

    #[test]
    fn who_asks_gets_the_error() {
        let (ahead, _) = files(&[3, 3]);
        for _ in 0..3 {
            pass(&ahead, 0..1);
            let error = ahead.take(1, Pass::Forward).unwrap_err();
            assert!(error.contains("gone"), "{error}");
        }
    }
}
