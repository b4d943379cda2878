//! What the ranks of a group that are threads of one process share on their devices.

use super::ProcessGroup;
use super::roster::Origin;
use crate::cuda::Neighbours;

impl ProcessGroup {
    /// The same for all ranks of this group in this process, for one group of GPUs.
    pub(crate) fn neighbours(&self) -> Neighbours {
        let roster = self.roster();
        match &roster.origin {
            Origin::Threads(hub) => {
                let me = (self.rank(), self.world_size());
                hub.commons().take(roster.number, me, Neighbours::new)
            }
            Origin::Processes(_) => Neighbours::new(),
        }
    }
}
