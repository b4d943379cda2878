//! `DistributedSampler` with 11 samples on 2 ranks: 6 each, the first one twice.

use bonfire::data::{DistributedSampler, Order, Remainder};
use bonfire::prelude::*;

fn main() -> bonfire::Result<()> {
    let tables = spawn(2, |world| {
        let table = |order, remainder| {
            let sampler = DistributedSampler::new(&world, 11).with_order(order);
            sampler.with_remainder(remainder).indices(0)
        };
        Ok::<_, bonfire::Error>([
            table(Order::Sequential, Remainder::Pad), // PyTorch's default
            table(Order::Sequential, Remainder::Drop), // drop_last=True
            table(Order::Sequential, Remainder::Exact), // for evaluation: each sample once
            table(Order::Shuffled { seed: 0 }, Remainder::Pad), // another order each epoch
        ])
    })?;
    for (rank, [pad, drop, exact, shuffled]) in tables.iter().enumerate() {
        println!("rank {rank}: pad {pad:?} drop {drop:?} exact {exact:?} shuffled {shuffled:?}");
    }
    Ok(())
}
