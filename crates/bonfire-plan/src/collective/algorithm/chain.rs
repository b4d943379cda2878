//! The chain of hosts: folds in the order of the ranks, at the fewest bytes between hosts.
//!
//! A *link* of the chain is a run of consecutive ranks of one host. Where ranks are numbered host by
//! host, each host is one link; elsewhere the chain visits a host several times. Every rank owns a
//! block, and in each link one rank is the block's agent, as in two levels. Up the chain, an agent
//! folds the ranks of its link, in their order, onto what the link before has folded, and sends that
//! to the next. The last link has the result. Of an all-reduce it goes back from link to link, and in
//! each from the agent to everyone; of a fold for one rank it goes to that one at once.
//!
//! So every element is folded over ranks 0 to n - 1, and between two links it crosses once each way, however many
//! ranks they have. It is rounded to its type in every link, which changes nothing where folds run in that type.
//!
//! The work is cut into items: the chunks with one index of a batch of blocks, no two of which have the same agent
//! anywhere. Items follow one another like the pieces of a pipelined broadcast (Watts and van de Geijn, 1995): link l
//! folds item q at time q + l, and takes its result at time q + 2L - l, where the last link is link L. Up and down
//! run at the same time, so that both directions between two hosts are used.
//!
//! No deadlock, even with one slot: order all work by (time, up before back, link). At each time and
//! each way every queue carries one frame at most. Within a link it is put and taken in one place;
//! between two links it is taken one time later, before the next one is put there.

use super::shared::chunking::{self, Chunking, receive};
use super::shared::seats::Seats;
use crate::{Collective, ElemRange, Rank, ScheduleShape, Stage, Step};

pub(crate) fn build(chunking: &Chunking, shape: &ScheduleShape, rank: Rank, steps: &mut Vec<Step>) {
    let seats = Seats::new(shape.hosts.runs(), rank);
    let sizes = seats.members.iter().map(Vec::len);
    let batches = seats.batches(sizes.min().expect("a world has ranks"));
    let items = chunking.of_longest_block() * batches.len();
    let mut walk = Walk {
        chunking,
        last: seats.members.len() - 1,
        seats: &seats,
        collective: shape.collective,
        steps,
    };
    let (link, back) = (seats.party, walk.back());
    for time in 0..items + back {
        let item = |delay| time.checked_sub(delay).filter(|&item| item < items);
        if let Some(item) = item(link) {
            walk.up(&batches[item % batches.len()], item / batches.len());
        }
        if let Some(item) = item(back) {
            walk.down(&batches[item % batches.len()], item / batches.len());
        }
    }
}

struct Walk<'a> {
    chunking: &'a Chunking,
    seats: &'a Seats,
    last: usize,
    collective: Collective,
    steps: &'a mut Vec<Step>,
}

impl Walk<'_> {
    /// How long after the first link folds an item this one has to do with its result.
    fn back(&self) -> usize {
        let link = self.seats.party;
        match self.collective {
            Collective::AllReduce => 2 * self.last - link,
            _ if link == self.last => self.last,
            _ => self.last + 1,
        }
    }

    fn up(&mut self, owners: &[Rank], index: usize) {
        let (chunking, seats, link) = (self.chunking, self.seats, self.seats.party);
        for (owner, agent) in seats.others_of(owners) {
            self.steps.extend(chunking.put(agent, chunking.block(owner), index));
        }
        let Some(owner) = seats.own_of(owners) else {
            return;
        };
        let Some(source) = chunking.chunk_of_block(owner, index) else {
            return;
        };
        let before = link.checked_sub(1).map(|before| seats.agent(owner, before));
        self.fold(before, source);
        if link < self.last {
            let peer = seats.agent(owner, link + 1);
            self.steps.push(Step::Put { peer, source });
        }
    }

    /// Folds this link's ranks onto what the agent `before` has folded.
    fn fold(&mut self, before: Option<Rank>, target: ElemRange) {
        let seats = self.seats;
        let members = &seats.members[seats.party];
        let stage = if seats.party == self.last { Stage::Final } else { Stage::Partial };
        if before.is_none() && members.len() == 1 && stage == Stage::Partial {
            return;
        }
        let operands = before.iter().chain(members);
        let sources = operands.map(|&operand| chunking::source(seats.rank, operand));
        let peers = seats.neighbours().chain(before);
        chunking::fold(peers, target, sources.collect(), stage, self.steps);
    }

    /// Passes on the results of the chunks number `index` of the blocks of `owners`.
    fn down(&mut self, owners: &[Rank], index: usize) {
        match self.collective {
            Collective::AllReduce => self.spread(owners, index),
            Collective::ReduceScatter | Collective::Reduce { .. } => {
                for &owner in owners {
                    self.deliver(owner, self.collective.root().unwrap_or(owner), index);
                }
            }
            other => unreachable!("Schedule::new refuses {other} by chain"),
        }
    }

    /// Agents take the results from the link behind, for everyone in this link and for the one before.
    fn spread(&mut self, owners: &[Rank], index: usize) {
        let (chunking, seats, link) = (self.chunking, self.seats, self.seats.party);
        if let Some(owner) = seats.own_of(owners)
            && let Some(source) = chunking.chunk_of_block(owner, index)
        {
            if link < self.last {
                self.steps.extend(receive(seats.agent(owner, link + 1), source));
            }
            let before = link.checked_sub(1).map(|before| seats.agent(owner, before));
            let peers = before.into_iter().chain(seats.neighbours());
            self.steps.extend(peers.map(|peer| Step::Put { peer, source }));
        }
        for (owner, agent) in seats.others_of(owners) {
            self.steps.extend(chunking.take(agent, chunking.block(owner), index));
        }
    }

    /// The last link's agent of `owner`'s block sends the result to the one who gets it.
    fn deliver(&mut self, owner: Rank, target: Rank, index: usize) {
        let (rank, source) = (self.seats.rank, self.seats.agent(owner, self.last));
        let block = self.chunking.block(owner);
        if rank == source && rank != target {
            self.steps.extend(self.chunking.put(target, block, index));
        } else if rank == target && rank != source {
            self.steps.extend(self.chunking.take(source, block, index));
        }
    }
}
