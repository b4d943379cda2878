//! Golden tables, and what cannot be.

use super::*;

fn world(ranks: u32) -> WorldSize {
    WorldSize::new(ranks).unwrap()
}

fn grid(text: &str, ranks: u32) -> Result<Grid, MeshError> {
    text.parse::<MeshShape>()?.over(world(ranks))
}

/// A line per mesh of so many ranks: its sizes, and then the coordinates of all ranks.
fn table(ranks: u32) -> String {
    let divisors: Vec<u32> = (1..=ranks).filter(|size| ranks.is_multiple_of(*size)).collect();
    let mut lines = String::new();
    let mut sizes = vec![vec![]];
    for _ in Axis::ALL {
        let longer = sizes.iter().flat_map(|start: &Vec<u32>| {
            divisors.iter().map(|size| [&start[..], &[*size]].concat())
        });
        sizes = longer.collect();
    }
    for sizes in sizes {
        if sizes.iter().product::<u32>() != ranks {
            continue;
        }
        let text: Vec<String> =
            Axis::ALL.iter().zip(&sizes).map(|(axis, size)| format!("{axis}={size}")).collect();
        let grid = grid(&text.join(","), ranks).unwrap();
        let places = grid.world_size().ranks().map(|rank| {
            let place = grid.coordinates(rank);
            assert_eq!(grid.rank(place), rank);
            place.map(|place| place.to_string()).concat()
        });
        let places: Vec<String> = places.collect();
        lines += &format!("{sizes:?} {}\n", places.join(" "));
    }
    lines
}

/// The tables were made by another program, `golden.py` beside them.
#[test]
fn ranks_are_where_the_golden_tables_say() {
    assert_eq!(table(8), include_str!("golden/8.txt"));
    assert_eq!(table(12), include_str!("golden/12.txt"));
}

#[test]
fn neighbours_differ_on_one_axis() {
    let grid = grid("pp=2,dp_replicate=2,dp_shard=3,tp=2", 24).unwrap();
    let ranks = |ranks: &[u32]| ranks.iter().copied().map(Rank::new).collect::<Vec<_>>();
    let own = Rank::new(15);
    assert_eq!(grid.coordinates(own), [1, 0, 1, 0, 1]);
    assert_eq!(grid.along(own, Axis::Pp), ranks(&[3, 15]));
    assert_eq!(grid.along(own, Axis::DpReplicate), ranks(&[15, 21]));
    assert_eq!(grid.along(own, Axis::DpShard), ranks(&[13, 15, 17]));
    assert_eq!(grid.along(own, Axis::Cp), ranks(&[15]));
    assert_eq!(grid.along(own, Axis::Tp), ranks(&[14, 15]));
    assert_eq!(grid.data(own), ranks(&[13, 15, 17, 19, 21, 23]));
}

#[test]
fn texts_are_read_and_written() {
    for (text, ranks, written) in [
        ("pp=2,dp=2,tp=2", 8, "pp=2,dp_shard=2,tp=2"),
        ("tp=2, dp = 4", 8, "dp_shard=4,tp=2"),
        ("dp=-1,tp=2", 12, "dp_shard=6,tp=2"),
        ("tp=-1", 1, "dp_shard=1"),
        ("dp_replicate=2,dp_shard=-1", 8, "dp_replicate=2,dp_shard=4"),
        ("", 1, "dp_shard=1"),
        ("cp=3,pp=1", 3, "cp=3"),
    ] {
        let grid = grid(text, ranks).unwrap();
        assert_eq!(grid.to_string(), written);
        assert_eq!(self::grid(written, ranks), Ok(grid));
        assert_eq!(grid.world_size(), world(ranks));
    }
    assert_eq!(MeshShape::default(), "dp=-1".parse().unwrap());
    let shape: MeshShape = "dp=-1,tp=2".parse().unwrap();
    assert_eq!(shape.to_string(), "dp_shard=-1,tp=2");
}

#[test]
fn errors_say_what_to_change() {
    for (text, ranks, words) in [
        ("pp=2,xp=2", 4, "`xp=2` is not an axis"),
        ("pp", 4, "write name=ranks"),
        ("tp=0", 4, "`tp=0`"),
        ("tp=-2", 4, "`tp=-2`"),
        ("dp=2,dp_shard=2", 4, "the axis dp_shard twice"),
        ("dp=-1,tp=-1", 4, "both dp_shard and tp"),
        ("pp=2,tp=2", 8, "start 4 ranks, or give dp=2"),
        ("dp=2,tp=2", 6, "start 4 ranks, or give dp=3"),
        ("tp=4", 6, "start 4 ranks or a multiple of 4 with dp=-1, or make an axis smaller"),
        ("dp=-1,tp=4", 6, "needs a multiple of 4 ranks, and there are 6"),
        ("pp=4294967295,tp=4294967295,cp=4294967295", 6, "there are 6"),
    ] {
        let error = grid(text, ranks).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}
