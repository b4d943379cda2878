//! `mp.spawn(main, nprocs=2)`: ranks as threads of this process.

use bonfire::collective::ReduceOp;
use bonfire::prelude::*;

fn main() -> bonfire::Result<()> {
    let sums = spawn(2, |world| {
        let mut number = [f64::from(world.rank().get() + 1)];
        world.group().all_reduce(&mut number, ReduceOp::Sum)?;
        println!("rank {} of {}: {}", world.rank(), world.world_size(), number[0]);
        Ok::<_, bonfire::Error>(number[0])
    })?;
    assert_eq!(sums, [3.0, 3.0]);
    Ok(())
}
