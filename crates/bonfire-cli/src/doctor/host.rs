//! The machine and the container around this process, as far as ranks depend on them.

mod files;
mod network;

use std::collections::BTreeMap;
use std::path::Path;

use rustix::process::{PidfdFlags, PidfdGetfdFlags};
use serde::Serialize;

use files::Files;
use network::Interface;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Host {
    pub(super) processors: Processors,
    pub(super) memory: MemoryLimits,
    pub(super) huge_pages: HugePages,
    pub(super) shm: Option<Shm>,
    /// Memory that a process may lock: for RDMA and some drivers. `None` means unlimited.
    pub(super) memlock_bytes: Option<u64>,
    /// Files that a process may open: each rank takes three for every other one of its group. `None` means unlimited.
    pub(super) open_files: Option<u64>,
    pub(super) container: Vec<String>,
    pub(super) ptrace: Ptrace,
    pub(super) interfaces: Vec<Interface>,
    /// The variables that decide what is found, as they are set.
    pub(super) variables: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Processors {
    /// Those that are switched on.
    pub(super) online: usize,
    /// Those that this process may run on.
    pub(super) allowed: usize,
    /// The share of them that its control group gets; `None` is all.
    pub(super) quota: Option<f64>,
    pub(super) numa_nodes: Vec<NumaNode>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct NumaNode {
    pub(super) node: u32,
    /// As the kernel lists them: 0-15,32-47.
    pub(super) processors: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct MemoryLimits {
    pub(super) total_bytes: u64,
    pub(super) available_bytes: u64,
    /// What the control group may use; `None` is all.
    pub(super) limit_bytes: Option<u64>,
}

/// Who gets transparent huge pages: `always`, `madvise` or `advise`, `never`; `None` where the kernel has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct HugePages {
    /// For memory of one process: the buffers of ranks that are threads.
    pub(super) private: Option<String>,
    /// For memory that processes share: the buffers of ranks that are processes.
    pub(super) shared: Option<String>,
}

impl HugePages {
    fn read(files: &Files) -> Self {
        // The one that holds is in brackets: always [madvise] never.
        let chosen = |name: &str| -> Option<String> {
            let text = files.text(&format!("sys/kernel/mm/transparent_hugepage/{name}"))?;
            let (_, rest) = text.split_once('[')?;
            Some(rest.split_once(']')?.0.to_owned())
        };
        Self { private: chosen("enabled"), shared: chosen("shmem_enabled") }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Shm {
    pub(super) bytes: u64,
    pub(super) free_bytes: u64,
}

/// Whether one process may look at another of the same user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Ptrace {
    /// `kernel.yama.ptrace_scope`; `None` where the kernel has no such limit.
    pub(super) scope: Option<u32>,
    pub(super) capable: bool,
    /// Why the system calls for it are refused, if they are.
    pub(super) refused: Option<String>,
}

/// The variables that are shown; secrets are not among them.
const VARIABLES: [&str; 14] = [
    "BONFIRE_ALGORITHM",
    "BONFIRE_HOST_ID",
    "BONFIRE_STREAMS",
    "BONFIRE_STREAM_THREADS",
    "BONFIRE_TLS",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_HOME",
    "CUDA_MODULE_LOADING",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
];

impl Host {
    pub(super) fn of_this_machine() -> Self {
        let files = Files::below(Path::new("/"));
        let addresses = if_addrs::get_if_addrs().unwrap_or_default();
        let addresses: Vec<_> = addresses
            .into_iter()
            .map(|interface| (interface.name.clone(), interface.ip()))
            .collect();
        Self {
            processors: Processors::read(&files),
            memory: MemoryLimits::read(&files),
            huge_pages: HugePages::read(&files),
            shm: Shm::read(&files),
            memlock_bytes: limit(&files, "Max locked memory", Limit::Now),
            open_files: limit(&files, "Max open files", Limit::AtMost),
            container: container(&files),
            ptrace: Ptrace {
                refused: try_pidfd().err().map(|error| error.to_string()),
                ..Ptrace::read(&files)
            },
            interfaces: network::interfaces(&files, &addresses),
            variables: VARIABLES
                .iter()
                .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
                .collect(),
        }
    }
}

impl Processors {
    fn read(files: &Files) -> Self {
        let status = files.text("proc/self/status").unwrap_or_default();
        let online = files.text("sys/devices/system/cpu/online");
        Self {
            online: online.map_or(0, |list| count(&list)),
            allowed: field(&status, "Cpus_allowed_list:").map_or(0, count),
            quota: quota(files),
            numa_nodes: numa_nodes(files),
        }
    }
}

/// How many numbers a list such as `0-3,8` has.
fn count(list: &str) -> usize {
    let range = |range: &str| -> Option<usize> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some((last + 1).saturating_sub(first))
    };
    list.trim().split(',').filter_map(range).sum()
}

fn numa_nodes(files: &Files) -> Vec<NumaNode> {
    let mut nodes: Vec<NumaNode> = files
        .names("sys/devices/system/node")
        .iter()
        .filter_map(|name| {
            let node = name.strip_prefix("node")?.parse().ok()?;
            let list = files.text(&format!("sys/devices/system/node/{name}/cpulist"))?;
            Some(NumaNode { node, processors: list.trim().to_owned() })
        })
        .collect();
    nodes.sort_by_key(|node| node.node);
    nodes
}

/// The processors' worth of time that the control group gets.
fn quota(files: &Files) -> Option<f64> {
    let text = files.of_group("cpu.max").or_else(|| {
        let quota = files.text("sys/fs/cgroup/cpu/cpu.cfs_quota_us")?;
        let period = files.text("sys/fs/cgroup/cpu/cpu.cfs_period_us")?;
        Some(format!("{} {}", quota.trim(), period.trim()))
    })?;
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

impl MemoryLimits {
    fn read(files: &Files) -> Self {
        let text = files.text("proc/meminfo").unwrap_or_default();
        let bytes = |name| field(&text, name).and_then(kibibytes).unwrap_or(0);
        let total_bytes = bytes("MemTotal:");
        let limit = files
            .of_group("memory.max")
            .or_else(|| files.text("sys/fs/cgroup/memory/memory.limit_in_bytes"));
        Self {
            total_bytes,
            available_bytes: bytes("MemAvailable:"),
            // The first version writes a huge number where there is no limit.
            limit_bytes: limit
                .and_then(|text| text.trim().parse().ok())
                .filter(|limit| *limit < total_bytes),
        }
    }
}

/// Reads a size such as `123 kB`, in bytes.
fn kibibytes(text: &str) -> Option<u64> {
    let number = text.split_whitespace().next()?;
    Some(number.parse::<u64>().ok()? << 10)
}

impl Shm {
    fn read(files: &Files) -> Option<Self> {
        let stat = rustix::fs::statvfs(files.path("dev/shm")).ok()?;
        Some(Self {
            bytes: stat.f_blocks * stat.f_frsize,
            free_bytes: stat.f_bavail * stat.f_frsize,
        })
    }
}

/// Which of the two values of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Now,
    /// The one up to which a process may raise it.
    AtMost,
}

fn limit(files: &Files, name: &str, which: Limit) -> Option<u64> {
    let text = files.text("proc/self/limits")?;
    let mut values = field(&text, name)?.split_whitespace();
    values.nth(which as usize)?.parse().ok()
}

/// What says that this is a container.
fn container(files: &Files) -> Vec<String> {
    let mut signs = Vec::new();
    for (path, sign) in [
        (".dockerenv", "Docker (/.dockerenv)"),
        ("run/.containerenv", "Podman (/run/.containerenv)"),
        ("var/run/secrets/kubernetes.io", "Kubernetes (its service account)"),
        (".singularity.d", "Apptainer (/.singularity.d)"),
    ] {
        if files.path(path).exists() {
            signs.push(sign.to_owned());
        }
    }
    let groups = files.text("proc/self/cgroup").unwrap_or_default();
    for word in ["docker", "kubepods", "containerd", "lxc", "slurm"] {
        if groups.contains(word) {
            signs.push(format!("control group of {word}"));
        }
    }
    signs
}

impl Ptrace {
    fn read(files: &Files) -> Self {
        const CAP_SYS_PTRACE: u32 = 19;
        let scope = files.text("proc/sys/kernel/yama/ptrace_scope");
        let status = files.text("proc/self/status").unwrap_or_default();
        let capabilities = field(&status, "CapEff:")
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .unwrap_or(0);
        Self {
            scope: scope.and_then(|text| text.trim().parse().ok()),
            capable: capabilities >> CAP_SYS_PTRACE & 1 == 1,
            refused: None,
        }
    }
}

/// Takes a descriptor from this process as a debugger or a neighbour would take one from another: a
/// filter of system calls refuses it here as well.
fn try_pidfd() -> rustix::io::Result<()> {
    let pidfd = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    let (_read, write) = rustix::pipe::pipe()?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&write);
    rustix::process::pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()).map(drop)
}

/// What stands behind `name` at the beginning of a line.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests;
