//! Ranks in parties, as one of them sees them: on each other party one rank acts for it.

use crate::Rank;

/// Who sits where. A party is the ranks of a host, or some of them.
pub(crate) struct Seats {
    pub(crate) rank: Rank,
    pub(crate) party: usize,
    /// The ranks of each party, ascending.
    pub(crate) members: Vec<Vec<Rank>>,
    /// The party of each rank, and its place there.
    places: Vec<(usize, usize)>,
}

impl Seats {
    /// `parties` has the number of every rank's party, in rank order; from 0.
    pub(crate) fn new(parties: impl Iterator<Item = u32>, rank: Rank) -> Self {
        let mut members: Vec<Vec<Rank>> = Vec::new();
        let mut places = Vec::new();
        for (number, party) in (0..).zip(parties) {
            let party = party as usize;
            members.resize_with(members.len().max(party + 1), Vec::new);
            places.push((party, members[party].len()));
            members[party].push(Rank::new(number));
        }
        let (party, _) = places[rank.index()];
        Self {
            rank,
            party,
            members,
            places,
        }
    }

    /// Who handles the block of `owner` in `party`: the owner itself in its own, elsewhere the rank in
    /// its place, modulo the number of ranks there.
    pub(crate) fn agent(&self, owner: Rank, party: usize) -> Rank {
        let (_, place) = self.places[owner.index()];
        let members = &self.members[party];
        members[place % members.len()]
    }

    pub(crate) fn neighbours(&self) -> impl Iterator<Item = Rank> + '_ {
        let members = &self.members[self.party];
        members.iter().copied().filter(|&peer| peer != self.rank)
    }

    /// The members of all parties, in batches of `len` at most of one party: no two ranks of a batch
    /// have the same agent in a party of as many ranks or more.
    pub(crate) fn batches(&self, len: usize) -> Vec<Vec<Rank>> {
        let parties = self.members.iter();
        let batches = parties.flat_map(|ranks| ranks.chunks(len));
        batches.map(<[Rank]>::to_vec).collect()
    }
}
