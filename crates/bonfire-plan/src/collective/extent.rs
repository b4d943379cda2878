//! Which part of the space of elements a rank has.

use super::Blocks;
use crate::{Collective, ElemRange, Rank, ScheduleShape};

/// What a rank's memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The data that a rank brings.
    Input,
    /// The data that a rank ends with.
    Output,
}

/// The ranges of the space of elements that a rank has in one role, ascending. A buffer for them
/// holds one after the other, without gaps.
///
/// The steps of a rank touch nothing outside of its input and its output, but for reduce-scatter
/// and reduce, whose steps work in the whole input.
pub(crate) fn extent(shape: &ScheduleShape, rank: Rank, role: Role) -> Vec<ElemRange> {
    let whole = ElemRange::up_to(shape.count);
    let own = |own: bool| if own { vec![whole] } else { Vec::new() };
    let input = role == Role::Input;
    match shape.collective {
        Collective::AllReduce => vec![whole],
        Collective::ReduceScatter if input => vec![whole],
        Collective::AllGather if !input => vec![whole],
        Collective::Broadcast { root } => own(!input || rank == root),
        Collective::Reduce { root } => own(input || rank == root),
        Collective::Barrier => Vec::new(),
        Collective::Gather { root } if !input => own(rank == root),
        Collective::Scatter { root } if input => own(rank == root),
        Collective::ReduceScatter
        | Collective::AllGather
        | Collective::Gather { .. }
        | Collective::Scatter { .. } => vec![Blocks::new(shape).of(rank)],
        Collective::AllToAll => {
            let blocks = Blocks::new(shape);
            let between = |peer| match role {
                Role::Input => blocks.between(rank, peer),
                Role::Output => blocks.between(peer, rank),
            };
            shape.world_size.ranks().map(between).collect()
        }
        Collective::Transfer { source, target } => own(rank == if input { source } else { target }),
        Collective::Exchange { first, second } => match exchange_halves(shape.count) {
            halves if rank == first => vec![halves[usize::from(!input)]],
            halves if rank == second => vec![halves[usize::from(input)]],
            _ => Vec::new(),
        },
    }
}

/// What the two ranks of an exchange bring, the first rank's first.
pub(crate) const fn exchange_halves(count: usize) -> [ElemRange; 2] {
    [ElemRange::up_to(count), ElemRange::new(count, 2 * count)]
}
