//! Collectives between threads.

// ANCHOR: all
use bonfire::collective::{GroupOptions, ProcessGroup, Rank, ReduceOp, WorldSize};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let groups = ProcessGroup::local(WorldSize::new(3)?, GroupOptions::default())?;
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            groups.into_iter().map(|group| scope.spawn(move || rank(&group))).collect();
        for rank in ranks {
            rank.join().expect("no rank panics")?;
        }
        Ok(())
    })
}

fn rank(group: &ProcessGroup) -> Result<(), bonfire::collective::CollectiveError> {
    let me = group.rank().get();

    // In place: every rank ends with the sum over ranks.
    let mut data = [me as f32, 1.0];
    group.all_reduce(&mut data, ReduceOp::Sum)?;
    assert_eq!(data, [3.0, 3.0]);

    // In the background: the buffer comes back with the result.
    let work =
        group.background(vec![me; 1000], |group, data| group.all_reduce(data, ReduceOp::Max));
    let gathered = group.all_gather(&[me as i64])?;
    assert_eq!(gathered, [0, 1, 2]);
    assert_eq!(work.wait()?[0], 2);

    let mut word = [me];
    group.broadcast(&mut word, Rank::new(1))?;
    assert_eq!(word, [1]);
    group.barrier()
}
// ANCHOR_END: all
