//! Which ranks are on which device.

use bonfire_collective::ProcessGroup;
use bonfire_cuda::Context;
use bonfire_plan::Rank;

use crate::device::neighbours::Neighbours;
use crate::error::Result;

/// A name of 16 bytes that nothing else has.
type Name = [u8; 16];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    process: Name,
    device: Name,
}

#[derive(Clone, Debug)]
pub(crate) struct Occupancy(Vec<Place>);

impl Occupancy {
    pub(crate) fn of(group: &ProcessGroup, context: &Context) -> Result<Self> {
        let process = Neighbours::of(group).id();
        let own = [process, context.device().uuid()].concat();
        let all = group.all_gather(&own)?;
        let name = |bytes: &[u8]| Name::try_from(bytes).expect("each rank sends two names");
        let places = all.chunks_exact(own.len()).map(|place| {
            let (process, device) = place.split_at(size_of::<Name>());
            Place { process: name(process), device: name(device) }
        });
        Ok(Self(places.collect()))
    }

    /// The first rank that is on the device of another, and that one.
    pub(crate) fn first_on_the_same_device(&self) -> Option<[Rank; 2]> {
        self.first_pair(|a, b| a.device == b.device)
    }

    pub(crate) fn shares_a_process(&self) -> bool {
        self.first_pair(|a, b| a.process == b.process).is_some()
    }

    fn first_pair(&self, is_it: impl Fn(Place, Place) -> bool) -> Option<[Rank; 2]> {
        let rank = |index| Rank::new(index as u32);
        self.0.iter().enumerate().find_map(|(index, own)| {
            let before = self.0[..index].iter().position(|other| is_it(*own, *other));
            before.map(|before| [rank(index), rank(before)])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(places: &[(u8, u8)]) -> Occupancy {
        let place = |&(process, device)| Place { process: [process; 16], device: [device; 16] };
        Occupancy(places.iter().map(place).collect())
    }

    #[test]
    fn ranks_on_one_device_are_named() {
        let apart = places(&[(1, 1), (3, 2), (2, 3)]);
        assert_eq!(apart.first_on_the_same_device(), None);
        assert!(!apart.shares_a_process());
        let shared = places(&[(1, 1), (1, 2), (2, 3), (2, 2)]);
        let pair = [Rank::new(3), Rank::new(1)];
        assert_eq!(shared.first_on_the_same_device(), Some(pair));
        let neighbours = places(&[(1, 1), (2, 2), (1, 3)]);
        assert_eq!(neighbours.first_on_the_same_device(), None);
        assert!(neighbours.shares_a_process());
    }
}
