//! Counts the bytes that a rank holds in each phase of a training.

use super::held::{Held, Phase, RankMemory};
use super::{Evaluation, Parameter, Start, Training};
use crate::buckets::{Assignment, Extent, assign, lent_bytes_max};
use crate::{Bytes, Division, Layout, Placement, Rank, Sharding};

/// What a process that is one of several ranks has besides: threads, connections, the code of both. Two ranks of the
/// example `gpt` on one host with tiny models took 6.4 MiB more than one process, on x86-64 Linux, 2026-11-24.
const RANK_BYTES: u64 = 6 << 20;

pub(super) fn fullest(training: &Training, placement: Placement) -> RankMemory {
    let all = training.parameters.iter();
    let trained = all.filter(|parameter| parameter.moments.is_some());
    let trained: Vec<_> = trained.collect();
    let sharing = training.sharing(placement);
    let shapes = trained.iter().map(|parameter| &parameter.shape[..]);
    let layout = Layout::new(shapes, placement, sharing);
    let count = Count {
        buckets: buckets(training, &trained, &layout),
        training,
        placement,
        layout,
        trained,
    };
    let all = sharing.ranks().map(|rank| count.of(rank));
    // The start may be the same for all.
    let totals = |memory: &RankMemory| -> Bytes {
        let phases = memory.phases.iter();
        phases.map(|(_, held)| held.total()).sum()
    };
    let most = all.max_by_key(|memory| (memory.peak().1.total(), totals(memory)));
    most.expect("a group has ranks")
}

struct Bucket {
    division: Division,
    /// Of each rank's block, and of all blocks.
    block: u64,
    bytes: u64,
}

/// The buckets of a training, in which they have the most parameters in the last ones. A lone rank has some only where it
/// adds gradients up.
fn buckets(training: &Training, trained: &[&Parameter], layout: &Layout) -> Vec<Bucket> {
    if training.ranks.get() == 1 && training.micro_batches == 1 {
        return Vec::new();
    }
    let extent =
        |parameter: &&Parameter| Extent { dtype: parameter.dtype, elems: parameter.elems() };
    let extents: Vec<_> = trained.iter().map(extent).collect();
    let order: Vec<usize> = (0..extents.len()).rev().collect();
    let division = |parameter| layout.division(parameter);
    let assignments = assign(&extents, division, &order, training.caps);
    let bucket = |assignment: Assignment| {
        let (elems, blocks) = layout.blocks(&assignment.parameters);
        let block = (elems * assignment.dtype.size_bytes()) as u64;
        Bucket { division: assignment.division, block, bytes: block * blocks as u64 }
    };
    assignments.into_iter().map(bucket).collect()
}

/// What is the same for all ranks.
struct Count<'a> {
    training: &'a Training,
    placement: Placement,
    layout: Layout,
    trained: Vec<&'a Parameter>,
    buckets: Vec<Bucket>,
}

impl Count<'_> {
    fn of(&self, rank: Rank) -> RankMemory {
        let training = self.training;
        let spread = self.placement;
        let gathers = spread.parameters == Sharding::Sharded;
        let all = training.parameters.iter();
        let frozen = all.filter(|one| one.moments.is_none());
        let frozen: u64 = frozen.map(|one| size(one, one.elems())).sum();
        let parameters = frozen + self.held(spread.parameters, rank, size);
        let optimizer = self.held(spread.optimizer, rank, |parameter, elems| {
            parameter.state_bytes() * elems as u64
        });
        let gradients = self.held(spread.gradients, rank, size);
        let stepped = self.held(spread.optimizer, rank, size);
        let (own, lent) = self.bucket_bytes(rank);
        let whole = self.largest(Sharding::Replicated, rank);
        let resting = Held {
            program: self.program(),
            parameters: Bytes::new(parameters),
            optimizer: Bytes::new(optimizer),
            // Where rows are gathered after the step, what was theirs has become the gathered bucket.
            buckets: Bytes::new(lent + if gathers { own } else { 0 }),
            // The gathered parameter, and the memory in which ranks gather it.
            unit: Bytes::new(if gathers { self.gather_bytes() + whole } else { 0 }),
            seen: Bytes::new(self.seen(rank)),
            ..Held::default()
        };
        let pass = Held {
            // Into buckets they go one by one.
            activations: if self.buckets.is_empty() {
                training.activations.with_gradients
            } else {
                training.activations.alone
            },
            ..resting
        };
        // Gradients lie in buckets, where there are some.
        let besides = |gradients: u64| Bytes::new((own + lent).saturating_sub(gradients));
        let complete =
            Held { gradients: Bytes::new(gradients), buckets: besides(gradients), ..resting };
        // The optimizer writes new rows where the whole parameters are still there.
        let rows = match (spread.is_sharded(), gathers) {
            (true, false) => stepped,
            _ => 0,
        };
        let step = Held {
            parameters: Bytes::new(parameters + rows),
            gradients: Bytes::new(stepped),
            buckets: besides(stepped),
            unit: Bytes::new(self.largest(spread.optimizer, rank)),
            ..complete
        };
        let mut phases = vec![
            (Phase::Start, self.start(frozen, parameters)),
            (Phase::Pass, pass),
            (Phase::Gradients, complete),
            (Phase::Step, step),
        ];
        if gathers && training.evaluation == Evaluation::Whole {
            let all = frozen + self.held(Sharding::Replicated, rank, size);
            let whole = Held { parameters: Bytes::new(parameters + all), ..resting };
            phases.push((Phase::Whole, whole));
        }
        RankMemory { placement: self.placement, phases }
    }

    fn program(&self) -> Bytes {
        let rank = match self.training.ranks.get() {
            1 => 0,
            _ => RANK_BYTES,
        };
        self.training.program + Bytes::new(rank)
    }

    /// While the model is made, a rank has two more of the largest parameter: as rank 0 sends it, and as it came.
    fn start(&self, frozen: u64, held: u64) -> Held {
        let all = frozen + self.held(Sharding::Replicated, Rank::new(0), size);
        let parameters = match self.training.start {
            Start::Whole => all.max(held),
            Start::OneByOne => held,
        };
        Held {
            program: self.program(),
            parameters: Bytes::new(parameters),
            unit: Bytes::new(2 * self.largest(Sharding::Replicated, Rank::new(0))),
            ..Held::default()
        }
    }

    /// Bytes of a state that lies so, by the bytes of some elements of a parameter.
    fn held(&self, spread: Sharding, rank: Rank, bytes: impl Fn(&Parameter, usize) -> u64) -> u64 {
        let parts = self.parts(spread, rank);
        parts.map(|(one, elems)| bytes(one, elems)).sum()
    }

    /// Of the parameter of which the rank has the most.
    fn largest(&self, spread: Sharding, rank: Rank) -> u64 {
        let parts = self.parts(spread, rank);
        let bytes = parts.map(|(parameter, elems)| size(parameter, elems));
        bytes.max().unwrap_or(0)
    }

    /// Each parameter, and how many of its elements the rank has.
    fn parts(&self, spread: Sharding, rank: Rank) -> impl Iterator<Item = (&Parameter, usize)> {
        let trained = self.trained.iter().enumerate();
        trained.map(move |(index, &parameter)| match spread {
            Sharding::Replicated => (parameter, parameter.elems()),
            Sharding::Sharded => (parameter, self.layout.elems(index, rank).len()),
        })
    }

    /// Bytes of buckets: this rank's blocks, which it has from the end of the backward pass to that of the step; and
    /// memory that they share, or have always. Those that add up micro-batches share none until the last one.
    fn bucket_bytes(&self, rank: Rank) -> (u64, u64) {
        let (mut own, mut always, mut shared) = (0, 0, Vec::new());
        for bucket in &self.buckets {
            match (bucket.division, self.placement.gradients) {
                (Division::Whole, _) | (_, Sharding::Replicated) => {
                    always += bucket.bytes;
                    continue;
                }
                (Division::Owned(owner), _) if owner != rank => {}
                _ => own += bucket.block,
            }
            shared.push(bucket.bytes);
        }
        let lent: u64 = match self.training.micro_batches {
            1 => lent_bytes_max(&shared),
            _ => shared.iter().sum(),
        };
        (own, always + lent)
    }

    /// The memory in which parameters are gathered: room for the largest that is cut.
    fn gather_bytes(&self) -> u64 {
        let cut = (0..self.trained.len()).filter(|&index| self.layout.is_cut(index));
        let bytes = cut.map(|index| {
            let (elems, blocks) = self.layout.blocks(&[index]);
            size(self.trained[index], elems * blocks)
        });
        bytes.max().unwrap_or(0)
    }

    /// What a rank sees of the buckets of others on its host. It sums its block of everybody's. Where updated rows are
    /// gathered in the same memory, it writes the same block of everybody's.
    fn seen(&self, rank: Rank) -> u64 {
        let training = self.training;
        let (all, sharing) = (training.ranks.get(), self.layout.world_size().get());
        let host = training.ranks_per_host.get();
        let among = |ranks: u32| {
            if ranks <= host { u64::from(ranks) - 1 } else { 0 }
        };
        let (mut always, mut shared) = (0, Vec::new());
        for bucket in &self.buckets {
            let seen = match bucket.division {
                Division::Whole => bucket.bytes * among(all) / u64::from(all),
                Division::Rows => bucket.block * among(sharing),
                Division::Owned(owner) if owner == rank => bucket.bytes * among(sharing),
                Division::Owned(_) => bucket.bytes * among(sharing).min(1),
            };
            match (bucket.division, self.placement.gradients) {
                (Division::Whole, _) | (_, Sharding::Replicated) => always += seen,
                _ => shared.push(seen),
            }
        }
        let gathered = match self.placement.parameters {
            Sharding::Sharded => self.gather_bytes() * among(sharing) / u64::from(sharing),
            Sharding::Replicated => 0,
        };
        always + lent_bytes_max(&shared) + gathered
    }
}

fn size(parameter: &Parameter, elems: usize) -> u64 {
    Bytes::of(elems as u64, parameter.dtype).get()
}
