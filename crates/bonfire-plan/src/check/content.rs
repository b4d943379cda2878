//! What each collective promises: what ranks hold before it and after it.

use super::atoms::Atoms;
use super::error::{CheckError, Flaw};
use super::expression::{Expressions, Value};
use super::rank_set;
use crate::collective::Blocks;
use crate::{Collective, ElemRange, Order, Rank, Role, Schedule};

/// What `rank` holds before the collective starts, atom by atom.
pub(super) fn initial(schedule: &Schedule, atoms: &Atoms, rank: Rank) -> Vec<Value> {
    let mut data = vec![Value::UNDEFINED; atoms.len()];
    for input in schedule.extent(rank, Role::Input) {
        data[atoms.of(input)].fill(Value::leaf(rank));
    }
    data
}

/// Compares what all ranks hold at the end with what was promised.
pub(super) fn verify(
    schedule: &Schedule,
    atoms: &Atoms,
    expressions: &mut Expressions,
    data: &[&[Value]],
) -> Result<Order, CheckError> {
    let mut order = Order::Canonical;
    let folds = schedule.collective().reduces();
    let canonical = folds.then(|| expressions.canonical());
    for rank in schedule.world_size().ranks() {
        let held = data[rank.index()];
        if let Some(canonical) = canonical {
            for range in schedule.extent(rank, Role::Output) {
                let span = Span { rank, range };
                order = order.max(verify_folded(atoms, expressions, span, held, canonical)?);
            }
        } else {
            for (owner, range) in owned(schedule, rank) {
                verify_owned(atoms, expressions, Span { rank, range }, held, owner)?;
            }
        }
        if schedule.collective() == Collective::AllReduce
            && let Some(atom) = (0..atoms.len()).find(|&atom| held[atom] != data[0][atom])
        {
            return Err(CheckError::Divergence {
                first: Rank::new(0),
                second: rank,
                range: atoms.range(atom),
            });
        }
    }
    Ok(order)
}

/// The ranges that `rank` ends with where nothing is folded, each with the rank it comes from.
fn owned(schedule: &Schedule, rank: Rank) -> Vec<(Rank, ElemRange)> {
    let ranges = schedule.extent(rank, Role::Output).into_iter();
    match schedule.collective() {
        Collective::AllGather | Collective::Gather { .. } => {
            let blocks = Blocks::new(schedule.shape());
            let receives = ranges.len() > 0;
            let owners = schedule.world_size().ranks().filter(|_| receives);
            owners.map(|owner| (owner, blocks.of(owner))).collect()
        }
        Collective::AllToAll => schedule.world_size().ranks().zip(ranges).collect(),
        Collective::Broadcast { root: owner }
        | Collective::Scatter { root: owner }
        | Collective::Transfer { source: owner, .. } => {
            ranges.map(|range| (owner, range)).collect()
        }
        Collective::Exchange { first, second } => {
            let other = if rank == first { second } else { first };
            ranges.map(|range| (other, range)).collect()
        }
        Collective::Barrier => Vec::new(),
        Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce { .. } => {
            unreachable!("a fold belongs to all ranks")
        }
    }
}

/// Whether each rank knows at the end that every rank has entered.
pub(super) fn verify_heard<'a>(
    schedule: &Schedule,
    heard: impl Iterator<Item = &'a [u64]>,
) -> Result<(), CheckError> {
    for (rank, heard) in schedule.world_size().ranks().zip(heard) {
        if let Some(missing) = rank_set::first_missing(heard, schedule.world_size()) {
            return Err(CheckError::EarlyLeave { rank, missing });
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Span {
    rank: Rank,
    range: ElemRange,
}

/// Every element of the span is the finished fold of all ranks.
fn verify_folded(
    atoms: &Atoms,
    expressions: &Expressions,
    span: Span,
    held: &[Value],
    canonical: Value,
) -> Result<Order, CheckError> {
    let mut order = Order::Canonical;
    for atom in atoms.of(span.range) {
        let value = held[atom];
        if value == canonical {
            continue;
        }
        let flaw = if value.is_undefined() {
            Flaw::Undefined
        } else if let Some(rank) = expressions.first_missing(value) {
            Flaw::Missing { rank }
        } else if !value.is_final() {
            Flaw::NotFinal
        } else {
            order = order.max(if expressions.are_alike(value, canonical) {
                Order::Rounded
            } else {
                Order::Fixed
            });
            continue;
        };
        let (rank, range) = (span.rank, atoms.range(atom));
        return Err(CheckError::Result { rank, range, flaw });
    }
    Ok(order)
}

/// Every element of the span is what `owner` brought, unchanged.
fn verify_owned(
    atoms: &Atoms,
    expressions: &Expressions,
    span: Span,
    held: &[Value],
    owner: Rank,
) -> Result<(), CheckError> {
    let mut run = atoms.of(span.range);
    let Some(atom) = run.find(|&atom| held[atom] != Value::leaf(owner)) else {
        return Ok(());
    };
    let flaw = if held[atom].is_undefined() {
        Flaw::Undefined
    } else {
        let found = expressions.members(held[atom]);
        Flaw::NotTheOwners { owner, found }
    };
    let (rank, range) = (span.rank, atoms.range(atom));
    Err(CheckError::Result { rank, range, flaw })
}
