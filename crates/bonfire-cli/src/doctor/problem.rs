//! What gets in the way of ranks, and what to do about it: judged from the facts alone.

use std::collections::BTreeMap;

use serde::Serialize;

use super::gpus::{Access, Found, Gpus, Library, Memory, Refusal, Version};
use super::host::{Host, Ptrace};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Problem {
    pub(super) weight: Weight,
    pub(super) what: String,
    pub(super) remedy: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Weight {
    /// Ranks cannot run before it is solved.
    Stops,
    /// They run, slower or with less.
    Slows,
    Notice,
}

impl Problem {
    fn new(weight: Weight, what: String, remedy: impl Into<String>) -> Self {
        let remedy = remedy.into();
        Self { weight, what, remedy }
    }
}

/// Less than this is left by somebody who uses the GPU already.
const GPU_FREE_BYTES_MIN: usize = 1 << 30;

/// Docker's default, which other libraries fill at once.
const SHM_BYTES_MIN: u64 = 64 << 20;

/// Streams can wait for words in memory from here on.
const CAPABILITY_MIN: Version = Version { major: 7, minor: 0 };

/// The driver loads kernels before their first launch from here on.
const LOADS_AHEAD: Version = Version { major: 12, minor: 4 };

pub(super) fn problems(host: &Host, gpus: &Gpus) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Gpus::Found(found) = gpus {
        libraries(host, found, &mut problems);
        devices(found, &mut problems);
        pairs(found, &mut problems);
    }
    machine(host, &mut problems);
    problems.sort_by_key(|problem| problem.weight);
    problems
}

fn libraries(host: &Host, found: &Found, problems: &mut Vec<Problem>) {
    let mut add = |weight, what, remedy: String| problems.push(Problem::new(weight, what, remedy));
    match &found.nvrtc {
        Library::Missing(reason) => add(
            Weight::Stops,
            format!("kernels cannot be compiled: {reason}"),
            format!(
                "install cuda-nvrtc-{}-{} or `pip install nvidia-cuda-nvrtc` of that version, and put its \
                 folder into LD_LIBRARY_PATH",
                found.cuda.major, found.cuda.minor
            ),
        ),
        Library::Version(version) => {
            let major = version.split('.').next().and_then(|it| it.parse().ok());
            if major.is_some_and(|major: u32| major > found.cuda.major) {
                add(
                    Weight::Stops,
                    format!(
                        "NVRTC {version} compiles for later drivers than this one, of CUDA {}",
                        found.cuda
                    ),
                    format!("update the driver, or use NVRTC of CUDA {}", found.cuda.major),
                );
            }
        }
    }
    // Without NVRTC this is unknown, and that is said above.
    if let (Library::Missing(reason), Library::Version(_)) = (&found.toolkit, &found.nvrtc) {
        add(
            Weight::Stops,
            format!("Burn's kernels cannot be compiled, those of collectives can: {reason}"),
            format!(
                "install cuda-toolkit-{}-{}, or unpack nvidia-cuda-runtime and nvidia-cuda-crt of that version from PyPI, \
                 and set CUDA_PATH to the folder above include",
                found.cuda.major, found.cuda.minor
            ),
        );
    }
    if let Library::Missing(reason) = &found.nvml {
        add(
            Weight::Notice,
            format!("links and reasons are not known: {reason}"),
            Refusal::NobodyToAsk.remedy().to_owned(),
        );
    }
    let eager = host.variables.get("CUDA_MODULE_LOADING");
    if found.cuda < LOADS_AHEAD && eager.is_none_or(|mode| mode != "EAGER") {
        add(
            Weight::Stops,
            format!(
                "a driver of CUDA {} loads kernels at their first launch, which may wait for a neighbour for \
                 ever",
                found.cuda
            ),
            format!("update the driver to CUDA {LOADS_AHEAD}, or set CUDA_MODULE_LOADING=EAGER"),
        );
    }
}

fn devices(found: &Found, problems: &mut Vec<Problem>) {
    for gpu in &found.gpus {
        let name = format!("GPU {} ({})", gpu.ordinal, gpu.name);
        let mut stop = |what, remedy| problems.push(Problem::new(Weight::Stops, what, remedy));
        match &gpu.memory {
            Memory::Unusable(reason) => stop(
                format!("{name} cannot be used: {reason}"),
                "see in nvidia-smi who uses it and in which mode it is; leave it out with CUDA_VISIBLE_DEVICES",
            ),
            Memory::FreeBytes(free) if *free < GPU_FREE_BYTES_MIN => {
                let (free, all) = (free >> 20, gpu.memory_bytes >> 20);
                let what = format!("{name} has {free} MiB of {all} MiB left");
                stop(what, "see in nvidia-smi who uses it; leave it out with CUDA_VISIBLE_DEVICES");
            }
            Memory::FreeBytes(_) => {}
        }
        let has = gpu.compute_capability;
        if has < CAPABILITY_MIN {
            let what =
                format!("{name} has compute capability {has}, and {CAPABILITY_MIN} is needed");
            stop(what, "leave it out with CUDA_VISIBLE_DEVICES");
        }
    }
}

/// One problem for each reason, since large machines have many pairs.
fn pairs(found: &Found, problems: &mut Vec<Problem>) {
    let mut refused: BTreeMap<Refusal, Vec<String>> = BTreeMap::new();
    for pair in &found.pairs {
        if let Access::Refused(refusal) = pair.access {
            let ends = format!("{} -> {}", pair.from, pair.to);
            refused.entry(refusal).or_default().push(ends);
        }
    }
    for (refusal, pairs) in refused {
        let what = format!(
            "no P2P between GPUs {}: {refusal}; what they exchange goes through the host",
            pairs.join(", ")
        );
        problems.push(Problem::new(Weight::Slows, what, refusal.remedy()));
    }
}

fn machine(host: &Host, problems: &mut Vec<Problem>) {
    let mut notice = |what, remedy: &str| {
        problems.push(Problem::new(Weight::Notice, what, remedy));
    };
    let processors = &host.processors;
    if let Some(quota) = processors.quota
        && quota < processors.allowed as f64
    {
        notice(
            format!(
                "this process sees {} processors and gets the time of {quota}: more ranks than that take turns",
                processors.allowed
            ),
            "start as many ranks as processors are granted, or raise the limit (`--cpus`)",
        );
    }
    for (choice, ranks, remedy) in [
        (
            &host.huge_pages.private,
            "threads",
            "as root `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`",
        ),
        (
            &host.huge_pages.shared,
            "processes",
            "as root `echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled`",
        ),
    ] {
        if matches!(choice.as_deref(), Some("never" | "deny")) {
            notice(
                format!(
                    "the buffers of ranks that are {ranks} get no huge pages, with which large operations on \
                     them are about 1.15 times as fast"
                ),
                remedy,
            );
        }
    }
    if let Some(shm) = host.shm
        && shm.bytes <= SHM_BYTES_MIN
    {
        notice(
            format!(
                "/dev/shm has {} MiB: Bonfire needs none of it, but NCCL and loaders of data do",
                shm.bytes >> 20
            ),
            "start the container with --shm-size=1g or --ipc=host",
        );
    }
    if let Some(limits) = ptrace(&host.ptrace) {
        notice(
            format!("{limits}: Bonfire needs no more, but a debugger on a rank that hangs does"),
            "start the container with --cap-add=SYS_PTRACE, and as root sysctl kernel.yama.ptrace_scope=0",
        );
    }
    if !host.interfaces.iter().any(|each| each.leads_out()) {
        notice(
            "no network interface leads to another host".to_owned(),
            "ranks on this host need none; for several hosts start the container with --network=host",
        );
    }
}

/// What keeps a process from looking at another of its user.
pub(super) fn ptrace(ptrace: &Ptrace) -> Option<String> {
    if let Some(reason) = &ptrace.refused {
        return Some(format!("the system calls to look at other processes are refused ({reason})"));
    }
    match (ptrace.scope, ptrace.capable) {
        (None | Some(0), _) | (Some(1 | 2), true) => None,
        (Some(1), false) => Some("only parents may look at processes (ptrace_scope 1)".to_owned()),
        (Some(2), false) => {
            Some("only CAP_SYS_PTRACE may look at processes (ptrace_scope 2)".to_owned())
        }
        (Some(scope), _) => {
            Some(format!("nobody may look at other processes (ptrace_scope {scope})"))
        }
    }
}

#[cfg(test)]
mod tests;
