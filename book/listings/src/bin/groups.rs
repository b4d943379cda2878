//! Groups made out of groups.

// ANCHOR: all
use bonfire::collective::{GroupOptions, ProcessGroup, Rank, ReduceOp, WorldSize};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let groups = ProcessGroup::local(WorldSize::new(4)?, GroupOptions::default())?;
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            groups.into_iter().map(|world| scope.spawn(move || rank(&world))).collect();
        for rank in ranks {
            rank.join().expect("no rank panics")?;
        }
        Ok(())
    })
}

fn rank(world: &ProcessGroup) -> Result<(), bonfire::collective::CollectiveError> {
    let me = world.rank().get();

    // Two columns of two ranks: 0 and 2, 1 and 3. The key keeps their order.
    let column = world.split(Some(me % 2), i64::from(me))?;
    let column = column.expect("every rank gave a color");
    let mut sum = [me];
    column.all_reduce(&mut sum, ReduceOp::Sum)?;
    assert_eq!(sum, [if me.is_multiple_of(2) { 2 } else { 4 }]);

    // Rank 0 of each column; the others take part in the split and get no group.
    let leads = column.rank() == Rank::new(0);
    if let Some(leaders) = world.split(leads.then_some(0), 0)? {
        assert_eq!(leaders.members(), [0, 1].map(Rank::new));
        leaders.barrier()?;
    }

    // One host here; on several, one group on each.
    let host = world.split_by_host()?;
    assert_eq!(host.world_size(), world.world_size());
    Ok(())
}
// ANCHOR_END: all
