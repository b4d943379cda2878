//! A module for each algorithm, what they [share](shared), and which of them builds which plan.

mod binomial;
mod chain;
mod direct;
mod dissemination;
mod double_tree;
mod halving;
mod hierarchical;
mod pairwise;
mod ring;
mod shared;
mod zero_copy;

use self::shared::chunking::Chunking;
use self::shared::pairs::{self, Meeting};
use self::shared::tree::Place;
use super::extent::exchange_halves;
use crate::{Rank, ScheduleShape, Step};

/// Appends what `rank` does by a plan for `shape`, which is valid.
pub(super) fn build(shape: &ScheduleShape, rank: Rank, steps: &mut Vec<Step>) {
    use crate::Algorithm::*;
    use crate::Collective::*;
    let chunking = &Chunking::new(shape);
    let place = |root| Place { root, rank };
    match (shape.collective, shape.algorithm) {
        (AllReduce, Ring) => {
            ring::reduce_scatter(chunking, rank, steps);
            ring::all_gather(chunking, rank, steps);
        }
        (ReduceScatter, Ring) => ring::reduce_scatter(chunking, rank, steps),
        (AllGather, Ring) => ring::all_gather(chunking, rank, steps),
        (AllReduce, OneShot) => direct::all_reduce(chunking, rank, steps),
        (AllReduce, TwoShot) => direct::all_reduce_two_shot(chunking, rank, steps),
        (ReduceScatter, OneShot) => direct::reduce_scatter(chunking, rank, steps),
        (AllGather, OneShot) => direct::all_gather(chunking, rank, steps),
        (AllReduce, HalvingDoubling) => halving::all_reduce(chunking, rank, steps),
        (ReduceScatter, HalvingDoubling) => halving::reduce_scatter(chunking, rank, steps),
        (AllGather, HalvingDoubling) => halving::all_gather(chunking, rank, steps),
        (AllReduce, DoubleTree) => {
            double_tree::reduce(chunking, place(Rank::new(0)), steps);
            double_tree::broadcast(chunking, place(Rank::new(0)), steps);
        }
        (Broadcast { root }, DoubleTree) => double_tree::broadcast(chunking, place(root), steps),
        (Reduce { root }, DoubleTree) => double_tree::reduce(chunking, place(root), steps),
        (_, Hierarchical) => hierarchical::build(chunking, shape, rank, steps),
        (_, Chain) => chain::build(chunking, shape, rank, steps),
        (_, ZeroCopy) => zero_copy::build(chunking, shape.collective, rank, steps),
        (Broadcast { root }, Binomial) => binomial::broadcast(chunking, place(root), steps),
        (Reduce { root }, Binomial) => binomial::reduce(chunking, place(root), steps),
        (Broadcast { root }, TwoShot) => direct::broadcast(chunking, place(root), steps),
        (Reduce { root }, OneShot) => direct::reduce(chunking, place(root), steps),
        (Reduce { root }, TwoShot) => {
            direct::reduce_scatter(chunking, rank, steps);
            direct::gather(chunking, place(root), steps);
        }
        (Gather { root }, OneShot) => direct::gather(chunking, place(root), steps),
        (Scatter { root }, OneShot) => direct::scatter(chunking, place(root), steps),
        (AllToAll, OneShot) => direct::all_to_all(chunking, rank, steps),
        (AllToAll, Pairwise) => pairwise::all_to_all(chunking, rank, steps),
        (Barrier, Dissemination) => dissemination::barrier(shape.world_size, rank, steps),
        (Transfer { source, target }, OneShot) => {
            if rank == source {
                pairs::send(chunking, target, chunking.buffer, steps);
            } else if rank == target {
                pairs::receive_all(chunking, source, chunking.buffer, steps);
            }
        }
        (Exchange { first, second }, OneShot) => {
            let [of_first, of_second] = exchange_halves(shape.count);
            let meeting = if rank == first {
                Meeting::with(second, of_first, of_second)
            } else if rank == second {
                Meeting::with(first, of_second, of_first)
            } else {
                return;
            };
            pairs::exchange(chunking, meeting, steps);
        }
        (collective, algorithm) => {
            unreachable!("Schedule::new refuses {collective} by {algorithm}")
        }
    }
}
