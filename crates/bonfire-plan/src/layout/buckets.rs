//! Which parameters share a bucket. Pure: no tensors, no communication.
//!
//! After PyTorch's `compute_bucket_assignment_by_size`: parameters in the order in which their
//! gradients are expected, a small first bucket so that the links are busy early, then large ones.

use crate::DType;
use crate::layout::Division;

/// How many buckets whose gradients are sharded may be on their way at once, with memory that the next ones need.
pub const LENT_MAX: usize = 2;

/// Of buckets that share memory, the bytes of those that may have some at one time: one takes gradients while others are on
/// their way.
pub fn lent_bytes_max(bucket_bytes: &[u64]) -> u64 {
    let mut sizes = bucket_bytes.to_vec();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.iter().take(LENT_MAX + 1).sum()
}

/// What assignment needs to know about a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The type of its elements; a bucket has one type only.
    pub dtype: DType,
    /// Elements of the parameter before a placement shards it.
    pub elems: usize,
}

impl Extent {
    /// The size of its elements in bytes.
    pub fn bytes(self) -> usize {
        self.elems * self.dtype.size_bytes()
    }
}

/// The largest sizes of buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Of the first bucket of a kind, in bytes.
    pub first_bytes_max: usize,
    /// Of the others, in bytes.
    pub bytes_max: usize,
}

impl Default for Caps {
    /// 25 MiB: large enough to use the bandwidth of a link, small enough that several fit into a backward pass. And
    /// 1 MiB for the first, so that the links are busy early.
    fn default() -> Self {
        Self { first_bytes_max: 1 << 20, bytes_max: 25 << 20 }
    }
}

/// The parameters of one bucket, in the order of their gradients. All have the same type, and are divided
/// among the ranks alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The type of all elements.
    pub dtype: DType,
    /// Who has what of the parameters.
    pub division: Division,
    /// The indices of its parameters.
    pub parameters: Vec<usize>,
}

/// Assigns parameters to buckets. `order` holds every index of `extents` once, the gradient that is
/// ready first in front; the buckets come out in the order in which they will be complete. Parameters that
/// are divided otherwise share no bucket.
///
/// # Panics
/// If `order` has not as many indices as there are parameters.
pub fn assign(
    extents: &[Extent],
    division: impl Fn(usize) -> Division,
    order: &[usize],
    caps: Caps,
) -> Vec<Assignment> {
    let (named, all) = (order.len(), extents.len());
    assert_eq!(named, all, "the order must name every parameter");
    let mut open: Vec<OpenBucket> = Vec::new();
    let mut closed: Vec<OpenBucket> = Vec::new();
    let mut seen: Vec<(DType, Division)> = Vec::new();
    for (position, &parameter) in order.iter().enumerate() {
        let extent = extents[parameter];
        let (dtype, division) = (extent.dtype, division(parameter));
        let kind = (dtype, division);
        let of_kind = |OpenBucket { assignment, .. }: &OpenBucket| {
            (assignment.dtype, assignment.division) == kind
        };
        let mut index = open.iter().position(of_kind);
        let is_full = |index: &mut usize| {
            let bucket = &open[*index];
            bucket.bytes + extent.bytes() > bucket.bytes_max
        };
        if let Some(full) = index.take_if(is_full) {
            closed.push(open.swap_remove(full));
        }
        let index = index.unwrap_or_else(|| {
            let bytes_max =
                if seen.contains(&kind) { caps.bytes_max } else { caps.first_bytes_max };
            seen.push(kind);
            open.push(OpenBucket {
                assignment: Assignment { dtype, division, parameters: Vec::new() },
                bytes: 0,
                bytes_max,
                last_position: 0,
            });
            open.len() - 1
        });
        let bucket = &mut open[index];
        bucket.assignment.parameters.push(parameter);
        bucket.bytes += extent.bytes();
        bucket.last_position = position;
    }
    closed.append(&mut open);
    closed.sort_by_key(|bucket| bucket.last_position);
    closed.into_iter().map(|bucket| bucket.assignment).collect()
}

struct OpenBucket {
    assignment: Assignment,
    bytes: usize,
    bytes_max: usize,
    last_position: usize,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Rank;

    const CAPS: Caps = Caps { first_bytes_max: 40, bytes_max: 100 };

    fn f32s(elems: &[usize]) -> Vec<Extent> {
        let extent = |&elems| Extent { dtype: DType::F32, elems };
        elems.iter().map(extent).collect()
    }

    fn buckets(extents: &[Extent], order: &[usize]) -> Vec<Vec<usize>> {
        assign(extents, |_| Division::Whole, order, CAPS)
            .into_iter()
            .map(|assignment| assignment.parameters)
            .collect()
    }

    #[test]
    fn the_first_bucket_is_small() {
        let extents = f32s(&[5, 5, 5, 5, 5, 5, 5, 5]);
        let order = [7, 6, 5, 4, 3, 2, 1, 0];
        assert_eq!(buckets(&extents, &order), [vec![7, 6], vec![5, 4, 3, 2, 1], vec![0]]);
    }

    #[test]
    fn a_parameter_larger_than_the_cap_has_a_bucket_of_its_own() {
        let extents = f32s(&[1, 1000, 1, 1]);
        assert_eq!(buckets(&extents, &[0, 1, 2, 3]), [vec![0], vec![1], vec![2, 3]]);
    }

    #[test]
    fn types_do_not_mix_and_buckets_come_in_the_order_they_are_complete() {
        let mut extents = f32s(&[5, 5, 5]);
        extents[1].dtype = DType::F16;
        assert_eq!(buckets(&extents, &[0, 1, 2]), [vec![1], vec![0, 2]]);
    }

    #[test]
    fn what_is_divided_otherwise_shares_no_bucket() {
        let extents = f32s(&[5, 5, 5, 5, 5]);
        let owned = |rank| Division::Owned(Rank::new(rank));
        let divisions = [Division::Rows, owned(0), Division::Rows, owned(1), owned(0)];
        let division = |parameter: usize| divisions[parameter];
        let found = assign(&extents, division, &[0, 1, 2, 3, 4], CAPS);
        let found: Vec<_> =
            found.into_iter().map(|bucket| (bucket.division, bucket.parameters)).collect();
        let expected = [(Division::Rows, vec![0, 2]), (owned(1), vec![3]), (owned(0), vec![1, 4])];
        assert_eq!(found, expected);
    }

    #[test]
    fn no_parameters_need_no_buckets() {
        assert_eq!(buckets(&[], &[]), Vec::<Vec<usize>>::new());
    }

    proptest! {
        #[test]
        fn every_parameter_is_in_one_bucket_of_its_type_within_the_cap(
            sizes in prop::collection::vec((0_usize..60, any::<bool>()), 0..40),
            first_bytes_max in 1_usize..200, bytes_max in 1_usize..400,
        ) {
            let extents: Vec<Extent> = sizes
                .iter()
                .map(|&(elems, half)| Extent {
                    elems,
                    dtype: if half { DType::F16 } else { DType::F32 },
                })
                .collect();
            let order: Vec<usize> = (0..extents.len()).rev().collect();
            let caps = Caps { first_bytes_max, bytes_max };
            let assignments = assign(&extents, |_| Division::Whole, &order, caps);
            let mut seen: Vec<usize> =
                assignments.iter().flat_map(|bucket| bucket.parameters.clone()).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..extents.len()).collect::<Vec<_>>());
            for bucket in &assignments {
                let bytes: usize = bucket.parameters.iter().map(|&p| extents[p].bytes()).sum();
                let cap = first_bytes_max.max(bytes_max);
                prop_assert!(bytes <= cap || bucket.parameters.len() == 1);
                prop_assert!(bucket.parameters.iter().all(|&p| extents[p].dtype == bucket.dtype));
                prop_assert!(bucket.parameters.is_sorted_by(|a, b| a > b));
            }
        }
    }
}
