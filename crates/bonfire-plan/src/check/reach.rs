//! Which elements a rank's memory holds, and which of them its collective may overwrite.

use super::atoms::Atoms;
use super::error::Fault;
use crate::{Collective, ElemRange, Rank, Role, Schedule};

/// What a rank may touch, atom by atom.
pub(super) struct Reach {
    atoms: Vec<Access>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Access {
    None,
    Read,
    Write,
}

impl Reach {
    pub(super) fn new(schedule: &Schedule, atoms: &Atoms, rank: Rank) -> Self {
        // Where the result is less than what goes in, partial results need the room of the input.
        let input = match schedule.collective() {
            Collective::ReduceScatter | Collective::Reduce { .. } => Access::Write,
            _ => Access::Read,
        };
        let mut reach = vec![Access::None; atoms.len()];
        for (role, access) in [(Role::Input, input), (Role::Output, Access::Write)] {
            for range in schedule.extent(rank, role) {
                for atom in &mut reach[atoms.of(range)] {
                    *atom = access.max(*atom);
                }
            }
        }
        Self { atoms: reach }
    }

    pub(super) fn require_read(&self, atoms: &Atoms, range: ElemRange) -> Result<(), Fault> {
        match self.first_below(atoms, range, Access::Read) {
            Some(range) => Err(Fault::OutsideExtent { range }),
            None => Ok(()),
        }
    }

    pub(super) fn require_write(&self, atoms: &Atoms, range: ElemRange) -> Result<(), Fault> {
        self.require_read(atoms, range)?;
        match self.first_below(atoms, range, Access::Write) {
            Some(range) => Err(Fault::WritesInput { range }),
            None => Ok(()),
        }
    }

    fn first_below(&self, atoms: &Atoms, range: ElemRange, needed: Access) -> Option<ElemRange> {
        let atom = atoms.of(range).find(|&atom| self.atoms[atom] < needed)?;
        Some(atoms.range(atom))
    }
}
