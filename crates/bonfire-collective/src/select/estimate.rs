//! How long an algorithm takes, from the figures of the links alone.
//!
//! Hockney's model: a round costs a latency, and a rank's link carries one byte after the other. A
//! group with ranks on several hosts is taken to pay for links between hosts everywhere.

use bonfire_plan::{Algorithm, Collective, DType, ScheduleShape};

use crate::executor::Figures;

/// In units of a group: what one rank does.
struct Work {
    /// Frames that wait for one another.
    rounds: f64,
    /// Buffers sent by the rank that sends most.
    buffers_sent: f64,
    /// Buffers folded into another.
    buffers_folded: f64,
}

pub(super) fn estimate(shape: &ScheduleShape, figures: &Figures, dtype: DType) -> f64 {
    let link = if shape.hosts.host_count() > 1 {
        figures.inter_host
    } else {
        figures.intra_host
    };
    let bytes = shape.count as f64 * dtype.size_bytes() as f64;
    let work = work(shape);
    work.rounds * link.seconds
        + work.buffers_sent * bytes * link.seconds_per_byte
        + work.buffers_folded * bytes * figures.fold_seconds_per_byte
}

fn work(shape: &ScheduleShape) -> Work {
    let ranks = f64::from(shape.world_size.get());
    let others = ranks - 1.0;
    // What a rank has to send, and to fold, when each rank deals with its own shard.
    let share = others / ranks;
    let (rounds, buffers_sent, buffers_folded) = match (shape.collective, shape.algorithm) {
        (Collective::AllReduce, Algorithm::Ring) => (2.0 * others, 2.0 * share, share),
        (Collective::AllReduce, Algorithm::OneShot) => (1.0, others, others),
        (Collective::AllReduce, Algorithm::TwoShot) => (2.0, 2.0 * share, share),
        (Collective::Reduce { .. }, Algorithm::OneShot) => (1.0, others, others),
        (Collective::Reduce { .. }, Algorithm::TwoShot) => (2.0, 2.0 * share, share),
        (Collective::Broadcast { .. }, Algorithm::TwoShot) => (2.0, 2.0 * share, 0.0),
        (Collective::AllToAll, Algorithm::OneShot) => (1.0, share / ranks, 0.0),
        (Collective::AllToAll, _) => (others, share / ranks, 0.0),
        (Collective::ReduceScatter, Algorithm::Ring) => (others, share, share),
        (Collective::ReduceScatter, _) => (1.0, share, share),
        (Collective::AllGather, Algorithm::Ring) => (others, share, 0.0),
        (Collective::AllGather, _) => (1.0, share, 0.0),
        // A tree, or anything like it.
        _ => (ranks.log2().ceil(), ranks.log2().ceil(), 1.0),
    };
    Work {
        rounds,
        buffers_sent,
        buffers_folded,
    }
}
