//! What the ranks of one process share: the memory they open to each other, and compiled kernels.

use bonfire_sys::lock::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use bonfire_collective::ProcessGroup;
use bonfire_cuda::{ComputeCapability, Cubin, DeviceRegion};
use bonfire_kernels::launch::one_shot::OneShotKey;
use bonfire_kernels::launch::stream::ReduceCode;
use bonfire_plan::Rank;
use ring::rand::{SecureRandom, SystemRandom};

use crate::device::kernels::ReduceKey;

/// What the ranks of one process share. Make one, and give every rank of the group in this process a
/// clone of it; a process with one rank makes its own.
#[derive(Clone, Debug)]
pub struct Neighbours {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    id: [u8; 16],
    shelf: Mutex<HashMap<(u64, Rank), Arc<DeviceRegion>>>,
    pub(crate) reductions: Compiled<ReduceKey, ReduceCode>,
    pub(crate) one_shots: Compiled<OneShotKey, Cubin>,
    pub(crate) signals: Compiled<(), Cubin>,
}

/// What is compiled once per process for each kind of device.
#[derive(Debug)]
pub(crate) struct Compiled<K, C> {
    by_device: Mutex<HashMap<(K, ComputeCapability), C>>,
}

impl<K: Eq + Hash, C: Clone> Compiled<K, C> {
    /// The code for a key: by `compile`, at the first call.
    pub(crate) fn get<E>(
        &self,
        key: K,
        capability: ComputeCapability,
        compile: impl FnOnce() -> Result<C, E>,
    ) -> Result<C, E> {
        // Held while it compiles: the others wait for the same kernel.
        let mut by_device = self.by_device.lock();
        match by_device.entry((key, capability)) {
            Entry::Occupied(found) => Ok(found.get().clone()),
            Entry::Vacant(place) => Ok(place.insert(compile()?).clone()),
        }
    }
}

impl<K, C> Default for Compiled<K, C> {
    fn default() -> Self {
        Self { by_device: Mutex::default() }
    }
}

impl Neighbours {
    /// For one group.
    ///
    /// # Panics
    /// If the operating system has no random bytes.
    pub fn new() -> Self {
        let mut id = [0; 16];
        SystemRandom::new().fill(&mut id).expect("the operating system has random bytes");
        Self {
            inner: Arc::new(Inner {
                id,
                shelf: Mutex::default(),
                reductions: Compiled::default(),
                one_shots: Compiled::default(),
                signals: Compiled::default(),
            }),
        }
    }

    /// For one group of GPUs on this group: the same for the ranks of a [local](ProcessGroup::local) group,
    /// one of its own for every process of another. Every rank calls it as often.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn of(group: &ProcessGroup) -> Self {
        group.in_common(Self::new)
    }

    /// Ranks with the same id are in one process.
    pub(crate) fn id(&self) -> [u8; 16] {
        self.inner.id
    }

    /// Opens a region to the other ranks of this process, under the number of the sharing.
    pub(crate) fn put(&self, share: u64, rank: Rank, region: Arc<DeviceRegion>) {
        let mut shelf = self.inner.shelf.lock();
        let before = shelf.insert((share, rank), region);
        assert!(before.is_none(), "rank {rank} shared twice as number {share}");
    }

    /// The region that a rank of this process opened.
    pub(crate) fn get(&self, share: u64, rank: Rank) -> Option<Arc<DeviceRegion>> {
        self.inner.shelf.lock().get(&(share, rank)).cloned()
    }

    /// Closes the own region to those that have not taken it yet.
    pub(crate) fn take_back(&self, share: u64, rank: Rank) {
        self.inner.shelf.lock().remove(&(share, rank));
    }
}

impl Default for Neighbours {
    fn default() -> Self {
        Self::new()
    }
}
