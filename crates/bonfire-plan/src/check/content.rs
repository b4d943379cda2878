//! What each collective promises: what ranks hold before it and after it.

use super::atoms::Atoms;
use super::error::{CheckError, Flaw};
use super::expression::{Expressions, Value};
use super::{Order, rank_set};
use crate::{Collective, ElemRange, Rank, Schedule, shard_range};

/// What `rank` holds before the collective starts, atom by atom.
pub(super) fn initial(schedule: &Schedule, atoms: &Atoms, rank: Rank) -> Vec<Value> {
    let mut data = vec![Value::UNDEFINED; atoms.len()];
    let input = match schedule.collective() {
        Collective::AllReduce | Collective::ReduceScatter => ElemRange::up_to(schedule.count()),
        Collective::AllGather => shard_range(schedule.count(), schedule.world_size(), rank),
        Collective::Broadcast { root } if root == rank => ElemRange::up_to(schedule.count()),
        Collective::Broadcast { .. } | Collective::Barrier => ElemRange::up_to(0),
    };
    data[atoms.of(input)].fill(Value::leaf(rank));
    data
}

/// Compares what all ranks hold at the end with what was promised.
pub(super) fn verify(
    schedule: &Schedule,
    atoms: &Atoms,
    expressions: &mut Expressions,
    data: &[&[Value]],
) -> Result<Order, CheckError> {
    let (count, world_size) = (schedule.count(), schedule.world_size());
    let shard = |rank| shard_range(count, world_size, rank);
    let mut order = Order::Canonical;
    match schedule.collective() {
        Collective::AllReduce => {
            let canonical = expressions.canonical();
            for rank in world_size.ranks() {
                let held = data[rank.index()];
                let span = Span {
                    rank,
                    range: ElemRange::up_to(count),
                };
                order = order.max(verify_folded(atoms, expressions, span, held, canonical)?);
                if let Some(atom) = (0..atoms.len()).find(|&atom| held[atom] != data[0][atom]) {
                    let (first, range) = (Rank::new(0), atoms.range(atom));
                    return Err(CheckError::Divergence {
                        first,
                        second: rank,
                        range,
                    });
                }
            }
        }
        Collective::ReduceScatter => {
            let canonical = expressions.canonical();
            for rank in world_size.ranks() {
                let span = Span {
                    rank,
                    range: shard(rank),
                };
                let held = data[rank.index()];
                order = order.max(verify_folded(atoms, expressions, span, held, canonical)?);
            }
        }
        Collective::AllGather => {
            for rank in world_size.ranks() {
                for owner in world_size.ranks() {
                    let span = Span {
                        rank,
                        range: shard(owner),
                    };
                    verify_owned(atoms, expressions, span, data[rank.index()], owner)?;
                }
            }
        }
        Collective::Broadcast { root } => {
            for rank in world_size.ranks() {
                let span = Span {
                    rank,
                    range: ElemRange::up_to(count),
                };
                verify_owned(atoms, expressions, span, data[rank.index()], root)?;
            }
        }
        Collective::Barrier => {}
    }
    Ok(order)
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

/// A part of one rank's buffer.
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
        order = Order::Fixed;
        let flaw = if value.is_undefined() {
            Some(Flaw::Undefined)
        } else if let Some(rank) = expressions.first_missing(value) {
            Some(Flaw::Missing { rank })
        } else if !value.is_final() {
            Some(Flaw::NotFinal)
        } else {
            None
        };
        if let Some(flaw) = flaw {
            return Err(CheckError::Result {
                rank: span.rank,
                range: atoms.range(atom),
                flaw,
            });
        }
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
    let Some(atom) = atoms
        .of(span.range)
        .find(|&atom| held[atom] != Value::leaf(owner))
    else {
        return Ok(());
    };
    let flaw = if held[atom].is_undefined() {
        Flaw::Undefined
    } else {
        Flaw::NotTheOwners {
            owner,
            found: expressions.members(held[atom]),
        }
    };
    Err(CheckError::Result {
        rank: span.rank,
        range: atoms.range(atom),
        flaw,
    })
}
