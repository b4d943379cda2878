//! Words that streams wait for and write.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use std::{hint, slice, thread};

use crate::calls::tell;
use crate::driver::memory::{self, Kind, find};
use crate::driver::stream::{Stream, stream_of};
use crate::settings::{Fault, Settings};
use crate::status::{Status, done};

/// A `CUstreamBatchMemOpParams`: the fields that its members share.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Operation {
    kind: u32,
    address: u64,
    value: u64,
    flags: u32,
    alias: u64,
    padding: u64,
}

const _: () = assert!(size_of::<Operation>() == 48);

const WAIT_32: u32 = 1;
const WRITE_32: u32 = 2;
const WAIT_64: u32 = 4;
const WRITE_64: u32 = 5;

/// The driver takes no more in one call.
const BATCH_MAX: usize = 256;

/// How a word is compared with a value, by the low bits of the flags.
#[derive(Clone, Copy)]
enum Condition {
    Reached,
    Equal,
    And,
    Nor,
}

impl Condition {
    fn of(flags: u32) -> Result<Self, Status> {
        match flags & 3 {
            _ if flags > 3 => Err(Status::NotSupported),
            0 => Ok(Self::Reached),
            1 => Ok(Self::Equal),
            2 => Ok(Self::And),
            _ => Ok(Self::Nor),
        }
    }

    /// Words of 32 bits come in the upper half, so that one comparison goes round both sizes.
    fn holds(self, word: u64, value: u64, unused: u64) -> bool {
        match self {
            Self::Reached => word.wrapping_sub(value).cast_signed() >= 0,
            Self::Equal => word == value,
            Self::And => word & value != 0,
            Self::Nor => !(word | value | unused) != 0,
        }
    }
}

/// A word in memory that devices reach.
#[derive(Clone, Copy)]
enum Word {
    Half(&'static AtomicU32),
    Whole(&'static AtomicU64),
}

impl Word {
    fn at(stream: &Stream, address: u64, bytes: u64) -> Result<Self, Status> {
        if !address.is_multiple_of(bytes) {
            return Err(Status::InvalidValue);
        }
        memory::check_word(stream.context, address, bytes as usize)?;
        let pointer = address as usize;
        Ok(if bytes == 4 {
            // SAFETY: the word is aligned and lies in memory that stays until the streams of its device are
            // idle; everybody treats words that others wait for as atomics.
            Self::Half(unsafe { AtomicU32::from_ptr(pointer as *mut u32) })
        } else {
            // SAFETY: as above.
            Self::Whole(unsafe { AtomicU64::from_ptr(pointer as *mut u64) })
        })
    }

    fn write(self, value: u64) {
        // Everything before it in the stream was done by this thread, or is ordered before it by a lock.
        match self {
            Self::Half(word) => word.store(value as u32, Ordering::Release),
            Self::Whole(word) => word.store(value, Ordering::Release),
        }
    }

    /// Other processes write the word too, so it is looked at again and again.
    fn wait(self, condition: Condition, value: u64) {
        let (mut looks, mut nap) = (0, Duration::from_micros(10));
        loop {
            let holds = match self {
                Self::Half(word) => {
                    let word = u64::from(word.load(Ordering::Acquire)) << 32;
                    condition.holds(word, value << 32, u64::from(u32::MAX))
                }
                Self::Whole(word) => condition.holds(word.load(Ordering::Acquire), value, 0),
            };
            if holds {
                return;
            }
            looks += 1;
            if looks < 100 {
                hint::spin_loop();
            } else {
                thread::sleep(nap);
                nap = (nap * 2).min(Duration::from_micros(200));
            }
        }
    }
}

/// Whether a word is in the memory of another device or process.
fn is_elsewhere(stream: &Stream, address: u64, bytes: u64) -> bool {
    match find(address, bytes as usize) {
        Some((_, Kind::Device(device))) => device != stream.context.device,
        Some((_, Kind::Imported(_))) => true,
        _ => false,
    }
}

fn queue(stream: &Stream, operation: Operation) -> Result<(), Status> {
    let Operation { kind, address, value, flags, alias: _, padding: _ } = operation;
    let bytes = match kind {
        WAIT_32 | WRITE_32 => 4,
        WAIT_64 | WRITE_64 => 8,
        _ => return Err(Status::NotSupported),
    };
    let settings = Settings::get();
    if settings.has(Fault::NoStreamOps) {
        return Err(Status::NotSupported);
    }
    let word = Word::at(stream, address, bytes)?;
    if matches!(kind, WRITE_32 | WRITE_64) {
        if settings.has(Fault::LostWords) && is_elsewhere(stream, address, bytes) {
            return Ok(());
        }
        stream.queue.push(move || word.write(value));
    } else {
        let condition = Condition::of(flags)?;
        stream.queue.push(move || word.wait(condition, value));
    }
    Ok(())
}

// SAFETY: the names exported from this file are the driver's, and a process has one driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBatchMemOp_v2(
    stream: usize,
    count: u32,
    operations: *const Operation,
    _flags: u32,
) -> Status {
    tell("cuStreamBatchMemOp_v2");
    done(stream_of(stream).and_then(|stream| {
        let count = count as usize;
        if operations.is_null() || count > BATCH_MAX {
            return Err(Status::InvalidValue);
        }
        // SAFETY: the caller's array has `count` elements, and any bytes are one.
        let operations = unsafe { slice::from_raw_parts(operations, count) };
        operations.iter().try_for_each(|operation| queue(&stream, *operation))
    }))
}

fn one(stream: usize, kind: u32, address: u64, flags: u32, value: u64) -> Status {
    let operation = Operation { kind, address, value, flags, alias: 0, padding: 0 };
    done(stream_of(stream).and_then(|stream| queue(&stream, operation)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitValue32_v2(
    stream: usize,
    address: u64,
    value: u32,
    flags: u32,
) -> Status {
    tell("cuStreamWaitValue32_v2");
    one(stream, WAIT_32, address, flags, value.into())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWriteValue32_v2(
    stream: usize,
    address: u64,
    value: u32,
    flags: u32,
) -> Status {
    tell("cuStreamWriteValue32_v2");
    one(stream, WRITE_32, address, flags, value.into())
}
