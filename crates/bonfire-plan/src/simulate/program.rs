//! Steps in eight bytes each: what the simulation needs to know of a plan, and no more.
//!
//! A ring of a thousand ranks has eight million steps. They are built rank by rank and packed, so
//! that the lists of [`Step`] never exist all at once.

use std::borrow::Cow;
use std::collections::HashMap;

use super::{Class, SimulateError};
use crate::{
    Algorithm, Collective, Hosts, Partition, Rank, Schedule, ScheduleShape, Source, Step, WorldSize,
};

/// The most steps of a program: half a gibibyte of them.
const OPS_MAX: usize = 1 << 26;

/// Bits of an [`Op`] for what kind it is, and for the index beside its length.
const KIND_BITS: u32 = 3;
const INDEX_BITS: u32 = 24;
const ELEMS_MAX: u64 = 1 << (u64::BITS - KIND_BITS - INDEX_BITS);

pub(super) const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The index is the link's.
    Put,
    /// The index is the link's.
    Wait,
    /// The index is the link's.
    Release,
    /// The index is the class of the link.
    Copy,
    /// The index is that of a [`Folds`].
    Fold,
    /// The index is that of a [`Direct`].
    Direct,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Op(u64);

/// An ordered pair of ranks that exchange frames or reach into each other's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinkEnds {
    pub(super) source: u32,
    pub(super) target: u32,
    pub(super) class: Class,
    /// The port of the sender, and that of the receiver: those of the ranks on one host, and those of
    /// the hosts between two.
    pub(super) port_out: u32,
    pub(super) port_in: u32,
    pub(super) puts: u32,
}

/// The operands that a fold adds to its first, by the class of link that they came over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Folds(pub(super) [u32; 2]);

/// A direct step: the links that it loads and writes over.
#[derive(Debug, Clone)]
pub(super) struct Direct {
    pub(super) loads: Box<[u32]>,
    pub(super) stores: Box<[u32]>,
    pub(super) folds: u32,
    /// Copies: one for each write to another rank, and one for a lone source.
    pub(super) copies: u32,
}

#[derive(Debug)]
pub(super) struct Program {
    pub(super) ops: Vec<Op>,
    /// Where the steps of each rank begin, and the end of the last.
    pub(super) starts: Vec<u32>,
    pub(super) links: Vec<LinkEnds>,
    pub(super) folds: Vec<Folds>,
    pub(super) directs: Vec<Direct>,
    pub(super) hosts: Vec<u32>,
    pub(super) host_ranks: Vec<u32>,
}

impl Op {
    fn new(kind: Kind, index: u32, elems: usize) -> Self {
        debug_assert!(index < 1 << INDEX_BITS && (elems as u64) < ELEMS_MAX);
        Self(
            kind as u64
                | u64::from(index) << KIND_BITS
                | (elems as u64) << (KIND_BITS + INDEX_BITS),
        )
    }

    pub(super) fn kind(self) -> Kind {
        match self.0 & ((1 << KIND_BITS) - 1) {
            0 => Kind::Put,
            1 => Kind::Wait,
            2 => Kind::Release,
            3 => Kind::Copy,
            4 => Kind::Fold,
            _ => Kind::Direct,
        }
    }

    pub(super) fn index(self) -> usize {
        (self.0 >> KIND_BITS) as usize & ((1 << INDEX_BITS) - 1)
    }

    pub(super) fn elems(self) -> u64 {
        self.0 >> (KIND_BITS + INDEX_BITS)
    }
}

impl Program {
    pub(super) fn of_schedule(schedule: &Schedule, hosts: &Hosts) -> Result<Self, SimulateError> {
        if frames_min(schedule.shape()) > OPS_MAX as u128 {
            return Err(SimulateError::TooManySteps { limit: OPS_MAX });
        }
        let steps = |rank| Cow::Owned(schedule.steps(rank));
        Self::new(schedule.world_size(), hosts, steps)
    }

    pub(super) fn new<'a>(
        world_size: WorldSize,
        hosts: &Hosts,
        steps: impl Fn(Rank) -> Cow<'a, [Step]>,
    ) -> Result<Self, SimulateError> {
        let given = hosts.rank_count();
        if given != world_size.len() {
            return Err(SimulateError::HostsLength { given, world_size });
        }
        let mut host_ranks = vec![0; hosts.host_count()];
        let hosts: Vec<u32> = hosts.numbers().collect();
        for &host in &hosts {
            host_ranks[host as usize] += 1;
        }
        let mut packer = Packer {
            program: Self {
                ops: Vec::new(),
                starts: vec![0],
                links: Vec::new(),
                folds: Vec::new(),
                directs: Vec::new(),
                hosts,
                host_ranks,
            },
            links: HashMap::new(),
            folds: HashMap::new(),
            out: vec![NONE; world_size.len()],
            inbox: vec![NONE; world_size.len()],
        };
        for rank in world_size.ranks() {
            packer.add(rank, &steps(rank))?;
        }
        Ok(packer.program)
    }

    /// The rank that a step belongs to: one of the two ends of the link it uses.
    pub(super) fn initiator(&self, op: u32, link: &LinkEnds) -> u32 {
        let source = link.source as usize;
        if (self.starts[source]..self.starts[source + 1]).contains(&op) {
            link.source
        } else {
            link.target
        }
    }
}

struct Packer {
    program: Program,
    links: HashMap<(u32, u32), u32>,
    folds: HashMap<Folds, u32>,
    /// The links of the rank at hand to and from each peer, once it has used them; so that the map
    /// is asked once for each and not once for each frame.
    out: Vec<u32>,
    inbox: Vec<u32>,
}

impl Packer {
    fn add(&mut self, rank: Rank, steps: &[Step]) -> Result<(), SimulateError> {
        self.out.fill(NONE);
        self.inbox.fill(NONE);
        if self.program.ops.len() + steps.len() > OPS_MAX {
            return Err(SimulateError::TooManySteps { limit: OPS_MAX });
        }
        self.program.ops.reserve(steps.len());
        for step in steps {
            let op = self.pack(rank, step)?;
            self.program.ops.push(op);
        }
        let end = u32::try_from(self.program.ops.len()).expect("below the limit");
        self.program.starts.push(end);
        Ok(())
    }

    fn pack(&mut self, rank: Rank, step: &Step) -> Result<Op, SimulateError> {
        let checked = |elems: usize| match elems as u64 {
            ..ELEMS_MAX => Ok(elems),
            _ => Err(SimulateError::TooManyElements { rank, elems }),
        };
        Ok(match step {
            Step::Put { peer, source } => {
                let link = self.link_to(rank, *peer)?;
                self.program.links[link as usize].puts += 1;
                Op::new(Kind::Put, link, checked(source.len())?)
            }
            Step::Wait { peer } => Op::new(Kind::Wait, self.link_from(rank, *peer)?, 0),
            Step::Release { peer } => Op::new(Kind::Release, self.link_from(rank, *peer)?, 0),
            Step::Copy { peer, target } => {
                let class = self.class(rank, *peer);
                Op::new(Kind::Copy, class as u32, checked(target.len())?)
            }
            Step::Reduce { target, sources, .. } => {
                let index = self.folds_of(rank, sources);
                Op::new(Kind::Fold, index, checked(target.len())?)
            }
            Step::ReduceDirect { range, sources, targets, .. } => {
                let direct = self.direct(rank, sources, targets)?;
                let index = small(self.program.directs.len())?;
                self.program.directs.push(direct);
                Op::new(Kind::Direct, index, checked(range.len())?)
            }
        })
    }

    /// Counts the operands that are folded into another: a rank's own data if it is among them, else the first frame.
    fn folds_of(&mut self, rank: Rank, sources: &[Source]) -> u32 {
        let mut folds = Folds::default();
        let mut is_first_frame = !sources.contains(&Source::Own);
        for source in sources {
            if let Source::Inbox(peer) = source
                && !std::mem::take(&mut is_first_frame)
            {
                folds.0[self.class(rank, *peer) as usize] += 1;
            }
        }
        let list = &mut self.program.folds;
        *self.folds.entry(folds).or_insert_with(|| {
            list.push(folds);
            u32::try_from(list.len() - 1).expect("counts of operands are few")
        })
    }

    fn direct(
        &mut self,
        rank: Rank,
        sources: &[Rank],
        targets: &[Rank],
    ) -> Result<Direct, SimulateError> {
        let mut named = sources.iter().chain(targets);
        if let Some(&peer) = named.find(|&&peer| self.class(rank, peer) == Class::Inter) {
            return Err(SimulateError::DirectAcrossHosts { rank, peer });
        }
        let loads = self.others(rank, sources, Self::link_from)?;
        let stores = self.others(rank, targets, Self::link_to)?;
        let operands = u32::try_from(sources.len()).expect("ranks are counted in 32 bits");
        let written = u32::try_from(stores.len()).expect("ranks are counted in 32 bits");
        Ok(Direct {
            loads,
            stores,
            folds: operands.saturating_sub(1),
            copies: written + u32::from(operands == 1),
        })
    }

    /// The links to the other ranks of a list, starting behind `rank`: everyone starts elsewhere,
    /// so that not all load from the same rank at once.
    fn others(
        &mut self,
        rank: Rank,
        list: &[Rank],
        link: impl Fn(&mut Self, Rank, Rank) -> Result<u32, SimulateError>,
    ) -> Result<Box<[u32]>, SimulateError> {
        let mut peers: Vec<Rank> = list.iter().copied().filter(|&peer| peer != rank).collect();
        peers.sort_unstable_by_key(|&peer| (peer < rank, peer));
        let links = peers.into_iter().map(|peer| link(self, rank, peer));
        links.collect()
    }

    fn class(&self, rank: Rank, peer: Rank) -> Class {
        let hosts = &self.program.hosts;
        if hosts[rank.index()] == hosts[peer.index()] { Class::Intra } else { Class::Inter }
    }

    fn link_to(&mut self, rank: Rank, peer: Rank) -> Result<u32, SimulateError> {
        if self.out[peer.index()] == NONE {
            self.out[peer.index()] = self.link(rank, peer)?;
        }
        Ok(self.out[peer.index()])
    }

    fn link_from(&mut self, rank: Rank, peer: Rank) -> Result<u32, SimulateError> {
        if self.inbox[peer.index()] == NONE {
            self.inbox[peer.index()] = self.link(peer, rank)?;
        }
        Ok(self.inbox[peer.index()])
    }

    fn link(&mut self, source: Rank, target: Rank) -> Result<u32, SimulateError> {
        let key = (source.get(), target.get());
        if let Some(&link) = self.links.get(&key) {
            return Ok(link);
        }
        let class = self.class(source, target);
        let hosts = &self.program.hosts;
        let port = |rank: Rank| match class {
            Class::Intra => rank.get(),
            Class::Inter => hosts[rank.index()],
        };
        let ends = LinkEnds {
            source: source.get(),
            target: target.get(),
            class,
            port_out: port(source),
            port_in: port(target),
            puts: 0,
        };
        let link = small(self.program.links.len())?;
        self.program.links.push(ends);
        self.links.insert(key, link);
        Ok(link)
    }
}

/// The fewest frames, or pairs of a rank and a memory that it reads, that a plan for `shape` has. One rank's list of
/// steps may be too long for any memory, so this is asked before the first is made.
fn frames_min(shape: &ScheduleShape) -> u128 {
    use Algorithm::{OneShot, Pairwise, Ring, TwoShot, ZeroCopy};
    use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Reduce, ReduceScatter};
    if shape.partition != Partition::Balanced {
        return 0;
    }
    let (ranks, count) = (shape.world_size.len() as u128, shape.count as u128);
    let chunk = shape.chunk_elems_max.get() as u128;
    let peers = ranks - 1;
    // What each of the peers sends, or gets.
    let share = match shape.collective {
        AllReduce | ReduceScatter | AllGather | Broadcast { .. } | Reduce { .. } => count,
        _ => count / ranks,
    };
    let by_data = match shape.algorithm {
        ZeroCopy => peers.min(1) * count / chunk,
        _ => peers * share / chunk,
    };
    // Each block that has elements meets all ranks.
    let blocks = share.min(ranks);
    let by_pairs = match (shape.algorithm, shape.collective) {
        (OneShot, AllReduce) => ranks * peers * count.div_ceil(chunk),
        (
            Ring | OneShot | TwoShot | Pairwise | ZeroCopy,
            AllReduce | ReduceScatter | AllGather | AllToAll,
        ) => blocks * peers,
        _ => 0,
    };
    by_data.max(by_pairs)
}

/// An index that fits beside the length of a step.
fn small(index: usize) -> Result<u32, SimulateError> {
    let index = u32::try_from(index).ok();
    let small = index.filter(|&index| index < 1 << INDEX_BITS);
    small.ok_or(SimulateError::TooManySteps { limit: OPS_MAX })
}
