//! Ranks in parties, as one of them sees them: on each other party one rank acts for it.

use crate::Rank;

/// Who sits where. A party is the ranks of a host, or some of them.
pub(crate) struct Seats {
    pub(crate) rank: Rank,
    pub(crate) party: usize,
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
        Self { rank, party, members, places }
    }

    /// Who handles the block of `owner` in `party`: the owner itself in its own, elsewhere the rank in
    /// its place, modulo the number of ranks there.
    pub(crate) fn agent(&self, owner: Rank, party: usize) -> Rank {
        let (_, place) = self.places[owner.index()];
        let members = &self.members[party];
        members[place % members.len()]
    }

    /// The owner in a batch whose agent in this party is this rank, if there is one.
    pub(crate) fn own_of(&self, batch: &[Rank]) -> Option<Rank> {
        let mut owners = batch.iter().copied();
        owners.find(|&owner| self.agent(owner, self.party) == self.rank)
    }

    /// The other owners in a batch, each with its agent in this party.
    pub(crate) fn others_of(&self, batch: &[Rank]) -> impl Iterator<Item = (Rank, Rank)> {
        let agent = |&owner: &Rank| (owner, self.agent(owner, self.party));
        let owners = batch.iter().map(agent);
        owners.filter(|&(_, agent)| agent != self.rank)
    }

    pub(crate) fn neighbours(&self) -> impl Iterator<Item = Rank> + Clone {
        let members = &self.members[self.party];
        members.iter().copied().filter(|&peer| peer != self.rank)
    }

    /// The other parties, the next one first, so that not all ranks send to one party at once.
    pub(crate) fn other_parties(&self) -> impl Iterator<Item = usize> {
        let parties = self.members.len();
        (1..parties).map(move |distance| (self.party + distance) % parties)
    }

    /// The owners in other parties whose agent this rank is.
    pub(crate) fn charges(&self) -> impl Iterator<Item = Rank> {
        let owners = self.other_parties().flat_map(|party| &self.members[party]).copied();
        owners.filter(|&owner| self.agent(owner, self.party) == self.rank)
    }

    /// The members of all parties, in batches of `len` at most of one party: no two ranks of a batch
    /// have the same agent in a party of as many ranks or more.
    pub(crate) fn batches(&self, len: usize) -> Vec<Vec<Rank>> {
        let parties = self.members.iter();
        let batches = parties.flat_map(|ranks| ranks.chunks(len));
        batches.map(<[Rank]>::to_vec).collect()
    }
}
