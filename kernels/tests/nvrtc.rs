//! Every kernel through NVRTC, for several generations of GPUs. No GPU and no driver is needed,
//! only libnvrtc, which is on the loader's path if `BONFIRE_TEST_NVRTC` is set: `.ci/run` fetches it.

#![cfg(feature = "cuda")]

use std::collections::BTreeMap;

use bonfire_cuda::{ComputeCapability, Nvrtc};
use bonfire_kernels::launch::flags::{RANKS_MAX, SignalKernel};
use bonfire_kernels::launch::one_shot::OneShotKey;
use bonfire_kernels::source::{KernelSource, NVRTC_OPTIONS};
use bonfire_kernels::{Element, Fold, variants};
use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts};

/// All kernels once; some variants share one.
fn sources() -> Vec<KernelSource> {
    let mut sources = Vec::new();
    sources.extend(variants::reductions().iter().map(|kernel| kernel.cuda_source()));
    sources.extend(variants::scales().iter().map(|kernel| kernel.cuda_source()));
    sources.extend(variants::packs().iter().map(|kernel| kernel.cuda_source()));
    let by_entry: BTreeMap<String, KernelSource> = sources
        .into_iter()
        .map(|source| source.expect("every variant compiles to CUDA C++"))
        .map(|source| (source.entry.clone(), source))
        .collect();
    by_entry.into_values().collect()
}

fn check(architecture: &'static str) {
    if std::env::var_os("BONFIRE_TEST_NVRTC").is_none() {
        println!("{architecture} skipped: set BONFIRE_TEST_NVRTC where libnvrtc can be loaded");
        return;
    }
    let sources = sources();
    assert!(sources.len() > 100, "only {} kernels", sources.len());
    for source in &sources {
        let options = CompileOptions {
            arch: Some(architecture),
            options: NVRTC_OPTIONS.map(str::to_owned).to_vec(),
            ..CompileOptions::default()
        };
        let compiled = compile_ptx_with_opts(&source.source, options).unwrap_or_else(|error| {
            let log = match &error {
                CompileError::CompileError { log, .. } => log.to_string_lossy(),
                _ => "no log".into(),
            };
            panic!("{} for {architecture}: {error:?}\n{log}", source.entry)
        });
        let entry = format!(".entry {}", source.entry);
        assert!(compiled.to_src().contains(&entry), "{entry} is missing");
    }
    println!("{architecture}: {} kernels compiled", sources.len());
}

/// Those that wait for other ranks, which are CUDA C++: every element with every operation that it has, and every
/// number of ranks with one of them.
fn check_waiting(major: u32) {
    if std::env::var_os("BONFIRE_TEST_NVRTC").is_none() {
        println!("waiting kernels skipped: set BONFIRE_TEST_NVRTC where libnvrtc can be loaded");
        return;
    }
    let nvrtc = Nvrtc::load().expect("BONFIRE_TEST_NVRTC says that it is there");
    let capability = ComputeCapability { major, minor: 0 };
    SignalKernel::compile(nvrtc, capability).unwrap_or_else(|error| panic!("signals: {error}"));
    let folds = Element::ALL.into_iter().flat_map(|element| {
        let folds = Fold::ALL.into_iter().filter(move |fold| fold.takes(element));
        folds.map(move |fold| (element, fold, 2))
    });
    let ranks = (1..=RANKS_MAX).map(|ranks| (Element::Bf16, Fold::Sum, ranks));
    let mut compiled = 0;
    for (element, fold, ranks) in folds.chain(ranks) {
        let key = OneShotKey { element, fold, ranks };
        key.compile(nvrtc, capability)
            .unwrap_or_else(|error| panic!("{key:?} for {capability:?}: {error}"));
        compiled += 1;
    }
    println!("{capability:?}: {compiled} pairs of waiting kernels compiled");
}

#[test]
fn kernels_that_wait_compile_for_ampere_hopper_and_blackwell() {
    [8, 9, 10].into_iter().for_each(check_waiting);
}

#[test]
fn every_kernel_compiles_for_ampere_hopper_and_blackwell() {
    ["sm_80", "sm_90", "sm_100"].into_iter().for_each(check);
}
