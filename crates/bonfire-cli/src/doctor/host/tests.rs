//! Machines that are folders.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use super::*;

/// A folder that describes a machine, gone at the end.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let folder = format!("bonfire-doctor-{}-{name}", std::process::id());
        let root = std::env::temp_dir().join(folder);
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(root)
    }

    fn files(&self) -> Files {
        Files::below(&self.0)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn processors_are_those_of_the_process_and_its_control_group() {
    let machine = Machine::new(
        "processors",
        &[
            ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3,8\n"),
            ("sys/devices/system/cpu/online", "0-15\n"),
            ("proc/self/cgroup", "0::/job/7\n"),
            ("sys/fs/cgroup/job/7/cpu.max", "250000 100000\n"),
            ("sys/fs/cgroup/cpu.max", "max 100000\n"),
            ("sys/devices/system/node/node1/cpulist", "8-15\n"),
            ("sys/devices/system/node/node0/cpulist", "0-7\n"),
            ("sys/devices/system/node/online", "0-1\n"),
        ],
    );
    let found = Processors::read(&machine.files());
    assert_eq!((found.online, found.allowed), (16, 5));
    assert_eq!(found.quota, Some(2.5));
    let nodes: Vec<_> = found.numa_nodes.iter().map(|node| node.node).collect();
    assert_eq!(nodes, [0, 1]);
    assert_eq!(found.numa_nodes[1].processors, "8-15");
}

#[test]
fn who_gets_huge_pages_is_in_brackets() {
    let machine = Machine::new(
        "huge-pages",
        &[("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")],
    );
    let found = HugePages::read(&machine.files());
    assert_eq!(found.private.as_deref(), Some("madvise"));
    assert_eq!(found.shared, None);
}

#[test]
fn no_limit_is_no_number() {
    let machine = Machine::new(
        "unlimited",
        &[
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
            ("proc/meminfo", "MemTotal: 8 kB\nMemAvailable: 4 kB\n"),
            (
                "proc/self/limits",
                "Limit Soft Hard Units\nMax locked memory unlimited unlimited bytes\n\
                 Max open files 1024 4096 files\n",
            ),
        ],
    );
    let files = machine.files();
    assert_eq!(quota(&files), None);
    assert_eq!(limit(&files, "Max locked memory", Limit::Now), None);
    assert_eq!(limit(&files, "Max open files", Limit::AtMost), Some(4096));
    let memory = MemoryLimits::read(&files);
    assert_eq!(memory.limit_bytes, None);
    assert_eq!((memory.total_bytes, memory.available_bytes), (8192, 4096));
}

#[test]
fn limits_of_both_versions_of_control_groups_are_read() {
    let first = Machine::new(
        "first",
        &[
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n"),
            ("proc/meminfo", "MemTotal: 8 kB\n"),
            ("proc/self/limits", "Max locked memory         65536    65536    bytes\n"),
        ],
    );
    let files = first.files();
    assert_eq!(quota(&files), Some(0.5));
    assert_eq!(MemoryLimits::read(&files).limit_bytes, Some(4096));
    assert_eq!(limit(&files, "Max locked memory", Limit::Now), Some(65_536));
}

#[test]
fn containers_are_known_by_their_signs() {
    let bare = Machine::new("bare", &[("proc/self/cgroup", "0::/user.slice\n")]);
    assert_eq!(container(&bare.files()), Vec::<String>::new());
    let pod =
        Machine::new("pod", &[(".dockerenv", ""), ("proc/self/cgroup", "0::/kubepods/pod1\n")]);
    let signs = container(&pod.files());
    assert_eq!(signs.len(), 2, "{signs:?}");
}

#[test]
fn who_may_look_at_other_processes_is_read() {
    let machine = Machine::new(
        "ptrace",
        &[
            ("proc/sys/kernel/yama/ptrace_scope", "1\n"),
            ("proc/self/status", "CapEff:\t0000000000080000\n"),
        ],
    );
    let found = Ptrace::read(&machine.files());
    assert_eq!((found.scope, found.capable), (Some(1), true));
    let nothing = Ptrace::read(&Machine::new("no-ptrace", &[]).files());
    assert_eq!((nothing.scope, nothing.capable), (None, false));
}

#[test]
fn interfaces_have_their_own_addresses() {
    let machine = Machine::new(
        "network",
        &[
            ("sys/class/net/lo/operstate", "unknown\n"),
            ("sys/class/net/eth0/operstate", "up\n"),
            ("sys/class/net/eth0/speed", "25000\n"),
            ("sys/class/net/eth0/mtu", "9000\n"),
            ("sys/class/net/eth1/operstate", "down\n"),
            ("sys/class/net/eth1/speed", "-1\n"),
        ],
    );
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let addresses = [
        ("lo".to_owned(), address("127.0.0.1")),
        ("eth0".to_owned(), address("192.0.2.7")),
        ("eth1".to_owned(), address("192.0.2.8")),
    ];
    let found = network::interfaces(&machine.files(), &addresses);
    let names: Vec<_> = found.iter().map(|each| each.name.as_str()).collect();
    assert_eq!(names, ["eth0", "eth1", "lo"]);
    assert_eq!(found[0].megabits_per_second, Some(25_000));
    assert_eq!(found[1].megabits_per_second, None);
    let out: Vec<_> = found.iter().map(Interface::leads_out).collect();
    assert_eq!(out, [true, false, false]);
}

#[test]
fn the_shared_memory_of_a_folder_is_that_of_its_file_system() {
    let machine = Machine::new("shm", &[("dev/shm/file", "")]);
    let shm = Shm::read(&machine.files()).unwrap();
    assert!(shm.bytes >= shm.free_bytes && shm.bytes > 0, "{shm:?}");
    assert_eq!(Shm::read(&Machine::new("no-shm", &[]).files()), None);
}

#[test]
fn this_machine_has_what_every_machine_has() {
    let host = Host::of_this_machine();
    assert!(host.processors.allowed > 0, "{host:?}");
    assert!(host.memory.total_bytes > 0, "{host:?}");
    assert!(host.interfaces.iter().any(|each| each.name == "lo"), "{host:?}");
}
