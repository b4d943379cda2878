//! Streams: each a queue with a thread.

use std::sync::Arc;

use crate::calls::tell;
use crate::driver::context::Context;
use crate::driver::event::EVENTS;
use crate::queue::Queue;
use crate::status::{Status, done, give};
use crate::table::Table;

static STREAMS: Table<Stream> = Table::new(0x5000_0000);

/// The default stream's handles: none, the legacy one and the one of a thread.
const DEFAULT: [usize; 3] = [0, 1, 2];

#[derive(Clone)]
pub(crate) struct Stream {
    pub(crate) context: &'static Context,
    pub(crate) queue: Arc<Queue>,
}

pub(crate) fn stream_of(handle: usize) -> Result<Stream, Status> {
    if DEFAULT.contains(&handle) {
        let context = Context::current()?;
        let queue = context.default_queue();
        return Ok(Stream { context, queue });
    }
    Ok(Stream::clone(&*STREAMS.get(handle)?))
}

fn create(stream: Option<&mut usize>) -> Result<(), Status> {
    let context = Context::current()?;
    let queue = context.new_queue();
    give(stream, STREAMS.insert(Stream { context, queue }))
}

// SAFETY: the names exported from this file are the driver's, and a process has one driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(stream: Option<&mut usize>, _flags: u32) -> Status {
    tell("cuStreamCreate");
    done(create(stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreateWithPriority(
    stream: Option<&mut usize>,
    _flags: u32,
    _priority: i32,
) -> Status {
    tell("cuStreamCreateWithPriority");
    done(create(stream))
}

/// Work that is left continues to run.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: usize) -> Status {
    tell("cuStreamDestroy_v2");
    done(STREAMS.remove(stream).map(|stream| stream.queue.close()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: usize) -> Status {
    tell("cuStreamSynchronize");
    done(stream_of(stream).map(|stream| stream.queue.wait()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: usize) -> Status {
    tell("cuStreamQuery");
    done(
        stream_of(stream)
            .and_then(|stream| if stream.queue.is_idle() { Ok(()) } else { Err(Status::NotReady) }),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _flags: u32) -> Status {
    tell("cuStreamWaitEvent");
    done(stream_of(stream).and_then(|stream| {
        if let Some(tick) = EVENTS.get(event)?.tick() {
            stream.queue.wait_for(tick);
        }
        Ok(())
    }))
}
