//! Shards and chunks cut a buffer without gap or overlap, whatever the sizes.

mod support;

use bonfire_plan::{Bytes, DType, ElemRange, chunks, shard_range};
use proptest::prelude::*;
use support::{elems, world};

/// Ranges that follow one another from the start of `whole` to its end.
fn assert_tiles(whole: ElemRange, parts: &[ElemRange]) -> Result<(), TestCaseError> {
    let mut reached = whole.start();
    for part in parts {
        prop_assert_eq!(part.start(), reached);
        reached = part.end();
    }
    prop_assert_eq!(reached, whole.end());
    Ok(())
}

/// Counts near a multiple of the world, small counts, and very large ones.
fn count() -> impl Strategy<Value = usize> {
    prop_oneof![0..300_usize, 0..usize::MAX, Just(usize::MAX)]
}

proptest! {
    #[test]
    fn shards_tile_the_buffer_and_differ_by_one_at_most(count in count(), ranks in 1..200_usize) {
        let world = world(ranks);
        let shards: Vec<_> = world.ranks().map(|rank| shard_range(count, world, rank)).collect();
        assert_tiles(ElemRange::up_to(count), &shards)?;
        for (index, shard) in shards.iter().enumerate() {
            let longer = usize::from(index < count % ranks);
            prop_assert_eq!(shard.len(), count / ranks + longer);
        }
    }

    #[test]
    fn chunks_tile_a_range_and_only_the_last_is_shorter(
        start in 0..1_000_usize,
        len in 0..1_000_usize,
        chunk_elems_max in 1..1_200_usize,
    ) {
        let range = ElemRange::new(start, start + len);
        let pieces: Vec<_> = chunks(range, elems(chunk_elems_max)).collect();
        assert_tiles(range, &pieces)?;
        let (last, others) = pieces.split_last().expect("there is always a chunk");
        prop_assert!(others.iter().all(|piece| piece.len() == chunk_elems_max));
        prop_assert!(last.len() <= chunk_elems_max);
        prop_assert_eq!(last.is_empty(), range.is_empty());
        prop_assert_eq!(pieces.len(), chunks(range, elems(chunk_elems_max)).len());
    }

    #[test]
    fn chunks_do_not_overflow_at_the_end_of_the_address_space(len in 0..1_000_usize) {
        let range = ElemRange::new(usize::MAX - len, usize::MAX);
        for chunk_elems_max in [1, 7, usize::MAX] {
            let pieces: Vec<_> = chunks(range, elems(chunk_elems_max)).collect();
            assert_tiles(range, &pieces)?;
        }
    }
}

#[test]
fn an_empty_range_is_one_empty_chunk() {
    let empty = ElemRange::new(5, 5);
    assert_eq!(chunks(empty, elems(3)).collect::<Vec<_>>(), [empty]);
}

#[test]
#[should_panic(expected = "must not start behind its end")]
fn a_range_that_ends_before_it_starts_is_refused() {
    let _ = ElemRange::new(2, 1);
}

#[test]
fn bytes_print_in_binary_units() {
    let printed = |bytes| Bytes::new(bytes).to_string();
    assert_eq!(printed(0), "0 B");
    assert_eq!(printed(1023), "1023 B");
    assert_eq!(printed(1024), "1 KiB");
    assert_eq!(printed(25 << 20), "25 MiB");
    assert_eq!(printed(1536 << 20), "1.50 GiB");
    assert_eq!(printed(u64::MAX), "16.00 EiB");
    assert_eq!(Bytes::of(3, DType::F64).get(), 24);
}
