//! Prints the report as text for a terminal.

use std::fmt;

use super::Report;
use super::gpus::{Found, Gpu, Gpus, Memory};
use super::host::Host;
use super::problem::{Weight, ptrace};

struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = self.0 as f64 / f64::from(1 << 20);
        match self.0 {
            bytes if bytes >= 1 << 30 => write!(f, "{:.1} GiB", mebibytes / 1024.0),
            bytes if bytes >= 1 << 20 => write!(f, "{mebibytes:.1} MiB"),
            bytes => write!(f, "{} KiB", bytes >> 10),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "bonfire {}", self.version)?;
        writeln!(f)?;
        match &self.gpus {
            Gpus::Missing { reason } => writeln!(f, "GPUs: {reason}")?,
            Gpus::Found(found) => write!(f, "{found}")?,
        }
        writeln!(f)?;
        write!(f, "{}", self.host)?;
        writeln!(f)?;
        if self.problems.is_empty() {
            return writeln!(f, "No problem found.");
        }
        for problem in &self.problems {
            let weight = match problem.weight {
                Weight::Stops => "PROBLEM",
                Weight::Slows => "slow",
                Weight::Notice => "note",
            };
            writeln!(f, "{weight}: {}", problem.what)?;
            writeln!(f, "    {}", problem.remedy)?;
        }
        Ok(())
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "driver")?;
        if let Some(release) = &self.driver_release {
            write!(f, " {release}")?;
        }
        writeln!(
            f,
            " for CUDA {}; NVRTC {}; headers {}; NVML {}; NCCL {}",
            self.cuda, self.nvrtc, self.toolkit, self.nvml, self.nccl
        )?;
        for gpu in &self.gpus {
            write!(f, "{gpu}")?;
            for pair in self.pairs.iter().filter(|pair| pair.from == gpu.ordinal) {
                writeln!(f, "    to GPU {}: {}; {}", pair.to, pair.link, pair.access)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = Size(self.memory_bytes as u64);
        write!(f, "GPU {}: {}, ", self.ordinal, self.name)?;
        match &self.memory {
            Memory::FreeBytes(free) => write!(f, "{} of {total} free", Size(*free as u64))?,
            Memory::Unusable(_) => write!(f, "{total}, cannot be used")?,
        }
        writeln!(
            f,
            ", {} multiprocessors, compute capability {}",
            self.multiprocessors, self.compute_capability
        )?;
        write!(f, "    {}, PCI {}", self.uuid, self.pci)?;
        if let Some(pcie) = &self.pcie {
            write!(f, ", {pcie} now")?;
        }
        if let Some(links) = self.nv_links {
            write!(f, ", {links} NVLinks")?;
        }
        if let Some(node) = self.numa_node {
            write!(f, ", NUMA node {node}")?;
        }
        if self.limits_kernel_time {
            f.write_str(", kernels have a time limit")?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processors = &self.processors;
        let (allowed, online) = (processors.allowed, processors.online);
        write!(f, "processors: {allowed} of {online} may be used")?;
        if let Some(quota) = processors.quota {
            write!(f, ", for the time of {quota}")?;
        }
        for node in &processors.numa_nodes {
            write!(f, "; NUMA node {}: {}", node.node, node.processors)?;
        }
        writeln!(f)?;
        let memory = self.memory;
        let (available, total) = (Size(memory.available_bytes), Size(memory.total_bytes));
        write!(f, "memory: {available} of {total} available")?;
        if let Some(limit) = memory.limit_bytes {
            write!(f, ", limited to {}", Size(limit))?;
        }
        writeln!(f)?;
        let said = |choice: &Option<String>| choice.clone().unwrap_or("none".to_owned());
        writeln!(
            f,
            "huge pages: {} for threads, {} for memory that processes share",
            said(&self.huge_pages.private),
            said(&self.huge_pages.shared)
        )?;
        match self.shm {
            Some(shm) => writeln!(
                f,
                "/dev/shm: {} of {} free (Bonfire's own regions are not in it)",
                Size(shm.free_bytes),
                Size(shm.bytes)
            )?,
            None => writeln!(f, "/dev/shm: none (Bonfire needs none)")?,
        }
        match self.memlock_bytes {
            Some(bytes) => writeln!(f, "locked memory: at most {} per process", Size(bytes))?,
            None => writeln!(f, "locked memory: no limit")?,
        }
        match self.open_files {
            Some(files) => writeln!(
                f,
                "open files: at most {files} per process, enough for groups of {} ranks",
                files / 3
            )?,
            None => writeln!(f, "open files: no limit")?,
        }
        let looking = ptrace(&self.ptrace).unwrap_or("may look at each other".to_owned());
        writeln!(f, "processes of one user: {looking}")?;
        match self.container.as_slice() {
            [] => writeln!(f, "container: no sign of one")?,
            signs => writeln!(f, "container: {}", signs.join(", "))?,
        }
        for interface in &self.interfaces {
            write!(f, "network {}: {}", interface.name, interface.state)?;
            if let Some(speed) = interface.megabits_per_second {
                write!(f, ", {speed} Mbit/s")?;
            }
            if let Some(mtu) = interface.mtu_bytes {
                write!(f, ", MTU {mtu}")?;
            }
            for address in &interface.addresses {
                write!(f, ", {address}")?;
            }
            writeln!(f)?;
        }
        for (name, value) in &self.variables {
            writeln!(f, "{name}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::gpus::{Access, Library, Pair, Refusal, Route, Version};

    #[test]
    fn sizes_have_a_unit() {
        let text = |bytes| Size(bytes).to_string();
        assert_eq!(text(8 << 10), "8 KiB");
        assert_eq!(text(64 << 20), "64.0 MiB");
        assert_eq!(text(3 << 29), "1.5 GiB");
    }

    #[test]
    fn a_pair_stands_below_its_gpu_with_link_and_reason() {
        let gpu = |ordinal| Gpu {
            ordinal,
            name: "GPU".to_owned(),
            uuid: "GPU-1".to_owned(),
            pci: "0000:01:00.0".to_owned(),
            compute_capability: Version { major: 9, minor: 0 },
            multiprocessors: 132,
            limits_kernel_time: false,
            memory_bytes: 80 << 30,
            memory: Memory::FreeBytes(79 << 30),
            pcie: None,
            nv_links: Some(18),
            numa_node: Some(1),
        };
        let found = Found {
            cuda: Version { major: 13, minor: 0 },
            driver_release: Some("580.1".to_owned()),
            nvrtc: Library::Version("13.0".to_owned()),
            toolkit: Library::Version("/usr/local/cuda".to_owned()),
            nvml: Library::Version("580.1".to_owned()),
            nccl: Library::Missing("it is not there".to_owned()),
            gpus: vec![gpu(0), gpu(1)],
            pairs: vec![Pair {
                from: 1,
                to: 0,
                link: Route::Host(None),
                access: Access::Refused(Refusal::Disabled),
            }],
        };
        let text = found.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            "driver 580.1 for CUDA 13.0; NVRTC 13.0; headers /usr/local/cuda; NVML 580.1; NCCL not found"
        );
        assert!(lines[3].starts_with("GPU 1: GPU, 79.0 GiB of 80.0 GiB free"), "{text}");
        assert_eq!(
            lines[5],
            "    to GPU 0: through the host; no P2P: it is disabled in the settings of the driver"
        );
    }
}
