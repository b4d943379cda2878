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

use super::shared::chunking::{Chunking, receive};
use super::shared::seats::Seats;
use crate::{Hosts, Rank, Source, Stage, Step};

#[derive(Clone, Copy)]
pub(crate) enum Route {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast { root: Rank },
    Reduce { root: Rank },
}

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
fn itinerary(route: Route) -> Vec<Delayed> {
    let except = None;
    match route {
        Route::AllReduce => vec![
            (Leg::SendFolded, 1),
            (Leg::FoldWithin, 0),
            (Leg::FoldBetween, 1),
            (Leg::SpreadBetween { except }, 1),
            (Leg::SpreadWithin { except }, 2),
            (Leg::TakeSpread { except }, 1),
        ],
        Route::ReduceScatter => vec![
            (Leg::SendFolded, 1),
            (Leg::FoldWithin, 0),
            (Leg::FoldBetween, 1),
        ],
        Route::AllGather => vec![
            (Leg::SpreadBetween { except }, 0),
            (Leg::SpreadWithin { except }, 1),
            (Leg::TakeSpread { except }, 0),
        ],
        Route::Broadcast { root } => {
            let except = Some(root);
            vec![
                (Leg::Scatter { root }, 0),
                (Leg::SpreadBetween { except }, 0),
                (Leg::SpreadWithin { except }, 1),
                (Leg::TakeSpread { except }, 0),
            ]
        }
        Route::Reduce { root } => vec![
            (Leg::TakeGathered { root }, 2),
            (Leg::SendFolded, 1),
            (Leg::FoldWithin, 0),
            (Leg::FoldBetween, 1),
            (Leg::Gather { root }, 1),
        ],
    }
}

pub(crate) fn build(
    chunking: &Chunking,
    hosts: &Hosts,
    route: Route,
    rank: Rank,
    steps: &mut Vec<Step>,
) {
    let legs = itinerary(route);
    let last_delay = legs.iter().map(|&(_, delay)| delay).max();
    let last_delay = last_delay.expect("every route has legs");
    let view = View::new(hosts, rank);
    let chunks = chunking.of_longest_block();
    for iteration in 0..chunks + last_delay {
        for &(leg, delay) in &legs {
            let index = iteration.checked_sub(delay).filter(|&index| index < chunks);
            if let Some(index) = index {
                let mut walk = Walk {
                    chunking,
                    view: &view,
                    index,
                    steps,
                };
                walk.take(leg);
            }
        }
    }
}

struct View {
    seats: Seats,
    /// All ranks, in batches of which no two have the same agent on this rank's host.
    batches: Vec<Vec<Rank>>,
}

impl View {
    fn new(hosts: &Hosts, rank: Rank) -> Self {
        let seats = Seats::new(hosts.numbers(), rank);
        let batches = seats.batches(seats.members[seats.party].len());
        Self { seats, batches }
    }

    /// The other hosts, the next one first, so that not all ranks send to one host at once.
    fn other_hosts(&self) -> impl Iterator<Item = usize> + '_ {
        let hosts = self.members.len();
        (1..hosts).map(move |distance| (self.party + distance) % hosts)
    }

    /// The owners on other hosts whose agent this rank is.
    fn charges(&self) -> impl Iterator<Item = Rank> + '_ {
        self.other_hosts()
            .flat_map(|host| self.members[host].iter().copied())
            .filter(|&owner| self.agent(owner, self.party) == self.rank)
    }
}

impl std::ops::Deref for View {
    type Target = Seats;

    fn deref(&self) -> &Seats {
        &self.seats
    }
}

/// One leg of one chunk of every block.
struct Walk<'a> {
    chunking: &'a Chunking,
    view: &'a View,
    index: usize,
    steps: &'a mut Vec<Step>,
}

impl Walk<'_> {
    fn take(&mut self, leg: Leg) {
        match leg {
            Leg::FoldWithin => self.fold_within(),
            Leg::SendFolded => self.send_folded(),
            Leg::FoldBetween => self.fold_between(),
            Leg::SpreadBetween { except } => self.spread_between(except),
            Leg::TakeSpread { except } => self.take_spread(except),
            Leg::SpreadWithin { except } => self.spread_within(except),
            Leg::Scatter { root } => self.scatter(root),
            Leg::Gather { root } => self.gather(root),
            Leg::TakeGathered { root } => self.take_gathered(root),
        }
    }

    fn fold_within(&mut self) {
        let view = self.view;
        let members = &view.members[view.party];
        let stage = if view.members.len() == 1 {
            Stage::Final
        } else {
            Stage::Partial
        };
        if members.len() == 1 && stage == Stage::Partial {
            return;
        }
        for batch in &view.batches {
            let agent = |owner| view.agent(owner, view.party);
            for &owner in batch.iter().filter(|&&owner| agent(owner) != view.rank) {
                self.put(agent(owner), owner);
            }
            let own = batch.iter().find(|&&owner| agent(owner) == view.rank);
            if let Some(&owner) = own {
                self.fold(owner, members, stage);
            }
        }
    }

    fn send_folded(&mut self) {
        for owner in self.view.charges() {
            self.put(owner, owner);
        }
    }

    fn fold_between(&mut self) {
        let view = self.view;
        if view.members.len() == 1 {
            return;
        }
        let agents: Vec<_> = (0..view.members.len())
            .map(|host| view.agent(view.rank, host))
            .collect();
        self.fold(view.rank, &agents, Stage::Final);
    }

    fn spread_between(&mut self, except: Option<Rank>) {
        let view = self.view;
        for host in view.other_hosts() {
            let agent = view.agent(view.rank, host);
            if Some(agent) != except {
                self.put(agent, view.rank);
            }
        }
    }

    fn take_spread(&mut self, except: Option<Rank>) {
        let view = self.view;
        if Some(view.rank) != except {
            for owner in view.charges() {
                self.receive(owner, owner);
            }
        }
    }

    fn spread_within(&mut self, except: Option<Rank>) {
        let view = self.view;
        let agent = |owner| view.agent(owner, view.party);
        for batch in &view.batches {
            let own = batch.iter().find(|&&owner| agent(owner) == view.rank);
            if let Some(&owner) = own {
                for peer in view.neighbours().filter(|&peer| Some(peer) != except) {
                    self.put(peer, owner);
                }
            }
            if Some(view.rank) != except {
                for &owner in batch.iter().filter(|&&owner| agent(owner) != view.rank) {
                    self.receive(agent(owner), owner);
                }
            }
        }
    }

    fn scatter(&mut self, root: Rank) {
        let view = self.view;
        if view.rank == root {
            for owner in self.chunking.world_size.peers(root) {
                self.put(owner, owner);
            }
        } else {
            self.receive(root, view.rank);
        }
    }

    fn gather(&mut self, root: Rank) {
        if self.view.rank != root {
            self.put(root, self.view.rank);
        }
    }

    fn take_gathered(&mut self, root: Rank) {
        if self.view.rank == root {
            for owner in self.chunking.world_size.peers(root) {
                self.receive(owner, owner);
            }
        }
    }

    /// Sends the chunk of `owner`'s block, if it has one with this index.
    fn put(&mut self, peer: Rank, owner: Rank) {
        let chunk = self.chunking.chunk_of_block(owner, self.index);
        self.steps
            .extend(chunk.map(|source| Step::Put { peer, source }));
    }

    fn receive(&mut self, peer: Rank, owner: Rank) {
        if let Some(target) = self.chunking.chunk_of_block(owner, self.index) {
            self.steps.extend(receive(peer, target));
        }
    }

    /// Folds the chunk of `owner`'s block over `ranks`, of which this rank is one.
    fn fold(&mut self, owner: Rank, ranks: &[Rank], stage: Stage) {
        let Some(target) = self.chunking.chunk_of_block(owner, self.index) else {
            return;
        };
        let rank = self.view.rank;
        let peers = || ranks.iter().copied().filter(|&peer| peer != rank);
        self.steps.extend(peers().map(|peer| Step::Wait { peer }));
        let source = |&peer: &Rank| {
            if peer == rank {
                Source::Own
            } else {
                Source::Inbox(peer)
            }
        };
        self.steps.push(Step::Reduce {
            target,
            sources: ranks.iter().map(source).collect(),
            stage,
        });
        self.steps
            .extend(peers().map(|peer| Step::Release { peer }));
    }
}
