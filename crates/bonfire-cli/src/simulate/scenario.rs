//! What is simulated: ranks on hosts, links, and an operation of some size by some algorithm.

use std::num::NonZeroUsize;

use anyhow::bail;
use bonfire_plan::simulate::{Detail, Network, Simulation, simulate};
use bonfire_plan::{
    Algorithm, Bytes, Collective, DType, Hosts, Partition, Rank, Schedule, ScheduleShape, WorldSize,
};

use super::link::NamedLink;
use super::size::Size;
use crate::operation::Operation;

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) operation: Operation,
    pub(super) root: Rank,
    pub(super) dtype: DType,
    pub(super) world_size: WorldSize,
    pub(super) hosts: Hosts,
    pub(super) chunk_bytes: usize,
    pub(super) slots: NonZeroUsize,
    pub(super) intra: NamedLink,
    pub(super) inter: NamedLink,
}

pub(super) struct Outcome {
    pub(super) algorithm: Algorithm,
    pub(super) size: Size,
    /// In GB/s of 10^9 bytes.
    pub(super) algbw: f64,
    pub(super) busbw: f64,
    pub(super) simulation: Simulation,
}

pub(super) struct Skipped {
    pub(super) algorithm: Algorithm,
    pub(super) reason: anyhow::Error,
}

impl Scenario {
    pub(super) const fn collective(&self) -> Collective {
        self.operation.collective(self.root)
    }

    pub(super) fn run(
        &self,
        algorithm: Algorithm,
        bytes: usize,
        detail: Detail,
    ) -> anyhow::Result<Outcome> {
        let size = self.operation.size(bytes, self.dtype, self.world_size);
        let elems = self.chunk_bytes / self.dtype.size_bytes();
        let Some(chunk_elems_max) = NonZeroUsize::new(elems) else {
            let (bytes, dtype) = (self.chunk_bytes, self.dtype);
            bail!("--chunk-bytes {bytes} is less than one element of {dtype}");
        };
        let schedule = Schedule::new(ScheduleShape {
            collective: self.collective(),
            algorithm,
            world_size: self.world_size,
            count: size.count,
            chunk_elems_max,
            partition: Partition::Balanced,
            hosts: self.hosts.clone(),
        })?;
        let of_size = Bytes::new(size.bytes as u64);
        let network = Network {
            slots: self.slots,
            ..Network::new(
                self.hosts.clone(),
                self.intra.model.at(of_size),
                self.inter.model.at(of_size),
            )
        };
        let simulation = simulate(&schedule, self.dtype, &network, detail)?;
        let algbw =
            if simulation.time_s > 0.0 { size.bytes as f64 / simulation.time_s / 1e9 } else { 0.0 };
        Ok(Outcome {
            algorithm,
            size,
            algbw,
            busbw: algbw * self.operation.bus_factor(self.world_size.len()),
            simulation,
        })
    }

    /// All of `algorithms` that can be simulated, the fastest first, and the others.
    pub(super) fn run_all(
        &self,
        algorithms: &[Algorithm],
        bytes: usize,
    ) -> (Vec<Outcome>, Vec<Skipped>) {
        let (mut outcomes, mut skipped) = (Vec::new(), Vec::new());
        for &algorithm in algorithms {
            match self.run(algorithm, bytes, Detail::Totals) {
                Ok(outcome) => outcomes.push(outcome),
                Err(reason) => skipped.push(Skipped { algorithm, reason }),
            }
        }
        outcomes.sort_by(|a, b| a.simulation.time_s.total_cmp(&b.simulation.time_s));
        (outcomes, skipped)
    }
}

/// Places the ranks on hosts in order; the first hosts have one rank more where the numbers differ.
pub(super) fn place(world_size: WorldSize, hosts: u32) -> anyhow::Result<Hosts> {
    let ranks = world_size.get();
    if hosts == 0 || hosts > ranks {
        bail!("{ranks} ranks are on 1 to {ranks} hosts; --hosts is {hosts}");
    }
    let (base, longer) = (ranks / hosts, ranks % hosts);
    let numbers = (0..hosts).flat_map(|host| {
        let count = base + u32::from(host < longer);
        std::iter::repeat_n(host, count as usize)
    });
    Ok(Hosts::new(numbers.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_fill_hosts_evenly() {
        let world_size = WorldSize::new(7).unwrap();
        let hosts = place(world_size, 3).unwrap();
        assert_eq!(hosts.numbers().collect::<Vec<_>>(), [0, 0, 0, 1, 1, 2, 2]);
        assert_eq!(place(world_size, 1).unwrap(), Hosts::one(world_size));
        for bad in [0, 8] {
            assert!(place(world_size, bad).is_err());
        }
    }
}
