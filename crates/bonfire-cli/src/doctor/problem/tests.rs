//! Machines that are values.

use super::*;
use crate::doctor::gpus::{Gpu, Pair, Route};
use crate::doctor::host::{HugePages, MemoryLimits, Processors, Shm};

fn host() -> Host {
    Host {
        processors: Processors { online: 8, allowed: 8, quota: None, numa_nodes: Vec::new() },
        memory: MemoryLimits { total_bytes: 1 << 34, available_bytes: 1 << 33, limit_bytes: None },
        huge_pages: HugePages {
            private: Some("madvise".to_owned()),
            shared: Some("advise".to_owned()),
        },
        shm: Some(Shm { bytes: 1 << 33, free_bytes: 1 << 33 }),
        memlock_bytes: None,
        open_files: None,
        container: Vec::new(),
        ptrace: Ptrace { scope: None, capable: false, refused: None },
        interfaces: Vec::new(),
        variables: BTreeMap::new(),
    }
}

fn gpu(ordinal: u32) -> Gpu {
    Gpu {
        ordinal,
        name: "GPU".to_owned(),
        uuid: String::new(),
        pci: String::new(),
        compute_capability: Version { major: 9, minor: 0 },
        multiprocessors: 132,
        limits_kernel_time: false,
        memory_bytes: 80 << 30,
        memory: Memory::FreeBytes(79 << 30),
        pcie: None,
        nv_links: None,
        numa_node: None,
    }
}

fn found() -> Found {
    Found {
        cuda: Version { major: 13, minor: 0 },
        driver_release: None,
        nvrtc: Library::Version("13.0".to_owned()),
        toolkit: Library::Version("/usr/local/cuda".to_owned()),
        nvml: Library::Version("580.1".to_owned()),
        nccl: Library::Missing(String::new()),
        gpus: vec![gpu(0), gpu(1)],
        pairs: [(0, 1), (1, 0)].map(|ends| pair(ends, Access::Direct)).into(),
    }
}

fn pair((from, to): (u32, u32), access: Access) -> Pair {
    Pair { from, to, link: Route::Pcie(None), access }
}

/// What is wrong with these GPUs, on a machine whose only fault is that it has no network.
fn of(found: Found) -> Vec<Problem> {
    let mut problems = problems(&host(), &Gpus::Found(Box::new(found)));
    let network = problems.pop().unwrap();
    assert!(network.what.contains("network"), "{network:?}");
    problems
}

#[track_caller]
fn only(problems: &[Problem], weight: Weight, what: &str, remedy: &str) {
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].weight, weight, "{problems:?}");
    assert!(problems[0].what.contains(what), "{problems:?}");
    assert!(problems[0].remedy.contains(remedy), "{problems:?}");
}

#[test]
fn a_machine_in_order_has_no_problem() {
    assert_eq!(of(found()), []);
}

#[test]
fn a_missing_compiler_stops_ranks() {
    let mut broken = found();
    broken.nvrtc = Library::Missing("no NVRTC".to_owned());
    only(&of(broken), Weight::Stops, "no NVRTC", "cuda-nvrtc-13-0");
}

#[test]
fn without_headers_models_do_not_train() {
    let mut broken = found();
    broken.toolkit = Library::Missing("no headers".to_owned());
    let (weight, remedy) = (Weight::Stops, "cuda-toolkit-13-0");
    only(&of(broken.clone()), weight, "no headers", remedy);
    // Without NVRTC there is one thing to do first.
    broken.nvrtc = Library::Missing("no NVRTC".to_owned());
    only(&of(broken), weight, "no NVRTC", "cuda-nvrtc-13-0");
}

#[test]
fn a_compiler_for_later_drivers_stops_ranks() {
    let mut broken = found();
    broken.nvrtc = Library::Version("14.1".to_owned());
    only(&of(broken), Weight::Stops, "NVRTC 14.1", "CUDA 13");
    let mut fine = found();
    fine.nvrtc = Library::Version("13.5".to_owned());
    assert_eq!(of(fine), []);
}

#[test]
fn an_old_driver_must_load_kernels_at_once() {
    let mut old = found();
    old.cuda = Version { major: 12, minor: 2 };
    old.nvrtc = Library::Version("12.2".to_owned());
    only(&of(old.clone()), Weight::Stops, "CUDA 12.2", "CUDA_MODULE_LOADING=EAGER");
    let mut host = host();
    let eager = ("CUDA_MODULE_LOADING".to_owned(), "EAGER".to_owned());
    host.variables = [eager].into();
    let problems = problems(&host, &Gpus::Found(Box::new(old)));
    assert_eq!(problems.len(), 1, "the network: {problems:?}");
}

#[test]
fn a_full_gpu_is_named() {
    let mut full = found();
    full.gpus[1].memory = Memory::FreeBytes(100 << 20);
    only(&of(full), Weight::Stops, "GPU 1 (GPU) has 100 MiB of 81920 MiB left", "nvidia-smi");
    let mut refused = found();
    refused.gpus[0].memory = Memory::Unusable("out of memory".to_owned());
    only(&of(refused), Weight::Stops, "GPU 0", "CUDA_VISIBLE_DEVICES");
}

#[test]
fn an_old_gpu_is_named() {
    let mut old = found();
    old.gpus[0].compute_capability = Version { major: 6, minor: 1 };
    only(&of(old), Weight::Stops, "6.1, and 7.0 is needed", "leave it out");
}

#[test]
fn pairs_without_p2p_are_one_problem_for_each_reason() {
    let mut apart = found();
    let refused = |ends, refusal| pair(ends, Access::Refused(refusal));
    apart.pairs = vec![
        refused((0, 1), Refusal::Chipset),
        refused((1, 0), Refusal::Chipset),
        refused((0, 2), Refusal::Disabled),
    ];
    let problems = of(apart);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].what.contains("0 -> 1, 1 -> 0"), "{problems:?}");
    assert!(problems[1].remedy.contains("modprobe"), "{problems:?}");
}

#[test]
fn a_library_that_knows_the_links_is_missed_but_not_needed() {
    let mut blind = found();
    blind.nvml = Library::Missing("it is not there".to_owned());
    only(&of(blind), Weight::Notice, "links", "utility");
}

#[test]
fn what_stops_ranks_comes_first() {
    let mut broken = found();
    broken.nvml = Library::Missing(String::new());
    broken.nvrtc = Library::Missing(String::new());
    let weights: Vec<_> = of(broken).iter().map(|each| each.weight).collect();
    assert_eq!(weights, [Weight::Stops, Weight::Notice]);
}

#[test]
fn limits_of_a_container_are_noticed() {
    let mut host = host();
    host.processors.quota = Some(2.0);
    host.shm = Some(Shm { bytes: 64 << 20, free_bytes: 1 << 20 });
    host.ptrace.scope = Some(1);
    let none = Gpus::Missing { reason: String::new() };
    let problems = problems(&host, &none);
    let all: Vec<_> = problems.iter().map(|each| each.what.as_str()).collect();
    assert_eq!(problems.len(), 4, "{all:?}");
    for (problem, part) in problems.iter().zip(["time of 2", "64 MiB", "ptrace_scope 1", "network"])
    {
        assert!(problem.what.contains(part), "{problem:?} lacks {part:?}");
        assert!(!problem.remedy.is_empty(), "{problem:?}");
    }
}

#[test]
fn who_may_look_at_processes_depends_on_scope_and_capability() {
    let state = |scope, capable, refused: Option<&str>| {
        ptrace(&Ptrace { scope, capable, refused: refused.map(str::to_owned) })
    };
    assert_eq!(state(None, false, None), None);
    assert_eq!(state(Some(0), false, None), None);
    assert_eq!(state(Some(2), true, None), None);
    for (scope, capable) in [(1, false), (2, false), (3, true)] {
        let text = state(Some(scope), capable, None).unwrap();
        assert!(text.contains(&format!("ptrace_scope {scope}")), "{text}");
    }
    let filtered = state(None, true, Some("not permitted")).unwrap();
    assert!(filtered.contains("not permitted"), "{filtered}");
}

#[test]
fn every_refusal_has_a_remedy() {
    for refusal in [
        Refusal::Chipset,
        Refusal::Gpu,
        Refusal::Topology,
        Refusal::Disabled,
        Refusal::Unsupported,
        Refusal::Unknown,
        Refusal::NobodyToAsk,
    ] {
        assert!(!refusal.remedy().is_empty(), "{refusal}");
    }
}

#[test]
fn huge_pages_that_are_off_are_worth_knowing() {
    let mut host = host();
    host.huge_pages.shared = Some("never".to_owned());
    let none = Gpus::Missing { reason: String::new() };
    let problems = problems(&host, &none);
    let about = |problem: &&Problem| problem.what.contains("huge pages");
    let found: Vec<_> = problems.iter().filter(about).collect();
    assert_eq!(found.len(), 1, "{problems:?}");
    assert!(found[0].what.contains("processes"), "{}", found[0].what);
    assert!(found[0].remedy.contains("shmem_enabled"), "{}", found[0].remedy);
}
