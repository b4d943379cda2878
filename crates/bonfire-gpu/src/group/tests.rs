//! How a rank is freed, on a device. Where there is none, the tests say so.

use std::thread;

use bonfire_collective::{CollectiveError, GroupOptions};
use bonfire_cuda::{DeviceRegion, Driver, EventState, Nvrtc, Priority, Span, StreamOps};
use bonfire_plan::{DType, ReduceOp, WorldSize};

use super::*;

fn context(test: &str) -> Option<Context> {
    let ready = || -> Result<Context, CudaError> {
        let context = Context::retain(&Driver::load()?.device(0)?)?;
        Nvrtc::load()?;
        Ok(context)
    };
    ready()
        .inspect_err(|error| println!("{test} skipped: {error}"))
        .ok()
}

/// Something that a stream waits for, as if it computed for so long.
struct Work {
    word: Span,
    beside: Stream,
}

impl Work {
    fn new(context: &Context) -> Self {
        let word = DeviceRegion::allocate(context, 4).unwrap().span();
        let beside = Stream::new(context, Priority::High).unwrap();
        beside.fill(&word, 0).unwrap();
        beside.synchronize().unwrap();
        Self { word, beside }
    }

    fn begin(&self, stream: &Stream) {
        StreamOps::new().wait(&self.word, 1).queue(stream).unwrap();
    }

    fn end(&self) {
        let mut ops = StreamOps::new();
        ops.write(&self.word, 1).queue(&self.beside).unwrap();
    }
}

/// In a barrier ranks pass on what they have heard: of four, rank 0 hears of rank 1 by ranks 2 and 3 alone. Those
/// wait no more, and their streams go on, before rank 0 can know why.
#[test]
fn cuda_what_a_freed_rank_tells_is_not_believed() {
    let test = "cuda_what_a_freed_rank_tells_is_not_believed";
    let Some(context) = context(test) else {
        return;
    };
    for sync in [CudaSync::Stream, CudaSync::Kernel] {
        let four = WorldSize::new(4).unwrap();
        let groups = ProcessGroup::local(four, GroupOptions::default()).unwrap();
        let options = CudaOptions {
            sync: Some(sync),
            algorithm: Some(CudaAlgorithm::Direct),
            ..CudaOptions::default()
        };
        let body = |group: ProcessGroup| {
            let neighbours = Neighbours::of(&group);
            let group = CudaGroup::new(group, &context, &neighbours, options.clone()).unwrap();
            let elements = Elements::first(DType::F32, 1000);
            let buffer = group.allocate(4000).unwrap();
            let reduce = || {
                group.all_reduce(&buffer, &elements, ReduceOp::Sum).unwrap();
            };
            reduce();
            group.synchronize().unwrap();
            let rank = group.rank().get();
            if rank != 1 {
                reduce();
            }
            if rank == 0 {
                let failed = group.synchronize();
                let is_told = matches!(
                    &failed,
                    Err(CudaGroupError::Collective(CollectiveError::PeerFailed { rank, .. }))
                        if rank.get() == 2
                );
                assert!(is_told, "{sync:?}: {failed:?}");
            } else if rank != 1 {
                thread::sleep(Duration::from_millis(100));
                let Inner { core, .. } = &*group.inner;
                let freed = group.inner.state().flags.release(&core.control);
                freed.unwrap();
                thread::sleep(Duration::from_millis(300));
                if rank == 2 {
                    group.abort("it was freed long before");
                }
            }
        };
        let body = &body;
        thread::scope(|scope| {
            for group in groups {
                scope.spawn(move || body(group));
            }
        });
    }
}

/// Rank 1 fails while it computes, and tells rank 0 of what it had queued only then. Rank 0 has been freed by then,
/// and has more in its queue.
#[test]
fn cuda_what_is_told_late_holds_nobody_who_was_freed() {
    let test = "cuda_what_is_told_late_holds_nobody_who_was_freed";
    let Some(context) = context(test) else {
        return;
    };
    let two = WorldSize::new(2).unwrap();
    let groups = ProcessGroup::local(two, GroupOptions::default()).unwrap();
    let options = CudaOptions {
        sync: Some(CudaSync::Stream),
        algorithm: Some(CudaAlgorithm::Direct),
        timeout: Duration::from_secs(20),
        ..CudaOptions::default()
    };
    let body = |group: ProcessGroup| {
        let neighbours = Neighbours::of(&group);
        let group = CudaGroup::new(group, &context, &neighbours, options.clone()).unwrap();
        let buffer = group.allocate(4000).unwrap();
        let reduce = || {
            let elements = Elements::first(DType::F32, 1000);
            group.all_reduce(&buffer, &elements, ReduceOp::Sum).unwrap();
        };
        // Kernels are loaded with the first one.
        reduce();
        group.synchronize().unwrap();
        let (work, stream) = (Work::new(&context), group.stream());
        let done = Event::new(&context).unwrap();
        let (is_first, pause) = match group.rank().get() {
            0 => (true, Duration::from_millis(600)),
            _ => (false, Duration::from_millis(300)),
        };
        if is_first {
            reduce();
        }
        work.begin(&stream);
        reduce();
        stream.record(&done).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(pause);
                work.end();
            });
            if is_first {
                let failed = group.synchronize();
                assert!(
                    matches!(
                        failed,
                        Err(CudaGroupError::Collective(
                            CollectiveError::PeerFailed { .. }
                        ))
                    ),
                    "{failed:?}"
                );
            } else {
                thread::sleep(Duration::from_millis(100));
                group.abort("the test says so");
            }
            // Now, and not when its guard has looked after it as well.
            let state = done.state();
            assert!(
                matches!(state, Ok(EventState::Done)),
                "rank {}: {state:?}",
                group.rank()
            );
        });
    };
    let body = &body;
    thread::scope(|scope| {
        for group in groups {
            scope.spawn(move || body(group));
        }
    });
}
