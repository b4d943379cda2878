//! Two levels: within each host, and between hosts.
//!
//! Every rank owns a block. On every other host one rank is the block's *agent*: the owner's place among the ranks of
//! its host, modulo their number on the other host. A fold runs within each host first, at the block's agent (on the
//! owner's host, at the owner), and then over the hosts, at the owner. A gather runs the other way round: from the
//! owner to its agents, and from those to everyone on their hosts. So every element crosses between two hosts once
//! each way however many ranks they have, and all ranks of a host take part in that. Hosts may have different numbers
//! of ranks; with one host the plans are the direct ones.
//!
//! The legs of the way of a chunk follow one another, and the next chunk follows behind: while a
//! chunk is sent between hosts, the one behind it is folded, or the one before it copied, within.
//!
//! Every element is folded over the ranks of each host in their order, rounded, and then over the
//! hosts in the order of their first ranks: whatever the buffer it lies in.
//!
//! No deadlock, even with one slot: order all work by (iteration, part of a leg, batch). In each of
//! these places a link carries one frame at most, and a frame that is put in one place is taken in the
//! same or in a later one, before its link carries the next.

use super::shared::chunking::{self, Chunking};
use super::shared::seats::Seats;
use crate::{Collective, Rank, ScheduleShape, Stage, Step};

#[derive(Clone, Copy)]
enum Leg {
    /// Everyone on a host sends the chunk to the block's agent, which folds it.
    FoldWithin,
    /// The agents send what they folded to the owner.
    SendFolded,
    /// The owner folds what the agents sent.
    FoldBetween,
    /// The owner sends the chunk to its agents; `except` has it already.
    SpreadBetween { except: Option<Rank> },
    /// The agents take what the owner sent.
    TakeSpread { except: Option<Rank> },
    /// The agent, or the owner, sends the chunk to everyone on its host; `except` has it already.
    SpreadWithin { except: Option<Rank> },
    /// The root sends the chunk to its owner.
    Scatter { root: Rank },
    /// The owner sends the chunk to the root.
    Gather { root: Rank },
    /// The root takes what the owners sent.
    TakeGathered { root: Rank },
}

/// A leg, and how many iterations after the first leg it comes.
type Delayed = (Leg, usize);

/// The legs of an iteration, in the order in which they are taken.
fn itinerary(collective: Collective) -> Vec<Delayed> {
    let except = None;
    match collective {
        Collective::AllReduce => vec![
            (Leg::SendFolded, 1),
            (Leg::FoldWithin, 0),
            (Leg::FoldBetween, 1),
            (Leg::SpreadBetween { except }, 1),
            (Leg::SpreadWithin { except }, 2),
            (Leg::TakeSpread { except }, 1),
        ],
        Collective::ReduceScatter => {
            vec![(Leg::SendFolded, 1), (Leg::FoldWithin, 0), (Leg::FoldBetween, 1)]
        }
        Collective::AllGather => vec![
            (Leg::SpreadBetween { except }, 0),
            (Leg::SpreadWithin { except }, 1),
            (Leg::TakeSpread { except }, 0),
        ],
        Collective::Broadcast { root } => {
            let except = Some(root);
            vec![
                (Leg::Scatter { root }, 0),
                (Leg::SpreadBetween { except }, 0),
                (Leg::SpreadWithin { except }, 1),
                (Leg::TakeSpread { except }, 0),
            ]
        }
        Collective::Reduce { root } => vec![
            (Leg::TakeGathered { root }, 2),
            (Leg::SendFolded, 1),
            (Leg::FoldWithin, 0),
            (Leg::FoldBetween, 1),
            (Leg::Gather { root }, 1),
        ],
        other => unreachable!("Schedule::new refuses {other} by hierarchical"),
    }
}

pub(crate) fn build(chunking: &Chunking, shape: &ScheduleShape, rank: Rank, steps: &mut Vec<Step>) {
    let legs = itinerary(shape.collective);
    let last_delay = legs.iter().map(|&(_, delay)| delay).max();
    let last_delay = last_delay.expect("every collective has legs");
    let seats = Seats::new(shape.hosts.numbers(), rank);
    let batches = seats.batches(seats.members[seats.party].len());
    let chunks = chunking.of_longest_block();
    for iteration in 0..chunks + last_delay {
        for &(leg, delay) in &legs {
            let index = iteration.checked_sub(delay).filter(|&index| index < chunks);
            if let Some(index) = index {
                let mut walk = Walk { chunking, seats: &seats, batches: &batches, index, steps };
                walk.take(leg);
            }
        }
    }
}

/// One leg of one chunk of every block.
struct Walk<'a> {
    chunking: &'a Chunking,
    seats: &'a Seats,
    /// All ranks, in batches of which no two have the same agent on this rank's host.
    batches: &'a [Vec<Rank>],
    index: usize,
    steps: &'a mut Vec<Step>,
}

impl Walk<'_> {
    fn take(&mut self, leg: Leg) {
        let (seats, rank) = (self.seats, self.seats.rank);
        let peers = self.chunking.world_size.peers(rank);
        match leg {
            Leg::FoldWithin => self.fold_within(),
            Leg::SendFolded => seats.charges().for_each(|owner| self.put(owner, owner)),
            Leg::FoldBetween => self.fold_between(),
            Leg::SpreadBetween { except } => {
                let agents = seats.other_parties().map(|host| seats.agent(rank, host));
                let agents = agents.filter(|&agent| Some(agent) != except);
                agents.for_each(|agent| self.put(agent, rank));
            }
            Leg::TakeSpread { except } if except == Some(rank) => {}
            Leg::TakeSpread { .. } => seats.charges().for_each(|owner| self.receive(owner, owner)),
            Leg::SpreadWithin { except } => self.spread_within(except),
            Leg::Scatter { root } if rank == root => peers.for_each(|owner| self.put(owner, owner)),
            Leg::Scatter { root } => self.receive(root, rank),
            Leg::Gather { root } if rank != root => self.put(root, rank),
            Leg::TakeGathered { root } if rank == root => {
                peers.for_each(|owner| self.receive(owner, owner));
            }
            Leg::Gather { .. } | Leg::TakeGathered { .. } => {}
        }
    }

    fn fold_within(&mut self) {
        let seats = self.seats;
        let members = &seats.members[seats.party];
        let stage = if seats.members.len() == 1 { Stage::Final } else { Stage::Partial };
        if members.len() == 1 && stage == Stage::Partial {
            return;
        }
        for batch in self.batches {
            for (owner, agent) in seats.others_of(batch) {
                self.put(agent, owner);
            }
            if let Some(owner) = seats.own_of(batch) {
                self.fold(owner, members, stage);
            }
        }
    }

    fn fold_between(&mut self) {
        let (seats, hosts) = (self.seats, self.seats.members.len());
        if hosts > 1 {
            let agents = (0..hosts).map(|host| seats.agent(seats.rank, host));
            let agents: Vec<_> = agents.collect();
            self.fold(seats.rank, &agents, Stage::Final);
        }
    }

    fn spread_within(&mut self, except: Option<Rank>) {
        let seats = self.seats;
        for batch in self.batches {
            if let Some(owner) = seats.own_of(batch) {
                for peer in seats.neighbours().filter(|&peer| Some(peer) != except) {
                    self.put(peer, owner);
                }
            }
            if Some(seats.rank) != except {
                for (owner, agent) in seats.others_of(batch) {
                    self.receive(agent, owner);
                }
            }
        }
    }

    fn put(&mut self, peer: Rank, owner: Rank) {
        let block = self.chunking.block(owner);
        self.steps.extend(self.chunking.put(peer, block, self.index));
    }

    fn receive(&mut self, peer: Rank, owner: Rank) {
        let block = self.chunking.block(owner);
        self.steps.extend(self.chunking.take(peer, block, self.index));
    }

    /// Folds the chunk of `owner`'s block over `ranks`, of which this rank is one.
    fn fold(&mut self, owner: Rank, ranks: &[Rank], stage: Stage) {
        let Some(target) = self.chunking.chunk_of_block(owner, self.index) else {
            return;
        };
        let (rank, ranks) = (self.seats.rank, ranks.iter().copied());
        let peers = ranks.clone().filter(|&peer| peer != rank);
        let sources = ranks.map(|operand| chunking::source(rank, operand));
        chunking::fold(peers, target, sources.collect(), stage, self.steps);
    }
}
