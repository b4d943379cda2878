//! The cutting of segments, and the reference.

use super::*;

fn segment(source: u64, target: u64, elems: u64) -> Segment {
    Segment {
        source,
        target,
        elems,
    }
}

#[test]
fn tiles_cover_their_segments_once() {
    let tile = (TILE_BYTES / 4) as u64;
    let segments = [
        segment(5, 0, 2 * tile + 1),
        segment(100_000, 50_000, 0),
        segment(70_000, 40_000, tile),
    ];
    let tiles = Tiles::new(Element::F32, &segments);
    let expected = [
        [5, 0, tile],
        [5 + tile, tile, tile],
        [5 + 2 * tile, 2 * tile, 1],
        [70_000, 40_000, tile],
    ];
    assert_eq!(tiles.count(), expected.len());
    assert_eq!(tiles.table(), expected.concat());
}

#[test]
fn unpacking_is_packing_reversed() {
    let segments = [segment(1, 4, 2), segment(6, 0, 3)];
    let source = [10_u16, 11, 12, 13, 14, 15, 16, 17, 18];
    let mut bucket = [0; 6];
    reference(&segments, &source, &mut bucket);
    assert_eq!(bucket, [16, 17, 18, 0, 11, 12]);
    let mut back = [0; 9];
    reference(&segments.map(Segment::reversed), &bucket, &mut back);
    assert_eq!(back, [0, 11, 12, 0, 0, 0, 16, 17, 18]);
}
