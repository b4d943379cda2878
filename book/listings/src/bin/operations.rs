//! The operations beside all-reduce, and memory that ranks share.

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
    let (me, root) = (group.rank(), Rank::new(0));

    // Blocks of any length: rank r brings r elements.
    let mine = vec![me.get(); me.index()];
    let all = group.all_gather_v(&mine)?;
    assert_eq!(all.lengths(), [0, 1, 2]);
    assert_eq!(all.of(Rank::new(2)), [2, 2]);

    // Block r of every rank goes to rank r, in place.
    let mut blocks = [10 * me.get(), 10 * me.get() + 1, 10 * me.get() + 2];
    group.all_to_all(&mut blocks)?;
    assert_eq!(blocks, [me.get(), 10 + me.get(), 20 + me.get()]);

    // Only the root has the result.
    let mut any_failed = [me.get() == 1];
    group.reduce(&mut any_failed, root, ReduceOp::Or)?;
    assert!(me != root || any_failed[0]);

    // Two ranks alone.
    match me.get() {
        0 => group.send(&[1.5_f32], Rank::new(2))?,
        2 => {
            let mut word = [0.0_f32];
            group.recv(&mut word, root)?;
            assert_eq!(word, [1.5]);
        }
        _ => {}
    }

    // Memory that the other ranks reach: large operations work in it without a copy.
    let mut gradients = group.buffer::<f32>(100_000)?;
    gradients.fill(me.get() as f32);
    group.all_reduce(&mut gradients[10..], ReduceOp::Mean)?;
    assert_eq!(gradients[10], 1.0);

    // Many small tensors for the latency of one.
    let (mut bias, mut scale) = (vec![1.0_f32; 10], vec![2.0_f32; 20]);
    group.all_reduce_coalesced(&mut [&mut bias, &mut scale], ReduceOp::Sum)?;
    assert_eq!((bias[0], scale[0]), (3.0, 6.0));
    Ok(())
}
// ANCHOR_END: all
