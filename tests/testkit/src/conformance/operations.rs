//! The operations that move blocks, and the forms with variable counts.

use bonfire_collective::{Blocks, ProcessGroup, Rank, ReduceOp};
use bonfire_plan::shard_range;

use super::{Digest, reduced, sample};
use crate::oracle::Sample;

/// Those in which every pair of ranks exchanges blocks, of `len` elements or of lengths around it.
pub(super) fn check_moves_of_blocks<T: Sample>(
    group: &ProcessGroup,
    len: usize,
    digest: &mut Digest,
) {
    check_all_to_all::<T>(group, len);
    check_ragged::<T>(group, len, digest);
    check_pairs::<T>(group, len);
}

/// All of them, with blocks of `len` elements, or of lengths around it.
pub(super) fn check_operations<T: Sample>(group: &ProcessGroup, len: usize, digest: &mut Digest) {
    check_gather::<T>(group, len, digest);
    check_scatter::<T>(group, len);
    check_all_to_all::<T>(group, len);
    check_ragged::<T>(group, len, digest);
    check_pairs::<T>(group, len);
}

fn block<T: Sample>(source: usize, target: usize, len: usize) -> Vec<T> {
    sample(source * 101 + target, len)
}

fn ranks(group: &ProcessGroup) -> usize {
    group.world_size().len()
}

/// Lengths that differ between ranks; some are 0.
fn ragged(source: usize, target: usize, len: usize) -> usize {
    (source * 3 + target * 5 + 1) % 4 * len / 3
}

fn check_gather<T: Sample>(group: &ProcessGroup, len: usize, digest: &mut Digest) {
    let me = group.rank();
    let mine: Vec<T> = sample(me.index(), len);
    let all: Vec<T> = (0..ranks(group)).flat_map(|rank| sample(rank, len)).collect();
    let mut output = vec![T::zeroed(); all.len()];
    group.all_gather_into(&mine, &mut output).expect("all_gather_into");
    assert_eq!(output, all, "all_gather_into on rank {me}");
    let own = shard_range(all.len(), group.world_size(), me).as_range();
    output.fill(T::zeroed());
    output[own].copy_from_slice(&mine);
    group.all_gather_in_place(&mut output).expect("all_gather_in_place");
    assert_eq!(output, all, "all_gather_in_place on rank {me}");
    for root in group.world_size().ranks() {
        let expected = (me == root).then(|| all.clone());
        let gathered = group.gather(&mine, root).expect("gather");
        assert_eq!(gathered, expected, "gather to {root} on rank {me}");
        let output = if me == root { &mut output[..] } else { &mut [] };
        output.fill(T::zeroed());
        group.gather_into(&mine, output, root).expect("gather_into");
        assert_eq!(output, expected.unwrap_or_default(), "gather_into on {me}");
    }
    digest.add(&all);
}

fn check_scatter<T: Sample>(group: &ProcessGroup, len: usize) {
    let me = group.rank();
    for root in group.world_size().ranks() {
        let all: Vec<T> =
            (0..ranks(group)).flat_map(|target| block(root.index(), target, len)).collect();
        let input = if me == root { &all[..] } else { &[] };
        let mut output = vec![T::zeroed(); len];
        group.scatter_into(input, &mut output, root).expect("scatter_into");
        let expected: Vec<T> = block(root.index(), me.index(), len);
        assert_eq!(output, expected, "scatter from {root} on rank {me}");
    }
}

fn check_all_to_all<T: Sample>(group: &ProcessGroup, len: usize) {
    let me = group.rank().index();
    let outgoing: Vec<T> = (0..ranks(group)).flat_map(|target| block(me, target, len)).collect();
    let incoming: Vec<T> = (0..ranks(group)).flat_map(|source| block(source, me, len)).collect();
    let mut data = outgoing.clone();
    group.all_to_all(&mut data).expect("all_to_all");
    assert_eq!(data, incoming, "all_to_all of {len} on rank {me}");
    data.fill(T::zeroed());
    group.all_to_all_into(&outgoing, &mut data).expect("all_to_all_into");
    assert_eq!(data, incoming, "all_to_all_into of {len} on rank {me}");
}

fn check_ragged<T: Sample>(group: &ProcessGroup, len: usize, digest: &mut Digest) {
    let me = group.rank();
    let lengths_of = |target: usize| -> Vec<usize> {
        (0..ranks(group)).map(|source| ragged(source, target, len)).collect()
    };
    let expect = |blocks: &Blocks<T>, lengths: Vec<usize>, target: usize, what: &str| {
        assert_eq!(blocks.lengths(), lengths, "{what} on rank {me}");
        for (source, received) in blocks.iter().enumerate() {
            let expected: Vec<T> = block(source, target, lengths[source]);
            assert_eq!(received, expected, "{what} on rank {me} from {source}");
        }
    };
    let mine: Vec<T> = block(me.index(), 0, ragged(me.index(), 0, len));
    let gathered = group.all_gather_v(&mine).expect("all_gather_v");
    expect(&gathered, lengths_of(0), 0, "all_gather_v");
    for root in group.world_size().ranks() {
        let gathered = group.gather_v(&mine, root).expect("gather_v");
        assert_eq!(gathered.is_some(), me == root);
        if let Some(gathered) = gathered {
            expect(&gathered, lengths_of(0), 0, "gather_v");
        }
        let lengths: Vec<usize> =
            (0..ranks(group)).map(|target| ragged(root.index(), target, len)).collect();
        let all: Vec<T> = (0..ranks(group))
            .flat_map(|target| block(root.index(), target, lengths[target]))
            .collect();
        let blocks = (me == root).then_some((&all[..], &lengths[..]));
        let scattered = group.scatter_v(blocks, root).expect("scatter_v");
        let expected: Vec<T> = block(root.index(), me.index(), lengths[me.index()]);
        assert_eq!(scattered, expected, "scatter_v from {root} on rank {me}");
    }
    let lengths: Vec<usize> =
        (0..ranks(group)).map(|target| ragged(me.index(), target, len)).collect();
    let outgoing: Vec<T> =
        (0..ranks(group)).flat_map(|target| block(me.index(), target, lengths[target])).collect();
    let received = group.all_to_all_v(&outgoing, &lengths).expect("all_to_all_v");
    expect(&received, lengths_of(me.index()), me.index(), "all_to_all_v");
    digest.add(&gathered.into_vec());
}

/// Round the ring, and between neighbours.
fn check_pairs<T: Sample>(group: &ProcessGroup, len: usize) {
    let (me, world_size) = (group.rank(), group.world_size());
    if world_size.get() == 1 {
        return;
    }
    // All send first, so what is sent must fit the slots of a link.
    if len * size_of::<T>() <= 64 {
        let (prev, next) = (world_size.prev(me), world_size.next(me));
        let outgoing: Vec<T> = block(me.index(), next.index(), len);
        let sent = group.background(outgoing, move |group, data| group.send(data, next));
        let incoming = vec![T::zeroed(); len];
        let received = group.background(incoming, move |group, data| group.recv(data, prev));
        sent.wait().expect("send in the background");
        let received = received.wait().expect("recv in the background");
        assert_eq!(received, block::<T>(prev.index(), me.index(), len));
    }
    let partner = Rank::new(me.get() ^ 1);
    if world_size.contains(partner) {
        let outgoing: Vec<T> = block(me.index(), partner.index(), len);
        let expected: Vec<T> = block(partner.index(), me.index(), len);
        let mut incoming = vec![T::zeroed(); len];
        group.exchange(partner, &outgoing, &mut incoming).expect("exchange");
        assert_eq!(incoming, expected, "exchange between {me} and {partner}");
        if me < partner {
            group.send(&outgoing, partner).expect("send");
            group.recv(&mut incoming, partner).expect("recv");
        } else {
            incoming.fill(T::zeroed());
            group.recv(&mut incoming, partner).expect("recv");
            assert_eq!(incoming, expected, "recv on {me} from {partner}");
            group.send(&outgoing, partner).expect("send");
        }
        assert_eq!(incoming, expected, "recv on {me} from {partner}");
    }
    group.barrier().expect("barrier");
}

/// Reductions in other forms than all-reduce; `expected` is what that gives.
pub(super) fn check_reduction_forms<T: Sample>(
    group: &ProcessGroup,
    reduce: ReduceOp,
    expected: &[T],
    exact: bool,
) {
    let (me, len) = (group.rank(), expected.len());
    let mine: Vec<T> = sample(me.index(), len);
    for root in group.world_size().ranks() {
        let mut data = mine.clone();
        group.reduce(&mut data, root, reduce).expect("reduce");
        if me == root && exact {
            assert_eq!(data, expected, "reduce to {root}, {reduce}");
        }
    }
    let own = shard_range(len, group.world_size(), me).as_range();
    let mut data = mine.clone();
    group.reduce_scatter_in_place(&mut data, reduce).expect("reduce_scatter_in_place");
    if exact {
        assert_eq!(data[own.clone()], expected[own], "reduce_scatter_in_place, {reduce}");
    }
    let mut lengths: Vec<usize> =
        (0..ranks(group)).map(|rank| ragged(rank, 1, len) / ranks(group)).collect();
    let rest = len - lengths.iter().sum::<usize>().min(len);
    if lengths.iter().sum::<usize>() + rest == len {
        *lengths.last_mut().expect("a rank") += rest;
        let block = group.reduce_scatter_v(&mine, &lengths, reduce).expect("reduce_scatter_v");
        let start: usize = lengths[..me.index()].iter().sum();
        assert_eq!(block.len(), lengths[me.index()]);
        if exact {
            assert_eq!(block, expected[start..start + block.len()], "reduce_scatter_v");
        }
    }
}

/// Memory of the group, many tensors at once, and a mix of memory that can and cannot be shared.
pub(super) fn check_buffers(group: &ProcessGroup, digest: &mut Digest) {
    let me = group.rank();
    // Large enough to be worked on in place.
    let len = 20_011;
    let expected = reduced::<f32>(group, len, ReduceOp::Mean);
    let mut buffer = group.buffer::<f32>(len + 5).expect("buffer");
    buffer[3..3 + len].copy_from_slice(&sample::<f32>(me.index(), len));
    group.all_reduce(&mut buffer[3..3 + len], ReduceOp::Mean).expect("in the group's memory");
    assert_eq!(buffer[3..3 + len], expected, "in the group's memory on rank {me}");
    assert_eq!([buffer[2], buffer[3 + len]], [0.0; 2], "beside it");

    // From one part of it to another on some ranks, in place on the others.
    let mut halves = group.buffer::<f32>(2 * len).expect("buffer");
    let (input, output) = halves.split_at_mut(len);
    input.copy_from_slice(&sample::<f32>(me.index(), len));
    let apart = me.index() != 1;
    let done = if apart {
        group.all_reduce_into(input, output, ReduceOp::Mean)
    } else {
        group.all_reduce(input, ReduceOp::Mean)
    };
    done.expect("apart in the group's memory");
    let result: &[f32] = if apart { output } else { input };
    assert_eq!(result, expected, "apart in the group's memory on rank {me}");

    let mut private: Vec<f32> = sample(me.index(), len);
    let mut shared = group.buffer::<f32>(len).expect("buffer");
    shared.copy_from_slice(&private);
    let mixed: &mut [f32] = if me.index() == 0 { &mut private } else { &mut shared };
    group.all_reduce(mixed, ReduceOp::Mean).expect("mixed memory");
    assert_eq!(mixed, expected, "mixed memory on rank {me}");
    digest.add(mixed);

    shared.copy_from_slice(&sample::<f32>(me.index(), len));
    let shared = group
        .background(shared, |group, data| group.all_reduce(data, ReduceOp::Mean))
        .wait()
        .expect("all_reduce in the background");
    assert_eq!(*shared, expected[..], "in the background on rank {me}");

    let lengths = [5, 0, 700, 1, 20_000];
    let mut tensors: Vec<Vec<f32>> =
        (0..lengths.len()).map(|index| sample(me.index() + 17 * index, lengths[index])).collect();
    let mut alone = tensors.clone();
    let mut views: Vec<&mut [f32]> = tensors.iter_mut().map(Vec::as_mut_slice).collect();
    group.all_reduce_coalesced(&mut views, ReduceOp::Sum).expect("all_reduce_coalesced");
    for tensor in &mut alone {
        group.all_reduce(tensor, ReduceOp::Sum).expect("all_reduce");
    }
    assert_eq!(tensors, alone, "coalesced on rank {me}");

    let own = shard_range(len, group.world_size(), me).as_range();
    let mut shard = vec![0.0; own.len()];
    let data: Vec<f32> = sample(me.index(), len);
    group.reduce_scatter_into(&data, &mut shard, ReduceOp::Mean).expect("reduce_scatter_into");
    assert_eq!(shard, expected[own], "reduce_scatter_into on rank {me}");
}
