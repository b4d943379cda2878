//! One block of elements from every rank, of any lengths.

use bonfire_plan::{Partition, Rank};

use crate::Element;

/// What a gathering operation with variable counts gives: the block of each rank, in one buffer, in rank order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks<T> {
    data: Vec<T>,
    lengths: Vec<usize>,
}

impl<T: Element> Blocks<T> {
    pub(crate) fn zeroed(lengths: Vec<usize>) -> Self {
        Self { data: vec![T::zeroed(); lengths.iter().sum()], lengths }
    }

    pub(crate) fn partition(&self) -> Partition {
        Partition::Ragged(self.lengths.as_slice().into())
    }

    pub(crate) fn all_mut(&mut self) -> &mut [T] {
        &mut self.data
    }

    pub(crate) fn of_mut(&mut self, rank: Rank) -> &mut [T] {
        let range = self.range(rank);
        &mut self.data[range]
    }
}

impl<T> Blocks<T> {
    /// The elements that came from `rank`.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn of(&self, rank: Rank) -> &[T] {
        &self.data[self.range(rank)]
    }

    /// The block of each rank, in rank order.
    pub fn iter(&self) -> impl Iterator<Item = &[T]> {
        let ranks = 0..self.lengths.len() as u32;
        ranks.map(|rank| self.of(Rank::new(rank)))
    }

    /// How many elements came from each rank.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// All elements, one block after the other.
    pub fn into_vec(self) -> Vec<T> {
        self.data
    }

    fn range(&self, rank: Rank) -> std::ops::Range<usize> {
        let start = self.lengths[..rank.index()].iter().sum();
        start..start + self.lengths[rank.index()]
    }
}
