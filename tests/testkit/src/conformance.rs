//! What every transport must do, whatever it is made of.
//!
//! [`check_all`] runs on every rank of a group and panics at the first wrong bit. It returns a digest
//! of all results; two transports conform to each other when their digests are equal.

mod operations;

use bonfire_collective::{ProcessGroup, ReduceOp};
use bonfire_plan::shard_range;
use half::{bf16, f16};

use crate::oracle::{Sample, scramble};

/// Whether results must have the bits of the canonical order, or may differ by rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    /// Folded over ranks 0..n-1 and rounded once.
    Canonical,
    /// Any fixed order: all ranks agree bit for bit, and exact types are exact.
    AnyOrder,
}

/// Runs the whole suite; the digest of all results.
///
/// # Panics
/// At the first result that is wrong.
pub fn check_all(group: &ProcessGroup, bits: Bits) -> u64 {
    let mut digest = Digest(0);
    check_type::<f32>(group, bits, &mut digest);
    check_type::<f64>(group, bits, &mut digest);
    check_type::<f16>(group, bits, &mut digest);
    check_type::<bf16>(group, bits, &mut digest);
    check_type::<i32>(group, Bits::Canonical, &mut digest);
    check_type::<i64>(group, Bits::Canonical, &mut digest);
    check_type::<u8>(group, Bits::Canonical, &mut digest);
    check_type::<u32>(group, Bits::Canonical, &mut digest);
    check_type::<i8>(group, Bits::Canonical, &mut digest);
    check_type::<i16>(group, Bits::Canonical, &mut digest);
    check_type::<u16>(group, Bits::Canonical, &mut digest);
    check_type::<u64>(group, Bits::Canonical, &mut digest);
    check_type::<bool>(group, Bits::Canonical, &mut digest);
    if bits == Bits::Canonical {
        operations::check_buffers(group, &mut digest);
    }
    check_order(group);
    check_bytes(group);
    digest.0
}

/// The operations that move most, on data of many chunks of the default size and of lengths around
/// their edges; the digest of all results.
///
/// # Panics
/// At the first result that is wrong.
pub fn check_large(group: &ProcessGroup) -> u64 {
    let mut digest = Digest(0);
    // In elements of 4 bytes: about a frame in two pieces, one that cannot be cut evenly, a chunk
    // and a bit, and many chunks.
    for len in [8 << 10, 25_003, (64 << 10) + 1, 300_007] {
        check_reductions::<f32>(group, len, ReduceOp::Sum, true, &mut digest);
        check_moves::<i32>(group, len, &mut digest);
        operations::check_moves_of_blocks::<u32>(group, len, &mut digest);
    }
    check_order(group);
    digest.0
}

/// Lengths around every edge: of the shards, and (with small chunks) of chunks and slots.
fn lengths(group: &ProcessGroup) -> Vec<usize> {
    let world_size = group.world_size().len();
    let mut lengths = vec![0, 1, world_size - 1, world_size, world_size + 1, 1009, 4096];
    lengths.dedup();
    lengths
}

struct Digest(u64);

impl Digest {
    fn add<T: Sample>(&mut self, elements: &[T]) {
        for byte in bytemuck::cast_slice::<T, u8>(elements) {
            self.0 = scramble(self.0 ^ u64::from(*byte));
        }
    }
}

fn sample<T: Sample>(rank: usize, len: usize) -> Vec<T> {
    (0..len).map(|index| T::sample((rank * 1_000_003 + index) as u64)).collect()
}

fn reduced<T: Sample>(group: &ProcessGroup, len: usize, reduce: ReduceOp) -> Vec<T> {
    let ranks: Vec<Vec<T>> = (0..group.world_size().len()).map(|rank| sample(rank, len)).collect();
    let element = |index: usize| {
        let values: Vec<T> = ranks.iter().map(|rank| rank[index]).collect();
        T::reduce(&values, reduce)
    };
    (0..len).map(element).collect()
}

fn check_type<T: Sample>(group: &ProcessGroup, bits: Bits, digest: &mut Digest) {
    for len in lengths(group) {
        for reduce in ReduceOp::ALL.iter().copied().filter(|op| op.supports(T::DTYPE)) {
            // The oracle's order only matters where additions round.
            let exact = bits == Bits::Canonical || matches!(reduce, ReduceOp::Min | ReduceOp::Max);
            check_reductions::<T>(group, len, reduce, exact, digest);
        }
        check_moves::<T>(group, len, digest);
        operations::check_operations::<T>(group, len.min(300), digest);
    }
}

fn check_reductions<T: Sample>(
    group: &ProcessGroup,
    len: usize,
    reduce: ReduceOp,
    exact: bool,
    digest: &mut Digest,
) {
    let me = group.rank();
    let what = format!("{reduce} of {len} {} on rank {me}", T::DTYPE);
    let mut data: Vec<T> = sample(me.index(), len);
    group.all_reduce(&mut data, reduce).expect("all_reduce");
    if exact {
        assert_eq!(data, reduced::<T>(group, len, reduce), "all_reduce, {what}");
    }
    let (input, mut output) = (sample::<T>(me.index(), len), vec![T::zeroed(); len]);
    let reduced_into = group.all_reduce_into(&input, &mut output, reduce);
    reduced_into.expect("all_reduce_into");
    assert_eq!(output, data, "all_reduce_into, {what}");
    assert_eq!(input, sample::<T>(me.index(), len), "its input, {what}");
    let bytes: &[u8] = bytemuck::cast_slice(&data);
    for theirs in group.all_gather_bytes(bytes).expect("all_gather_bytes") {
        assert_eq!(theirs, bytes, "ranks differ after all_reduce, {what}");
    }
    digest.add(&data);
    operations::check_reduction_forms(group, reduce, &data, exact);

    let work = group.background(sample::<T>(me.index(), len), move |group, data| {
        group.all_reduce(data, reduce)
    });
    assert_eq!(
        work.wait().expect("all_reduce in the background"),
        data,
        "all_reduce in the background, {what}"
    );

    let own = shard_range(len, group.world_size(), me).as_range();
    let shard = group.reduce_scatter(&sample::<T>(me.index(), len), reduce).expect("scatter");
    assert_eq!(shard.len(), own.len(), "reduce_scatter length, {what}");
    if exact {
        assert_eq!(shard, data[own], "reduce_scatter, {what}");
    }
    let work = group.background(sample::<T>(me.index(), len), move |group, data| {
        *data = group.reduce_scatter(data, reduce)?;
        Ok(())
    });
    assert_eq!(work.wait().expect("reduce_scatter"), shard, "in the background, {what}");
}

fn check_moves<T: Sample>(group: &ProcessGroup, len: usize, digest: &mut Digest) {
    let me = group.rank();
    let gathered = group.all_gather(&sample::<T>(me.index(), len)).expect("all_gather");
    let expected: Vec<T> =
        (0..group.world_size().len()).flat_map(|rank| sample(rank, len)).collect();
    assert_eq!(gathered, expected, "all_gather of {len} {} on rank {me}", T::DTYPE);
    digest.add(&gathered);
    for root in group.world_size().ranks() {
        let mut data: Vec<T> = sample(me.index(), len);
        group.broadcast(&mut data, root).expect("broadcast");
        assert_eq!(data, sample::<T>(root.index(), len), "broadcast from {root} on rank {me}");
        digest.add(&data);
    }
}

/// Blocking and background operations mixed run in the order of the calls.
fn check_order(group: &ProcessGroup) {
    let ranks = i64::from(group.world_size().get());
    let works: Vec<_> = (0..50)
        .map(|step| {
            group.background(vec![step], |group, data| group.all_reduce(data, ReduceOp::Sum))
        })
        .collect();
    let mut last = [50_i64];
    group.all_reduce(&mut last, ReduceOp::Sum).expect("all_reduce");
    assert!(works.iter().all(|work| work.is_completed()), "a later blocking call overtook");
    assert_eq!(last, [50 * ranks]);
    for (step, work) in works.into_iter().enumerate() {
        assert_eq!(work.wait().expect("all_reduce in the background"), [step as i64 * ranks]);
    }
    group.barrier().expect("barrier");
    let last = group.background((), |group, ()| group.barrier());
    last.wait().expect("barrier in the background");
}

fn check_bytes(group: &ProcessGroup) {
    let mine = vec![group.rank().get() as u8; group.rank().index() * 3];
    let all = group.all_gather_bytes(&mine).expect("all_gather_bytes");
    for (rank, bytes) in all.iter().enumerate() {
        assert_eq!(*bytes, vec![rank as u8; rank * 3]);
    }
}
