//! How a rank is freed, on a device. Where there is none, the tests say so.

use std::{iter, thread};

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
    ready().inspect_err(|error| println!("{test} skipped: {error}")).ok()
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

/// Of four ranks all but rank 0 are freed, and their streams go on and tell it of everything, before it can know why:
/// rank 1 had not even begun.
#[test]
fn cuda_what_a_freed_rank_tells_is_not_believed() {
    let test = "cuda_what_a_freed_rank_tells_is_not_believed";
    let Some(context) = context(test) else {
        return;
    };
    for sync in [CudaSync::Stream, CudaSync::Kernel] {
        let four = WorldSize::new(4).unwrap();
        let groups = ProcessGroup::local(four, GroupOptions::default()).unwrap();
        let three = WorldSize::new(3).unwrap();
        let freed = ProcessGroup::local(three, GroupOptions::default()).unwrap();
        let freed = iter::once(None).chain(freed.into_iter().map(Some));
        let options = CudaOptions {
            sync: Some(sync),
            algorithm: Some(CudaAlgorithm::Direct),
            ..CudaOptions::default()
        };
        let body = |group: ProcessGroup, freed: Option<ProcessGroup>| {
            let neighbours = Neighbours::of(&group);
            let group = CudaGroup::new(group, &context, &neighbours, options.clone()).unwrap();
            if group.path() == CudaPath::Host {
                println!(
                    "{test} skipped: set CUDA_DEVICE_MAX_CONNECTIONS=32 for the queues of four ranks"
                );
                return;
            }
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
            // All but rank 1 wait for it on the device now.
            group.process_group().barrier().unwrap();
            let Some(freed) = freed else {
                let failed = group.synchronize();
                let is_notified = matches!(
                    &failed,
                    Err(CudaGroupError::Collective(CollectiveError::PeerFailed { rank, .. }))
                        if rank.get() == 2
                );
                assert!(is_notified, "{sync:?}: {failed:?}");
                return;
            };
            let Inner { core, .. } = &*group.inner;
            let released = group.inner.state().flags.release(&core.control);
            released.unwrap();
            // Until then no rank is freed, and what they reduce is true.
            core.control.synchronize().unwrap();
            freed.barrier().unwrap();
            if rank == 1 {
                reduce();
            }
            thread::sleep(Duration::from_millis(300));
            freed.barrier().unwrap();
            if rank == 2 {
                group.abort("it was freed long before");
            }
        };
        let body = &body;
        thread::scope(|scope| {
            for (group, freed) in groups.into_iter().zip(freed) {
                scope.spawn(move || body(group, freed));
            }
        });
    }
}

/// Rank 1 is freed from waiting for rank 2 and goes on, before its host can say anything to the others.
#[test]
fn cuda_who_gives_up_says_so_before_it_goes_on() {
    let Some(context) = context("cuda_who_gives_up_says_so_before_it_goes_on") else {
        return;
    };
    for algorithm in [CudaAlgorithm::Direct, CudaAlgorithm::OneShot, CudaAlgorithm::TwoShot] {
        let freed = ProcessGroup::local(WorldSize::new(2).unwrap(), GroupOptions::default());
        let freed = Mutex::new(freed.unwrap());
        on_ranks(3, &context, |group| {
            let elements = Elements::first(DType::F32, 1000);
            let buffer = group.allocate(4000).unwrap();
            let reduce = || {
                let queued = group.all_reduce_with(algorithm, &buffer, &elements, ReduceOp::Sum);
                queued.unwrap();
            };
            reduce();
            group.synchronize().unwrap();
            let rank = group.rank().get();
            if rank == 0 {
                reduce();
                reduce();
                let failed = group.synchronize();
                let is_notified = matches!(
                    &failed,
                    Err(CudaGroupError::Collective(CollectiveError::PeerFailed { rank, .. }))
                        if rank.get() == 1
                );
                assert!(is_notified, "{algorithm:?}: {failed:?}");
                return;
            }
            let beside = freed.lock().pop().unwrap();
            if rank == 1 {
                reduce();
                group.inner.state().flags.waiter().abort.raise();
                group.stream().synchronize().unwrap();
                reduce();
                beside.barrier().unwrap();
            } else {
                beside.barrier().unwrap();
                reduce();
                reduce();
                group.stream().synchronize().unwrap();
            }
            beside.barrier().unwrap();
            if rank == 1 {
                // By now rank 0 has a result, or waits for this.
                thread::sleep(Duration::from_millis(300));
                group.abort("it gave up long before");
            }
        });
    }
}

/// Rank 1 fails while it computes, and tells rank 0 of what it had queued only then. Rank 0 has been freed by then,
/// and has more in its queue.
#[test]
fn cuda_what_is_notified_late_holds_nobody_who_was_freed() {
    let test = "cuda_what_is_notified_late_holds_nobody_who_was_freed";
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
        group.process_group().barrier().unwrap();
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
                        Err(CudaGroupError::Collective(CollectiveError::PeerFailed { .. }))
                    ),
                    "{failed:?}"
                );
            } else {
                thread::sleep(Duration::from_millis(100));
                group.abort("the test says so");
            }
            // Now, and not when its guard has looked after it as well.
            let state = done.state();
            assert!(matches!(state, Ok(EventState::Done)), "rank {}: {state:?}", group.rank());
        });
    };
    let body = &body;
    thread::scope(|scope| {
        for group in groups {
            scope.spawn(move || body(group));
        }
    });
}

/// Three ranks whose elements all differ, by this algorithm: what each has then.
fn sums(context: &Context, elements: &Elements, algorithm: Option<CudaAlgorithm>) -> Vec<Vec<u8>> {
    let three = WorldSize::new(3).unwrap();
    let groups = ProcessGroup::local(three, GroupOptions::default()).unwrap();
    let body = |group: ProcessGroup| {
        let neighbours = Neighbours::of(&group);
        let options = CudaOptions::default().with_algorithm(algorithm);
        let group = CudaGroup::new(group, context, &neighbours, options).unwrap();
        let rank = group.rank().get();
        let values =
            (0..elements.range.end).map(|index| 1.0 / (index as f32 + 3.0 * rank as f32 + 1.0));
        let mut bytes: Vec<u8> = values.flat_map(f32::to_ne_bytes).collect();
        let buffer = group.allocate(bytes.len()).unwrap();
        group.stream().write(buffer.span(), &bytes).unwrap();
        // Twice, so that words of the first are there when the second begins.
        for _ in 0..2 {
            group.all_reduce(&buffer, elements, ReduceOp::Mean).unwrap();
        }
        group.synchronize().unwrap();
        group.stream().read(buffer.span(), &mut bytes).unwrap();
        bytes
    };
    let body = &body;
    thread::scope(|scope| {
        let ranks: Vec<_> =
            groups.into_iter().map(|group| scope.spawn(move || body(group))).collect();
        let ends = ranks.into_iter().map(|rank| rank.join().unwrap());
        ends.collect()
    })
}

#[test]
fn cuda_a_two_shot_has_the_bits_of_the_direct_plan() {
    let Some(context) = context("cuda_a_two_shot_has_the_bits_of_the_direct_plan") else {
        return;
    };
    // Shards that are empty, that have no packs, and that several blocks share; aligned and not.
    for range in [0..2, 3..12, 3..1006, 1..70_002] {
        let elements = Elements { dtype: DType::F32, range };
        let of = |algorithm| sums(&context, &elements, Some(algorithm));
        let (two_shot, direct) = (of(CudaAlgorithm::TwoShot), of(CudaAlgorithm::Direct));
        assert!(two_shot == direct, "{elements:?}");
    }
}

/// Runs this on as many ranks of one device that wait in kernels.
fn on_ranks(ranks: u32, context: &Context, body: impl Fn(&CudaGroup) + Sync) {
    let world_size = WorldSize::new(ranks).unwrap();
    let groups = ProcessGroup::local(world_size, GroupOptions::default()).unwrap();
    let as_rank = |group: ProcessGroup| {
        let neighbours = Neighbours::of(&group);
        let group = CudaGroup::new(group, context, &neighbours, CudaOptions::default()).unwrap();
        if group.path() == CudaPath::Host {
            println!("skipped: set CUDA_DEVICE_MAX_CONNECTIONS=32 for the queues of {ranks} ranks");
            return;
        }
        body(&group);
    };
    let as_rank = &as_rank;
    thread::scope(|scope| {
        for group in groups {
            scope.spawn(move || as_rank(group));
        }
    });
}

/// Elements of any bits, but that no float is infinite or none.
fn any(dtype: DType, count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let bytes = (0..count * dtype.size_bytes()).map(|index| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let byte = (state >> 24) as u8;
        let is_last = index % dtype.size_bytes() == dtype.size_bytes() - 1;
        match dtype {
            DType::Bool => byte & 1,
            _ if is_last => byte & !0x40,
            _ => byte,
        }
    });
    bytes.collect()
}

/// Every type with every reduction that it has, on 2 to 8 ranks.
#[test]
fn cuda_a_one_shot_has_the_bits_of_a_two_shot() {
    let Some(context) = context("cuda_a_one_shot_has_the_bits_of_a_two_shot") else {
        return;
    };
    let pairs = DType::ALL.iter().flat_map(|dtype| {
        let all = ReduceOp::ALL.iter().filter(|reduce| reduce.supports(*dtype));
        all.map(|reduce| (*dtype, *reduce))
    });
    let pairs: Vec<(DType, ReduceOp)> = pairs.collect();
    for ranks in 2..=8 {
        let pairs = pairs.iter().skip(ranks as usize - 2).step_by(7);
        on_ranks(ranks, &context, |group| {
            let buffers = [0; 2].map(|_| group.allocate(200 << 10).unwrap());
            for (case, &(dtype, reduce)) in pairs.clone().enumerate() {
                // Less than a line, aligned and not, and lines of several rounds; short ones behind long ones.
                for range in [5..20_006, 0..1, 3..10, 1..1004] {
                    let bytes = any(dtype, range.end, group.rank().get() + 8 * case as u32);
                    let elements = Elements { dtype, range };
                    let by = |buffer: &CudaBuffer, algorithm| {
                        let (stream, mut bytes) = (group.stream(), bytes.clone());
                        let span = buffer.span().part(0..bytes.len()).unwrap();
                        stream.write(&span, &bytes).unwrap();
                        let queued = group.all_reduce_with(algorithm, buffer, &elements, reduce);
                        queued.unwrap();
                        group.synchronize().unwrap();
                        stream.read(&span, &mut bytes).unwrap();
                        bytes
                    };
                    let one_shot = by(&buffers[0], CudaAlgorithm::OneShot);
                    let two_shot = by(&buffers[1], CudaAlgorithm::TwoShot);
                    assert!(one_shot == two_shot, "{ranks} ranks: {reduce} of {elements:?}");
                }
            }
        });
    }
}

#[test]
fn cuda_a_number_that_comes_again_finds_no_packets_of_before() {
    let Some(context) = context("cuda_a_number_that_comes_again_finds_no_packets_of_before") else {
        return;
    };
    on_ranks(2, &context, |group| {
        let buffer = group.allocate(4000).unwrap();
        let sum = |number: u32, count: usize| {
            group.write(&buffer, 0, &[number; 1000]).unwrap();
            let elements = Elements::first(DType::U32, count);
            let one_shot = CudaAlgorithm::OneShot;
            let queued = group.all_reduce_with(one_shot, &buffer, &elements, ReduceOp::Sum);
            queued.unwrap();
            group.synchronize().unwrap();
            let mut sums = vec![0_u32; count];
            group.read(&buffer, 0, &mut sums).unwrap();
            assert!(sums.iter().all(|sum| *sum == 2 * number), "{number}: {sums:?}");
        };
        let last = || group.inner.state().flags.numbers.last;
        sum(10, 1000);
        assert_eq!(last(), 1);
        // The next number is even, as it would be: the other rank may still read the inboxes of odd ones.
        group.inner.state().flags.numbers.last = u32::MAX - 2;
        sum(11, 1);
        sum(12, 1);
        assert_eq!(last(), u32::MAX);
        // The packets of the first sum are there, of the same number, when the other rank comes late.
        thread::sleep(Duration::from_millis(100 * u64::from(group.rank().get())));
        sum(13, 1000);
        assert_eq!(last(), 1);
    });
}

#[test]
fn cuda_sums_of_middle_size_take_a_two_shot_by_themselves() {
    let test = "cuda_sums_of_middle_size_take_a_two_shot_by_themselves";
    let Some(context) = context(test) else {
        return;
    };
    for sync in [CudaSync::Kernel, CudaSync::Stream] {
        let two = WorldSize::new(2).unwrap();
        let groups = ProcessGroup::local(two, GroupOptions::default()).unwrap();
        let options = CudaOptions::default().with_sync(Some(sync));
        thread::scope(|scope| {
            for group in groups {
                let (context, options) = (&context, options.clone());
                scope.spawn(move || {
                    let neighbours = Neighbours::of(&group);
                    let group = CudaGroup::new(group, context, &neighbours, options).unwrap();
                    let by = [64 << 10, 1 << 20, 8 << 20, 16 << 20]
                        .map(|bytes| group.algorithm_for(bytes));
                    let direct = CudaAlgorithm::Direct;
                    let expected = match sync {
                        CudaSync::Kernel => [
                            CudaAlgorithm::OneShot,
                            CudaAlgorithm::TwoShot,
                            CudaAlgorithm::TwoShot,
                            direct,
                        ],
                        // No kernel waits.
                        CudaSync::Stream => [direct; 4],
                    };
                    assert_eq!(by, expected, "{sync:?}");
                });
            }
        });
    }
}

/// The first work of a new stream may not begin while others wait, so lanes have theirs before ranks do.
#[test]
fn cuda_the_first_operation_on_new_lanes_ends() {
    const GROUPS: usize = 8;
    let Some(context) = context("cuda_the_first_operation_on_new_lanes_ends") else {
        return;
    };
    for algorithm in [CudaAlgorithm::Chain, CudaAlgorithm::Ring].repeat(GROUPS / 2) {
        on_ranks(4, &context, |group| {
            let buffer = group.allocate(64).unwrap();
            group.write(&buffer, 0, &[1_i32; 5]).unwrap();
            let elements = Elements::first(DType::I32, 5);
            let queued = group.all_reduce_with(algorithm, &buffer, &elements, ReduceOp::Sum);
            queued.unwrap();
            let mut sums = [0_i32; 5];
            group.read(&buffer, 0, &mut sums).unwrap();
            assert_eq!(sums, [4; 5], "{algorithm:?}");
        });
    }
}
