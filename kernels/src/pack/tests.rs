//! The cutting of segments.

use super::*;

fn segment(source: u64, target: u64, elems: u64) -> Segment {
    Segment { source, target, elems }
}

#[test]
fn tiles_cover_their_segments_once() {
    let tile = (TILE_BYTES / 4) as u64;
    let segments =
        [segment(5, 0, 2 * tile + 1), segment(100_000, 50_000, 0), segment(70_000, 40_000, tile)];
    let tiles = Tiles::new(Element::F32, &segments);
    let expected =
        [[5, 0, tile], [5 + tile, tile, tile], [5 + 2 * tile, 2 * tile, 1], [70_000, 40_000, tile]];
    assert_eq!(tiles.count(), expected.len());
    assert_eq!(tiles.table(), expected.concat());
}
