//! Accesses to one element that no frame puts in order: vector clocks over the frames of a plan.
//!
//! A rank's own part of its clock moves with every put; a wait takes over what the sender knew when
//! it put the frame. An access comes before another exactly if the rank of the second knows the
//! time of the first (Fidge; Mattern, "Virtual time and global states of distributed systems",
//! 1989). Two accesses to an element race if neither comes before the other and one of them writes.
//! What precedes what depends only on the frames, not on the order in which ranks take turns, so a
//! plan without races gives the same result in every order.
//!
//! The caller of a collective counts too: it wrote a rank's buffer before the rank's first step, and
//! touches it again after the last one.

use std::ops::Range;

use super::atoms::Atoms;
use super::error::{CheckError, Fault};
use crate::{Rank, WorldSize};

/// What every rank knows of the others, and who last touched which atom of whose buffer.
pub(super) struct Races {
    world_size: WorldSize,
    atoms: usize,
    /// What rank r knows of rank s, at r * n + s; 0 is nothing.
    clocks: Vec<u32>,
    /// Every atom of every buffer, buffer by buffer.
    history: Vec<History>,
}

/// The accesses to an atom that a later one can still race with.
struct History {
    write: Access,
    /// One at most of each rank.
    reads: Vec<Access>,
}

/// Who, and the rank's own time at that point.
#[derive(Clone, Copy)]
struct Access {
    rank: Rank,
    time: u32,
}

#[derive(Clone)]
pub(super) struct Place {
    pub(super) owner: Rank,
    pub(super) atoms: Range<usize>,
}

impl Races {
    pub(super) fn new(world_size: WorldSize, atoms: &Atoms) -> Self {
        let ranks = world_size.len();
        let mut clocks = vec![0; ranks * ranks];
        let mut history = Vec::with_capacity(ranks * atoms.len());
        for rank in world_size.ranks() {
            clocks[rank.index() * ranks + rank.index()] = 1;
            let untouched = || History { write: Access { rank, time: 1 }, reads: Vec::new() };
            history.extend(std::iter::repeat_with(untouched).take(atoms.len()));
        }
        Self { world_size, atoms: atoms.len(), clocks, history }
    }

    /// What is sent with a frame of `rank`.
    pub(super) fn publish(&mut self, rank: Rank) -> Box<[u32]> {
        let known = self.known_mut(rank);
        let sent = known.into();
        known[rank.index()] += 1;
        sent
    }

    /// Takes over what the sender of a frame knew.
    pub(super) fn hear(&mut self, rank: Rank, sent: &[u32]) {
        for (known, &sent) in self.known_mut(rank).iter_mut().zip(sent) {
            *known = sent.max(*known);
        }
    }

    pub(super) fn read(&mut self, rank: Rank, place: Place, atoms: &Atoms) -> Result<(), Fault> {
        let Place { owner, atoms: run } = place;
        for atom in run {
            let at = owner.index() * self.atoms + atom;
            let earlier = self.require_earlier(self.history[at].write, rank);
            let range = atoms.range(atom);
            earlier.map_err(|other| Fault::Race { other, owner, range })?;
            let now = self.now(rank);
            let reads = &mut self.history[at].reads;
            match reads.iter_mut().find(|read| read.rank == rank) {
                Some(read) => *read = now,
                None => reads.push(now),
            }
        }
        Ok(())
    }

    pub(super) fn write(&mut self, rank: Rank, place: Place, atoms: &Atoms) -> Result<(), Fault> {
        let Place { owner, atoms: run } = place;
        for atom in run {
            let at = owner.index() * self.atoms + atom;
            let earlier = self.require_all_earlier(at, rank);
            let range = atoms.range(atom);
            earlier.map_err(|other| Fault::Race { other, owner, range })?;
            self.history[at] = History { write: self.now(rank), reads: Vec::new() };
        }
        Ok(())
    }

    /// Every access to a rank's buffer comes before the rank's end.
    pub(super) fn finish(&self, atoms: &Atoms) -> Result<(), CheckError> {
        for owner in self.world_size.ranks() {
            for atom in 0..self.atoms {
                let earlier = self.require_all_earlier(owner.index() * self.atoms + atom, owner);
                let range = atoms.range(atom);
                earlier.map_err(|rank| CheckError::LateAccess { rank, owner, range })?;
            }
        }
        Ok(())
    }

    /// The rank whose access does not come before what `rank` does now, if there is one.
    fn require_all_earlier(&self, at: usize, rank: Rank) -> Result<(), Rank> {
        let History { write, reads } = &self.history[at];
        let mut accesses = std::iter::once(write).chain(reads);
        accesses.try_for_each(|&access| self.require_earlier(access, rank))
    }

    fn require_earlier(&self, access: Access, rank: Rank) -> Result<(), Rank> {
        match self.clocks[rank.index() * self.world_size.len() + access.rank.index()] {
            heard if heard >= access.time => Ok(()),
            _ => Err(access.rank),
        }
    }

    fn now(&self, rank: Rank) -> Access {
        let time = self.clocks[rank.index() * self.world_size.len() + rank.index()];
        Access { rank, time }
    }

    fn known_mut(&mut self, rank: Rank) -> &mut [u32] {
        let ranks = self.world_size.len();
        &mut self.clocks[rank.index() * ranks..][..ranks]
    }
}
