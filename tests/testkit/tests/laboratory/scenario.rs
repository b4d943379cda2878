//! What a seed stands for: a job, a network and what goes wrong.

use std::time::Duration;

use bonfire_collective::{Algorithm, GroupOptions, StoreHost, TransportKind};
use bonfire_laboratory::{Chance, Conditions};

/// An operation that all ranks call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    AllReduce { elems: usize },
    AllReduceInBackground { elems: usize },
    Broadcast { elems: usize, root: u32 },
    AllGather { elems: usize },
    Barrier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Nothing,
    /// A rank's process is killed.
    Kill {
        rank: u32,
    },
    /// A rank's process does not run, for a while or for ever.
    Stop {
        rank: u32,
        span: Option<Duration>,
    },
    /// Some hosts cannot reach the others, for a while or for ever.
    Cut {
        side: u64,
        span: Option<Duration>,
    },
    /// All connections between two hosts break.
    Reset {
        hosts: [usize; 2],
    },
    /// Some connections between hosts break soon after they are made.
    Breaks,
    /// A bit of what one of two hosts sends to the other is wrong.
    Flip {
        hosts: [usize; 2],
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    /// Of each rank.
    pub(crate) hosts: Vec<usize>,
    pub(crate) store: StoreHost,
    pub(crate) conditions: Conditions,
    pub(crate) options: GroupOptions,
    pub(crate) calls: Vec<Call>,
    /// What each rank does between two calls, at most.
    pub(crate) pause_max: Duration,
    pub(crate) trouble: Trouble,
    pub(crate) trouble_at: Duration,
}

/// A fault that passes so soon must disturb nobody.
const SHORT: Duration = Duration::from_millis(1200);

/// A fault that lasts so long is noticed wherever it matters.
const LONG: Duration = Duration::from_secs(120);

/// Where the store is served, unless rank 0 chooses.
pub(crate) const STORE_PORT: u16 = 29_500;

/// Nothing strikes later.
const TROUBLE_AT_MAX: Duration = Duration::from_secs(2);

impl Scenario {
    pub(crate) fn of(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let world_size = chance.within(2..=5) as usize;
        let host_count = chance.within(1..=world_size as u64) as usize;
        let hosts: Vec<usize> = (0..world_size)
            .map(|rank| if rank < host_count { rank } else { chance.index(host_count) })
            .collect();
        let store = match host_count {
            1 => chance.pick(&[StoreHost::Agent, StoreHost::RankZero, StoreHost::Nearby]),
            _ => chance.pick(&[StoreHost::Agent, StoreHost::RankZero]),
        };
        let mut conditions = conditions(&mut chance);
        let mut options = options(&mut chance);
        if host_count == 1 && chance.once_in(2) {
            options.transport = Some(TransportKind::Unix);
        }
        let calls = (0..chance.within(1..=8)).map(|_| call(&mut chance, world_size)).collect();
        let trouble = trouble(&mut chance, world_size, host_count);
        if trouble == Trouble::Breaks {
            conditions.breaks = chance.pick(&[3, 20]);
        }
        Self {
            seed,
            hosts,
            store,
            conditions,
            options,
            calls,
            pause_max: chance.moment(Duration::from_millis(400)),
            trouble,
            trouble_at: chance.moment(TROUBLE_AT_MAX),
        }
    }

    pub(crate) fn world_size(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// Whether the job must come to its end as if nothing had happened.
    pub(crate) fn is_harmless(&self) -> bool {
        match self.trouble {
            Trouble::Nothing => true,
            Trouble::Stop { span, .. } | Trouble::Cut { span, .. } => {
                span.is_some_and(|span| span <= SHORT)
            }
            Trouble::Kill { .. }
            | Trouble::Reset { .. }
            | Trouble::Breaks
            | Trouble::Flip { .. } => false,
        }
    }
}

fn conditions(chance: &mut Chance) -> Conditions {
    let shortest = chance.moment(Duration::from_millis(2));
    Conditions {
        latency: shortest..=shortest + chance.moment(Duration::from_millis(20)),
        loss: chance.pick(&[0, 0, 500, 100]),
        window_bytes: chance.pick(&[1 << 13, 1 << 16, 1 << 20]),
        backlog: chance.pick(&[1, 2, 8, 128]),
        short: chance.pick(&[0, 20, 3]),
        breaks: 0,
        cores: chance.pick(&[0, 64]),
    }
}

fn options(chance: &mut Chance) -> GroupOptions {
    GroupOptions::default()
        .with_timeout(Duration::from_secs(chance.pick(&[10, 60])))
        .with_startup_timeout(Duration::from_secs(60))
        .with_algorithm(chance.pick(&[
            None,
            Some(Algorithm::Ring),
            Some(Algorithm::DoubleTree),
            Some(Algorithm::HalvingDoubling),
        ]))
        .with_transport(Some(TransportKind::Tcp))
        .with_chunk_bytes(chance.pick(&[256, 4 << 10, 64 << 10]))
        .with_streams_per_link(chance.pick(&[1, 1, 2]))
}

fn call(chance: &mut Chance, world_size: usize) -> Call {
    // What the slowest network moves in a fraction of a deadline.
    let elems = chance.pick(&[1, 7, 100, 1000, 3000]);
    let root = chance.index(world_size) as u32;
    match chance.below(6) {
        0 => Call::Barrier,
        1 => Call::Broadcast { elems, root },
        2 => Call::AllGather { elems },
        3 => Call::AllReduceInBackground { elems },
        _ => Call::AllReduce { elems },
    }
}

fn trouble(chance: &mut Chance, world_size: usize, host_count: usize) -> Trouble {
    let rank = chance.index(world_size) as u32;
    let span = match chance.below(3) {
        0 => None,
        1 => Some(chance.moment(SHORT)),
        _ => Some(LONG),
    };
    let pair = |chance: &mut Chance| {
        let one = chance.index(host_count);
        let other = (one + 1 + chance.index(host_count - 1)) % host_count;
        [one, other]
    };
    match chance.below(9) {
        0 => Trouble::Nothing,
        1 | 2 => Trouble::Kill { rank },
        3 => Trouble::Stop { rank, span },
        4 if host_count > 1 => {
            // Neither side is empty.
            let side = chance.within(1..=(1 << host_count) - 2);
            Trouble::Cut { side, span }
        }
        5 if host_count > 1 => Trouble::Reset { hosts: pair(chance) },
        6 if host_count > 1 => Trouble::Breaks,
        7 | 8 if host_count > 1 => Trouble::Flip { hosts: pair(chance) },
        _ => Trouble::Kill { rank },
    }
}
