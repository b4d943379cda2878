//! Who holds which rows of which parameter.
//!
//! A training has three states per parameter: its values, its gradient, and what the optimizer keeps for
//! it. A [`Placement`] says of each whether every rank has all of it or a shard; a [`Layout`] says which
//! rows a rank's shard is. Reducer, optimizer step, gathers, checkpoints and tests read the same layout.
//!
//! The three stages of ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054) are rows of one table, and plain
//! data parallelism is another.

pub mod buckets;
mod cut;
mod placement;

use std::ops::Range;

use crate::{Rank, WorldSize, shard_range};

pub use cut::Cut;
pub use placement::{Placement, ShardGroup, ShardUnit, Sharding};

/// Parameters with fewer elements stay replicated: their share of the memory is nothing, and a message of
/// their own would cost more than their bytes.
pub const SHARDED_ELEMS_MIN: usize = 1024;

/// Which rows of each parameter are whose.
///
/// Dimension 0 of a parameter is cut into as many runs of rows as there are ranks, one after the other in
/// rank order. They differ by at most one row, so where there are fewer rows than ranks, the last ranks have
/// none. Parameters of less than [`SHARDED_ELEMS_MIN`] elements are not cut, nor is any in a world of one, unless it is
/// [offloaded](Self::offloaded).
///
/// With [`ShardUnit::Parameters`] one rank has all rows, and the others none. The largest parameter
/// is assigned first, each to the rank that has the fewest elements so far: the fullest rank has at
/// most 4/3 of what it has in the best assignment (Graham 1969).
///
/// ```
/// # mod bonfire { pub mod collective { pub use bonfire_plan::*; } pub mod ddp { pub use bonfire_plan::*; } }
/// use bonfire::collective::{Rank, WorldSize};
/// use bonfire::ddp::{Layout, Placement};
///
/// let shapes: [&[usize]; 2] = [&[1025, 4], &[4]];
/// let layout = Layout::new(shapes, Placement::zero1(), WorldSize::new(2)?);
/// assert_eq!(layout.rows(0, Rank::new(1)), 513..1025);
/// assert_eq!(layout.elems(0, Rank::new(0)), 0..2052);
/// assert!(!layout.is_cut(1));
/// # Ok::<(), bonfire_plan::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    world_size: WorldSize,
    placement: Placement,
    parameters: Vec<Extent>,
    divisions: Vec<Division>,
}

/// Who has what of the sharded states of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Division {
    /// Every rank has all of it.
    Whole,
    /// Every rank has its rows.
    Rows,
    /// One rank has all of it.
    Owned(Rank),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    rows: usize,
    row_elems: usize,
}

impl Extent {
    fn of(shape: &[usize]) -> Self {
        let (rows, inner) = shape.split_first().unwrap_or((&1, &[]));
        Self { rows: *rows, row_elems: inner.iter().product() }
    }

    fn elems(self) -> usize {
        self.rows * self.row_elems
    }
}

impl Layout {
    /// That of parameters of these shapes.
    pub fn new<'a>(
        shapes: impl IntoIterator<Item = &'a [usize]>,
        placement: Placement,
        world_size: WorldSize,
    ) -> Self {
        let is_cut = placement.is_sharded() && world_size.get() > 1;
        Self::of(shapes, placement, world_size, is_cut)
    }

    /// The same, where rows are elsewhere than where ranks compute: one that is alone has rows, too, all of them.
    pub fn offloaded<'a>(
        shapes: impl IntoIterator<Item = &'a [usize]>,
        placement: Placement,
        world_size: WorldSize,
    ) -> Self {
        Self::of(shapes, placement, world_size, placement.is_sharded())
    }

    fn of<'a>(
        shapes: impl IntoIterator<Item = &'a [usize]>,
        placement: Placement,
        world_size: WorldSize,
        are_cut: bool,
    ) -> Self {
        let parameters: Vec<Extent> = shapes.into_iter().map(Extent::of).collect();
        let division = |extent: &Extent| match extent.elems() {
            SHARDED_ELEMS_MIN.. if are_cut => Division::Rows,
            _ => Division::Whole,
        };
        let mut divisions: Vec<Division> = parameters.iter().map(division).collect();
        if placement.unit == ShardUnit::Parameters {
            assign_owners(&parameters, &mut divisions, world_size);
        }
        Self { world_size, placement, parameters, divisions }
    }

    /// The ranks that share the parameters.
    pub fn world_size(&self) -> WorldSize {
        self.world_size
    }

    /// The placement that says which states are sharded.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Who has what of a parameter, in the states that are sharded.
    pub fn division(&self, parameter: usize) -> Division {
        self.divisions[parameter]
    }

    /// Whether the ranks have different parts of a parameter, in the states that are sharded.
    pub fn is_cut(&self, parameter: usize) -> bool {
        self.divisions[parameter] != Division::Whole
    }

    /// The rows of a parameter that a rank has in a sharded state; all of them where it is not cut.
    pub fn rows(&self, parameter: usize, rank: Rank) -> Range<usize> {
        let rows = self.parameters[parameter].rows;
        match self.divisions[parameter] {
            Division::Rows => shard_range(rows, self.world_size, rank).as_range(),
            Division::Owned(owner) if owner != rank => 0..0,
            Division::Whole | Division::Owned(_) => 0..rows,
        }
    }

    /// The elements of those rows, in row-major order.
    pub fn elems(&self, parameter: usize, rank: Rank) -> Range<usize> {
        let row_elems = self.parameters[parameter].row_elems;
        let rows = self.rows(parameter, rank);
        rows.start * row_elems..rows.end * row_elems
    }

    /// How many elements each block of a bucket with these parameters has, and how many blocks: one for each rank
    /// where they are cut into rows, as long as that of the rank with the most, and one in all other cases. A bucket
    /// has parameters that are divided alike.
    pub fn blocks(&self, parameters: &[usize]) -> (usize, usize) {
        let all = |parameter: &usize| self.parameters[*parameter].elems();
        match parameters.first().map(|&first| self.divisions[first]) {
            Some(Division::Rows) => {
                let parameters = parameters.iter();
                let of = |rank| move |&one: &usize| self.elems(one, rank).len();
                let elems = |rank| parameters.clone().map(of(rank));
                let longest = self.world_size.ranks().map(|rank| elems(rank).sum()).max();
                (longest.unwrap_or(0), self.world_size.len())
            }
            _ => (parameters.iter().map(all).sum(), 1),
        }
    }

    /// How many elements a rank holds of a state that lies so.
    pub fn held(&self, spread: Sharding, rank: Rank) -> usize {
        let elems = |parameter: usize| match spread {
            Sharding::Replicated => self.parameters[parameter].elems(),
            Sharding::Sharded => self.elems(parameter, rank).len(),
        };
        (0..self.parameters.len()).map(elems).sum()
    }

    /// How many elements a rank sends in a step of `micro_batches`, on average over the ranks, where sums and
    /// gathers send the least that they can: (n - 1) / n of what is summed or gathered.
    ///
    /// Ψ elements that are cut take 2 Ψ times that where parameters are whole, and (2 k + 1) Ψ where they are
    /// gathered for each of k forward and backward passes: gradients are summed over the ranks once, after the last
    /// micro-batch. What is not cut is summed once. With several `copies` of the state, each among as many ranks as
    /// this layout has, the sum of a rank's shard goes over the copies, too.
    pub fn elems_sent(&self, micro_batches: usize, copies: u32) -> f64 {
        let (mut cut, mut whole) = (0, 0);
        for (parameter, extent) in self.parameters.iter().enumerate() {
            if self.is_cut(parameter) { cut += extent.elems() } else { whole += extent.elems() }
        }
        let times = match self.placement.parameters {
            Sharding::Sharded => 2 * micro_batches + 1,
            Sharding::Replicated => 2,
        };
        let (ranks, copies) = (f64::from(self.world_size.get()), f64::from(copies));
        let sent = |elems: usize, among: f64| elems as f64 * (among - 1.0) / among;
        let shard_over_copies = sent(2 * cut, copies) / ranks;
        sent(times * cut, ranks) + shard_over_copies + sent(2 * whole, ranks * copies)
    }
}

/// Gives each parameter that is cut an owner.
fn assign_owners(parameters: &[Extent], divisions: &mut [Division], world_size: WorldSize) {
    let cut = (0..parameters.len()).filter(|&index| divisions[index] == Division::Rows);
    let mut cut: Vec<usize> = cut.collect();
    cut.sort_by_key(|&parameter| std::cmp::Reverse(parameters[parameter].elems()));
    let mut loads: Vec<(usize, Rank)> = world_size.ranks().map(|rank| (0, rank)).collect();
    for parameter in cut {
        let least = loads.iter_mut().min_by_key(|(load, rank)| (*load, *rank));
        if let Some((load, owner)) = least {
            *load += parameters[parameter].elems();
            divisions[parameter] = Division::Owned(*owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout(shapes: &[Vec<usize>], placement: Placement, ranks: u32) -> Layout {
        let shapes = shapes.iter().map(Vec::as_slice);
        Layout::new(shapes, placement, WorldSize::new(ranks).unwrap())
    }

    #[test]
    fn what_is_small_or_has_nobody_to_share_with_stays_whole() {
        let shapes = [vec![1023], vec![1024], vec![3, 1000], vec![]];
        let sharded = layout(&shapes, Placement::zero1(), 4);
        let cut: Vec<bool> = (0..4).map(|parameter| sharded.is_cut(parameter)).collect();
        assert_eq!(cut, [false, true, true, false]);
        assert_eq!(sharded.rows(2, Rank::new(2)), 2..3);
        assert!(sharded.rows(2, Rank::new(3)).is_empty());
        for whole in
            [layout(&shapes, Placement::zero3(), 1), layout(&shapes, Placement::replicated(), 4)]
        {
            assert!((0..4).all(|parameter| !whole.is_cut(parameter)));
            assert_eq!(whole.elems(2, Rank::new(0)), 0..3000);
        }
        let shapes = shapes.iter().map(Vec::as_slice);
        let offloaded = Layout::offloaded(shapes, Placement::zero3(), WorldSize::ONE);
        assert_eq!(offloaded.division(2), Division::Rows);
        assert_eq!(offloaded.rows(2, Rank::new(0)), 0..3);
        assert!(!offloaded.is_cut(0));
    }

    #[test]
    fn bytes_follow_the_table_of_the_paper() {
        // 2 million elements in matrices whose rows divide.
        let shapes = vec![vec![1024, 1024]; 2];
        let total = (2 << 20) as f64;
        for ranks in [2, 4, 8] {
            let share = 1.0 / f64::from(ranks);
            let bytes = |placement: Placement| {
                let layout = layout(&shapes, placement, ranks);
                let held = |spread, bytes| bytes * layout.held(spread, Rank::new(0)) as f64;
                (held(placement.parameters, 4.0)
                    + held(placement.gradients, 4.0)
                    + held(placement.optimizer, 8.0))
                    / total
            };
            assert_eq!(bytes(Placement::replicated()), 16.0);
            assert_eq!(bytes(Placement::zero1()), 8.0 + 8.0 * share);
            assert_eq!(bytes(Placement::zero2()), 4.0 + 12.0 * share);
            assert_eq!(bytes(Placement::zero3()), 16.0 * share);
            for (placement, k, times) in [
                (Placement::replicated(), 4, 2.0),
                (Placement::zero1(), 4, 2.0),
                (Placement::zero2(), 1, 2.0),
                (Placement::zero2(), 4, 2.0),
                (Placement::zero3(), 1, 3.0),
                (Placement::zero3(), 4, 9.0),
            ] {
                let sent = layout(&shapes, placement, ranks).elems_sent(k, 1) / total;
                assert_eq!(sent, times * (1.0 - share), "{placement}, {k} micro-batches");
            }
        }
    }

    #[test]
    fn whole_parameters_are_assigned_by_size() {
        let shapes = [vec![2000], vec![1023], vec![5000], vec![3000], vec![1024]];
        let placement = Placement::zero1().of_whole_parameters();
        let layout = layout(&shapes, placement, 2);
        let divisions: Vec<_> = (0..5).map(|parameter| layout.division(parameter)).collect();
        let owned = |rank| Division::Owned(Rank::new(rank));
        assert_eq!(divisions, [owned(1), Division::Whole, owned(0), owned(1), owned(0)]);
        assert_eq!(layout.rows(0, Rank::new(1)), 0..2000);
        assert_eq!(layout.rows(0, Rank::new(0)), 0..0);
        assert_eq!(layout.held(Sharding::Sharded, Rank::new(0)), 5000 + 1024 + 1023);
    }

    proptest! {
        /// Every parameter that is cut has one owner, and the ranks' loads differ by no more than the largest.
        #[test]
        fn owners_are_assigned_once_and_evenly(
            sizes in prop::collection::vec(1_usize..5000, 0..20),
            ranks in 1_u32..9,
        ) {
            let shapes: Vec<_> = sizes.iter().map(|&elems| vec![elems]).collect();
            let layout = layout(&shapes, Placement::zero2().of_whole_parameters(), ranks);
            let mut loads = vec![0; ranks as usize];
            for (parameter, &elems) in sizes.iter().enumerate() {
                if !layout.is_cut(parameter) {
                    continue;
                }
                let all = layout.world_size().ranks();
                let owners: Vec<_> =
                    all.filter(|&rank| !layout.rows(parameter, rank).is_empty()).collect();
                prop_assert_eq!(owners.len(), 1);
                prop_assert_eq!(layout.elems(parameter, owners[0]), 0..elems);
                loads[owners[0].index()] += elems;
            }
            let spread = loads.iter().max().unwrap() - loads.iter().min().unwrap();
            prop_assert!(spread <= sizes.iter().copied().max().unwrap_or(0));
        }

        /// Every row has one owner, in rank order, and no rank has two rows more than another.
        #[test]
        fn rows_are_assigned_once_and_evenly(
            shapes in prop::collection::vec(prop::collection::vec(1_usize..200, 0..4), 1..6),
            ranks in 1_u32..9,
        ) {
            let layout = layout(&shapes, Placement::zero3(), ranks);
            for (parameter, shape) in shapes.iter().enumerate() {
                let all = layout.world_size().ranks();
                let runs: Vec<_> = all.map(|rank| layout.elems(parameter, rank)).collect();
                let total = shape.iter().product::<usize>();
                if !layout.is_cut(parameter) {
                    prop_assert!(runs.iter().all(|run| *run == (0..total)));
                    continue;
                }
                let mut next = 0;
                for run in &runs {
                    prop_assert_eq!(run.start, next);
                    next = run.end;
                }
                prop_assert_eq!(next, total);
                let row = total / shape[0];
                let lens = runs.iter().map(|run| run.len() / row);
                prop_assert!(lens.clone().max().unwrap() - lens.min().unwrap() <= 1);
            }
        }
    }
}
