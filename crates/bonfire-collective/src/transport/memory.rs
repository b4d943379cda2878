//! Frames through shared memory: one ring per ordered pair of ranks, in the receiver's region.

use std::sync::Arc;

use bonfire_plan::wire::HEADER_BYTES;
use bonfire_plan::{Rank, WorldSize};
use bonfire_sys::ring::{Claimed, Consumer, Producer, RingLayout};
use bonfire_sys::{Region, RegionError};

use super::{Links, SLOTS};

/// Both directions between this rank and one peer.
#[derive(Debug)]
pub(crate) struct MemoryLink {
    pub(super) outbox: Producer,
    pub(super) inbox: Consumer,
}

impl MemoryLink {
    /// Takes the ends that belong to `me` on the pair with `peer`.
    pub(crate) fn claim(
        me: Rank,
        my_region: &Arc<Region>,
        peer: Rank,
        peer_region: &Arc<Region>,
        layout: RingLayout,
    ) -> Result<Self, Claimed> {
        let outbox = Producer::claim(
            Arc::clone(peer_region),
            ring_offset(layout, peer, me),
            layout,
        )?;
        let inbox = Consumer::claim(Arc::clone(my_region), ring_offset(layout, me, peer), layout)?;
        Ok(Self { outbox, inbox })
    }

    /// Copies a frame into the next slot and publishes it, or returns false while none is free.
    pub(super) fn try_put(&mut self, header: &[u8; HEADER_BYTES], payload: &[u8]) -> bool {
        let Some(slot) = self.outbox.free_slot() else {
            return false;
        };
        let end = HEADER_BYTES + payload.len();
        assert!(
            end <= slot.len(),
            "frame of {end} bytes in a slot of {}",
            slot.len()
        );
        slot[..HEADER_BYTES].copy_from_slice(header);
        slot[HEADER_BYTES..end].copy_from_slice(payload);
        self.outbox.publish(end);
        true
    }
}

/// The rings of frames with up to `chunk_bytes` of payload.
pub(crate) fn ring_layout(chunk_bytes: usize) -> RingLayout {
    RingLayout::new(SLOTS, HEADER_BYTES + chunk_bytes)
}

/// Where in `owner`'s region the ring from `source` starts. The rings stand in rank order without
/// the owner's own.
pub(crate) fn ring_offset(layout: RingLayout, owner: Rank, source: Rank) -> usize {
    assert!(owner != source, "rank {owner} has no ring to itself");
    let index = source.index() - usize::from(source > owner);
    index * layout.bytes()
}

/// The links of all ranks of a group of threads, in rank order.
pub(crate) fn local_links(
    world_size: WorldSize,
    chunk_bytes: usize,
) -> Result<Vec<Links>, RegionError> {
    let layout = ring_layout(chunk_bytes);
    let peers = world_size.len() - 1;
    let regions = world_size
        .ranks()
        .map(|_| Region::anonymous((peers * layout.bytes()).max(1)).map(Arc::new))
        .collect::<Result<Vec<_>, _>>()?;
    let links_of = |me: Rank| {
        let mut links = Links::new(me, world_size);
        for peer in world_size.ranks().filter(|peer| *peer != me) {
            let link = MemoryLink::claim(
                me,
                &regions[me.index()],
                peer,
                &regions[peer.index()],
                layout,
            );
            links.add_memory(
                peer,
                link.expect("the regions are new, so nothing is claimed"),
            );
        }
        links
    };
    Ok(world_size.ranks().map(links_of).collect())
}
