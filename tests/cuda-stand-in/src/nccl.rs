//! NCCL between the ranks of one host, loaded under the name `libnccl.so.2`.
//!
//! An operation is a task of its stream: there the ranks meet, each reads what the others bring, in
//! rank order, and a message waits for its receiver. As in NCCL joining continues in the
//! background, ranks on one device are refused unless `NCCL_MULTI_RANK_GPU_ENABLE` is 1, and a rank
//! that gives up frees its own stream alone. After `nccl.h` of 2.17.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::process;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::driver::context::Context;
use crate::driver::memory::{Kind, find};
use crate::driver::stream::stream_of;
use crate::table::{Table, lock};
use member::Member;
use number::{KINDS, Reduction};
use operation::{Data, Operation};

mod mailbox;
mod member;
mod note;
mod number;
mod operation;

/// A version that takes several ranks on one device.
const VERSION: c_int = 23007;

const SUCCESS: c_int = 0;
const SYSTEM_ERROR: c_int = 2;
const INVALID_ARGUMENT: c_int = 4;
const INVALID_USAGE: c_int = 5;
const REMOTE_ERROR: c_int = 6;
const IN_PROGRESS: c_int = 7;

/// The magic number of `NCCL_CONFIG_INITIALIZER`.
const MAGIC: u32 = 0xcafe_beef;

/// Has the layout of `ncclUniqueId`: a text.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

/// An `ncclConfig_t`, as far as it is looked at.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

/// What a group of calls has gathered: of which communicator, on which stream.
type Gathered = Vec<(usize, usize, Operation)>;

static MEMBERS: Table<Arc<Member>> = Table::new(0x6000_0000);

thread_local! {
    static GROUP: RefCell<Option<Gathered>> = const { RefCell::new(None) };
}

/// Queues operations of one stream of one communicator: one task, in which messages pass each other.
fn queue(gathered: Gathered) -> Result<(), c_int> {
    let mut left = gathered;
    while let Some(&(comm, stream, _)) = left.first() {
        let (own, others) =
            left.into_iter().partition::<Gathered, _>(|(c, s, _)| (*c, *s) == (comm, stream));
        left = others;
        let member = MEMBERS.get(comm).map_err(|_| INVALID_ARGUMENT)?;
        if member.state() != SUCCESS {
            return Err(INVALID_USAGE);
        }
        let stream = stream_of(stream).map_err(|_| INVALID_ARGUMENT)?;
        let operations: Vec<Operation> = own.into_iter().map(|(.., operation)| operation).collect();
        for data in operations.iter().flat_map(Operation::data) {
            check(data, stream.context)?;
        }
        stream.queue.push(move || member.perform(&operations));
    }
    Ok(())
}

/// Checks that it is memory of the device.
fn check(data: Data, context: &Context) -> Result<(), c_int> {
    match find(data.address, data.bytes) {
        Some((_, Kind::Device(device))) if device == context.device => Ok(()),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// Queues an operation, or keeps it until the group of calls ends.
fn begin(comm: *mut c_void, stream: *mut c_void, operation: Result<Operation, c_int>) -> c_int {
    let gathered = match operation {
        Ok(operation) => (comm as usize, stream as usize, operation),
        Err(code) => return code,
    };
    let now = GROUP.with_borrow_mut(|group| match group {
        Some(group) => {
            group.push(gathered);
            None
        }
        None => Some(vec![gathered]),
    });
    match now.map_or(Ok(()), queue) {
        Ok(()) => IN_PROGRESS,
        Err(code) => code,
    }
}

fn data(address: *const c_void, count: usize, kind: c_int) -> Result<Data, c_int> {
    let size = KINDS.get(kind as usize).ok_or(INVALID_ARGUMENT)?;
    Ok(Data { address: address as u64, bytes: count * size })
}

// SAFETY: the names exported from this file are NCCL's, and a process has one NCCL.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetVersion(version: Option<&mut c_int>) -> c_int {
    version.map_or(INVALID_ARGUMENT, |version| {
        *version = VERSION;
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetUniqueId(id: Option<&mut UniqueId>) -> c_int {
    static NEXT: Mutex<u64> = Mutex::new(0);
    let Some(id) = id else {
        return INVALID_ARGUMENT;
    };
    let number = {
        let mut next = lock(&NEXT);
        *next += 1;
        *next
    };
    // Processes that do not see each other may have the same number.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let text = format!("stand-in NCCL {now} {} {number}", process::id());
    id.0 = [0; 128];
    id.0[..text.len()].copy_from_slice(text.as_bytes());
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRankConfig(
    comm: Option<&mut usize>,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: Option<&Config>,
) -> c_int {
    let (Some(comm), Some(config), Ok(context)) = (comm, config, Context::current()) else {
        return INVALID_ARGUMENT;
    };
    let config_fits = config.size >= size_of::<Config>()
        && (config.magic, config.blocking) == (MAGIC, 0)
        && config.version as c_int <= VERSION;
    if !config_fits || !(0..ranks).contains(&rank) {
        return INVALID_ARGUMENT;
    }
    let group = String::from_utf8_lossy(&id.0);
    let group = group.trim_end_matches('\0');
    match Member::join(rank as usize, group, ranks as usize, context.device as u64) {
        Ok(member) => {
            *comm = MEMBERS.insert(member);
            IN_PROGRESS
        }
        Err(_) => SYSTEM_ERROR,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGetAsyncError(comm: usize, state: Option<&mut c_int>) -> c_int {
    let (Ok(member), Some(state)) = (MEMBERS.get(comm), state) else {
        return INVALID_ARGUMENT;
    };
    *state = member.state();
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(comm: usize) -> c_int {
    let Ok(member) = MEMBERS.remove(comm) else {
        return INVALID_ARGUMENT;
    };
    member.leave();
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> c_int {
    GROUP.set(Some(Vec::new()));
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> c_int {
    let Some(gathered) = GROUP.take() else {
        return INVALID_USAGE;
    };
    match queue(gathered) {
        Ok(()) => IN_PROGRESS,
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllReduce(
    source: *const c_void,
    target: *mut c_void,
    count: usize,
    kind: c_int,
    op: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> c_int {
    let operation = data(source, count, kind).and_then(|from| {
        let to = data(target, count, kind)?;
        let reduction = Reduction::new(kind, op).ok_or(INVALID_ARGUMENT)?;
        Ok(Operation::reduce([from, to], reduction, None))
    });
    begin(comm, stream, operation)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclReduce(
    source: *const c_void,
    target: *mut c_void,
    count: usize,
    kind: c_int,
    op: c_int,
    root: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> c_int {
    let operation = data(source, count, kind).and_then(|from| {
        let to = data(target, count, kind)?;
        let reduction = Reduction::new(kind, op).ok_or(INVALID_ARGUMENT)?;
        Ok(Operation::reduce([from, to], reduction, Some(root as usize)))
    });
    begin(comm, stream, operation)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclBroadcast(
    source: *const c_void,
    target: *mut c_void,
    count: usize,
    kind: c_int,
    root: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> c_int {
    let operation = data(source, count, kind).and_then(|from| {
        let to = data(target, count, kind)?;
        Ok(Operation::broadcast([from, to], root as usize))
    });
    begin(comm, stream, operation)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclSend(
    source: *const c_void,
    count: usize,
    kind: c_int,
    peer: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> c_int {
    let operation = data(source, count, kind).map(|from| Operation::send(from, peer as usize));
    begin(comm, stream, operation)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclRecv(
    target: *mut c_void,
    count: usize,
    kind: c_int,
    peer: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> c_int {
    let operation = data(target, count, kind).map(|to| Operation::recv(to, peer as usize));
    begin(comm, stream, operation)
}
