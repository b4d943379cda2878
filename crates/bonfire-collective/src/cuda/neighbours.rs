//! What the ranks of one process share: the memory they open to each other, and compiled kernels.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bonfire_plan::Rank;
use bonfire_sys::cuda::{ComputeCapability, Cubin, CudaError, DeviceRegion};

/// What the ranks of one process share. Make one, and give every rank of the group in this process a
/// clone of it; a process with one rank makes its own.
#[derive(Clone, Debug)]
pub struct Neighbours {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    id: [u8; 16],
    shelf: Mutex<HashMap<(u64, Rank), Arc<DeviceRegion>>>,
    cubins: Mutex<HashMap<(String, ComputeCapability), Cubin>>,
}

impl Neighbours {
    /// For one group.
    ///
    /// # Panics
    /// If the operating system has no random bytes.
    pub fn new() -> Self {
        let mut id = [0; 16];
        getrandom::fill(&mut id).expect("the operating system has random bytes");
        Self {
            inner: Arc::new(Inner {
                id,
                shelf: Mutex::default(),
                cubins: Mutex::default(),
            }),
        }
    }

    /// Ranks with the same id are in one process.
    pub(super) fn id(&self) -> [u8; 16] {
        self.inner.id
    }

    /// Opens a region to the other ranks of this process, under the number of the sharing.
    pub(super) fn put(&self, share: u64, rank: Rank, region: Arc<DeviceRegion>) {
        let mut shelf = lock(&self.inner.shelf);
        let before = shelf.insert((share, rank), region);
        assert!(
            before.is_none(),
            "rank {rank} shared twice as number {share}"
        );
    }

    /// The region that a rank of this process opened.
    pub(super) fn get(&self, share: u64, rank: Rank) -> Option<Arc<DeviceRegion>> {
        lock(&self.inner.shelf).get(&(share, rank)).cloned()
    }

    /// Closes the own region to those that have not taken it yet.
    pub(super) fn take_back(&self, share: u64, rank: Rank) {
        lock(&self.inner.shelf).remove(&(share, rank));
    }

    /// A compiled kernel: by `compile`, once per process.
    pub(super) fn cubin(
        &self,
        name: String,
        capability: ComputeCapability,
        compile: impl FnOnce() -> Result<Cubin, CudaError>,
    ) -> Result<Cubin, CudaError> {
        // Held while it compiles: the others wait for the same kernel.
        let mut cubins = lock(&self.inner.cubins);
        if let Some(cubin) = cubins.get(&(name.clone(), capability)) {
            return Ok(cubin.clone());
        }
        let cubin = compile()?;
        cubins.insert((name, capability), cubin.clone());
        Ok(cubin)
    }
}

impl Default for Neighbours {
    fn default() -> Self {
        Self::new()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
