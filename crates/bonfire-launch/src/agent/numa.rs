//! On which cores a rank runs: those of the NUMA node that its GPU is connected to.
//!
//! Linux takes memory from the node of the core that touches it first, so memory is bound with the cores.

use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::{env, fs, io};

use bonfire_collective::RankEnv;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::ranks::VISIBLE_DEVICES;

/// To what a rank is bound, in torchrun's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumaBinding {
    /// All cores of one NUMA node.
    Node,
}

impl FromStr for NumaBinding {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "node" => Ok(Self::Node),
            _ => Err("expected node; ranks are bound to nothing else here"),
        }
    }
}

impl NumaBinding {
    /// The cores for a rank that is started by `command`; nothing where there is no choice.
    pub(super) fn cores(self, command: &Command, place: &RankEnv) -> Option<Vec<usize>> {
        let Self::Node = self;
        let mut set = command.get_envs().filter(|(name, _)| *name == VISIBLE_DEVICES);
        let visible = match set.next() {
            Some((_, value)) => value.map(ToOwned::to_owned),
            None => env::var_os(VISIBLE_DEVICES),
        };
        let visible = visible.as_ref().map(|list| list.to_string_lossy());
        let (rank, count) = (place.local_rank as usize, place.local_world_size as usize);
        let topology = Topology::below(Path::new("/"));
        topology.cores(rank, count, visible.as_deref()).map(<[usize]>::to_vec)
    }
}

/// The NUMA nodes of a host, and those of its GPUs in the order of their buses.
#[derive(Debug, PartialEq, Eq)]
struct Topology {
    /// The cores of each node that has any, with its number.
    nodes: Vec<(usize, Vec<usize>)>,
    gpus: Vec<Option<usize>>,
}

impl Topology {
    fn below(root: &Path) -> Self {
        let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let mut nodes: Vec<(usize, Vec<usize>)> = entries(&root.join("sys/devices/system/node"))
            .filter_map(|name| {
                let number = name.strip_prefix("node")?.parse().ok()?;
                let folder = root.join("sys/devices/system/node").join(&name);
                Some((number, cores(&text(&folder.join("cpulist")))?))
            })
            .filter(|(_, cores)| !cores.is_empty())
            .collect();
        nodes.sort();
        let mut buses: Vec<String> = entries(&root.join("proc/driver/nvidia/gpus")).collect();
        buses.sort();
        let node = |bus: &String| {
            let device = root.join("sys/bus/pci/devices").join(bus);
            // -1 where the firmware does not say.
            text(&device.join("numa_node")).trim().parse().ok()
        };
        Self { nodes, gpus: buses.iter().map(node).collect() }
    }

    /// The cores for one of `count` ranks, of which each has one of the `visible` GPUs if there are enough.
    /// Nothing where there is no choice.
    fn cores(&self, local_rank: usize, count: usize, visible: Option<&str>) -> Option<&[usize]> {
        if self.nodes.len() < 2 {
            return None;
        }
        let visible: Vec<usize> = match visible {
            Some(list) => list.split(',').map_while(|gpu| gpu.trim().parse().ok()).collect(),
            None => (0..self.gpus.len()).collect(),
        };
        let gpu = visible.get(local_rank).filter(|_| visible.len() >= count);
        let of_gpu = gpu.and_then(|&gpu| self.gpus.get(gpu).copied().flatten());
        let node = match of_gpu {
            Some(node) => self.nodes.iter().find(|(number, _)| *number == node)?,
            None => &self.nodes[local_rank * self.nodes.len() / count],
        };
        Some(&node.1)
    }
}

/// Does something, as starting a process that inherits it, on these cores, as far as this thread may use them.
pub(super) fn on_cores<T>(cores: Option<&[usize]>, action: impl FnOnce() -> T) -> io::Result<T> {
    let Some(cores) = cores else {
        return Ok(action());
    };
    let before = sched_getaffinity(None)?;
    let mut bound = CpuSet::new();
    for &core in cores.iter().filter(|&&core| core < CpuSet::MAX_CPU && before.is_set(core)) {
        bound.set(core);
    }
    if bound.count() == 0 {
        return Ok(action());
    }
    sched_setaffinity(None, &bound)?;
    let done = action();
    sched_setaffinity(None, &before)?;
    Ok(done)
}

fn entries(folder: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// Of the kernel's form, as in `0-3,8`.
fn cores(list: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host of two nodes, whose GPUs are 0 and 1 at node 1 and 2 and 3 at node 0.
    fn host() -> (tempfile::TempDir, Topology) {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/devices/system/node/node0/cpulist", "0-1,4\n");
        write("sys/devices/system/node/node1/cpulist", "2-3\n");
        write("sys/devices/system/node/node2/cpulist", "\n");
        for (gpu, node) in [1, 1, 0, 0].iter().enumerate() {
            let bus = format!("0000:0{gpu}:00.0");
            write(&format!("proc/driver/nvidia/gpus/{bus}/information"), "");
            write(&format!("sys/bus/pci/devices/{bus}/numa_node"), &format!("{node}\n"));
        }
        let topology = Topology::below(root.path());
        (root, topology)
    }

    #[test]
    fn a_rank_is_bound_to_the_node_of_its_gpu() {
        let (_root, host) = host();
        let of = |rank, count, visible| host.cores(rank, count, visible).unwrap();
        assert_eq!(of(0, 4, None), [2, 3]);
        assert_eq!(of(3, 4, None), [0, 1, 4]);
        assert_eq!(of(0, 2, Some("2,3")), [0, 1, 4]);
        // Without a GPU for each, the ranks are spread.
        assert_eq!(of(0, 8, None), [0, 1, 4]);
        assert_eq!(of(7, 8, None), [2, 3]);
    }

    #[test]
    fn a_host_of_one_node_binds_nothing() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Topology::below(root.path()).cores(0, 2, None), None);
    }

    #[test]
    fn what_is_started_inherits_the_cores_and_this_thread_keeps_its_own() {
        let before = sched_getaffinity(None).unwrap();
        let one = (0..CpuSet::MAX_CPU).find(|&core| before.is_set(core)).unwrap();
        let seen = on_cores(Some(&[one]), || {
            let mut command = std::process::Command::new("cat");
            command.arg("/proc/self/status").output().unwrap()
        });
        let seen = String::from_utf8(seen.unwrap().stdout).unwrap();
        let line = format!("Cpus_allowed_list:\t{one}\n");
        assert!(seen.contains(&line), "{seen}");
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        // Cores of another container are none of this thread's.
        on_cores(Some(&[CpuSet::MAX_CPU - 1]), || ()).unwrap();
    }
}
