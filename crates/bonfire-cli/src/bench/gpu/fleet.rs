//! The GPUs of this host, and which rank gets which.

use anyhow::bail;
use bonfire_collective::ProcessGroup;
use bonfire_gpu::{CudaGroup, CudaOptions, Device, Driver, NcclGroup, Neighbours};
use serde::Serialize;

use super::Member;
use crate::gpu::{connections, devices};

#[derive(Debug)]
pub(crate) struct Fleet {
    devices: Vec<Device>,
    driver: String,
    neighbours: Neighbours,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Gpus {
    pub(crate) name: String,
    pub(crate) count: usize,
    /// Ranks on the GPU that has most of them; with more than one, figures are not those of GPUs.
    pub(crate) ranks_per_gpu: usize,
    pub(crate) driver: String,
}

impl std::fmt::Display for Gpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (count, name, ranks) = (self.count, &self.name, self.ranks_per_gpu);
        write!(f, "# {count} x {name}, driver for CUDA {}", self.driver)?;
        if ranks > 1 {
            write!(f, ", oversubscribed: up to {ranks} ranks share a GPU and its memory")?;
        }
        Ok(())
    }
}

impl Fleet {
    /// Sees to it that ranks which are threads of this process may share a GPU: before the driver is loaded.
    pub(crate) fn prepare_for_threads() -> anyhow::Result<()> {
        connections::want_most()
    }

    pub(crate) fn find() -> anyhow::Result<Self> {
        Ok(Self {
            devices: devices::all()?,
            driver: Driver::load()?.version().to_string(),
            neighbours: Neighbours::new(),
        })
    }

    /// Forms the group of GPUs, over NCCL or without it, from the group of this rank's job, whose ranks are all on
    /// this host.
    pub(crate) fn join(&self, group: &ProcessGroup, over_nccl: bool) -> anyhow::Result<Member> {
        let context = devices::context_of(group.rank().get())?;
        let options = CudaOptions::default();
        let group = group.clone();
        if over_nccl {
            let joined = NcclGroup::new(group, &context, options.timeout)?;
            return Ok(Member::OverNccl(joined));
        }
        let joined = CudaGroup::new(group, &context, &self.neighbours, options)?;
        Ok(Member::Own(joined))
    }

    /// Describes them for a run of that many ranks, which share none unless that is asked for.
    pub(crate) fn describe(&self, ranks: usize, oversubscribe: bool) -> anyhow::Result<Gpus> {
        let devices = self.devices.len();
        require_enough(ranks, devices, oversubscribe)?;
        Ok(Gpus {
            name: self.devices[0].name().to_owned(),
            count: devices.min(ranks),
            ranks_per_gpu: ranks.div_ceil(devices),
            driver: self.driver.clone(),
        })
    }
}

fn require_enough(ranks: usize, devices: usize, oversubscribe: bool) -> anyhow::Result<()> {
    if ranks > devices && !oversubscribe {
        bail!(
            "{ranks} ranks, but {devices} GPUs: give --ranks {devices}, or --oversubscribe to let ranks \
             share GPUs, which shows that it works and not how fast GPUs are"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_says_whether_ranks_share_a_gpu() {
        let gpus = Gpus {
            name: "NVIDIA H200".to_owned(),
            count: 1,
            ranks_per_gpu: 4,
            driver: "13.0".to_owned(),
        };
        assert_eq!(
            gpus.to_string(),
            "# 1 x NVIDIA H200, driver for CUDA 13.0, oversubscribed: up to 4 ranks share a GPU and its memory"
        );
        let each = Gpus { count: 4, ranks_per_gpu: 1, ..gpus };
        assert_eq!(each.to_string(), "# 4 x NVIDIA H200, driver for CUDA 13.0");
    }

    #[test]
    fn sharing_a_gpu_must_be_asked_for() {
        assert!(require_enough(4, 4, false).is_ok());
        assert!(require_enough(4, 1, true).is_ok());
        let error = require_enough(4, 1, false).unwrap_err().to_string();
        assert!(error.contains("--oversubscribe"), "{error}");
    }
}
