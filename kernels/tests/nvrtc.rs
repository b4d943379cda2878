//! Every kernel through NVRTC, for several generations of GPUs. No GPU and no driver is needed,
//! only libnvrtc, which is on the loader's path if `BONFIRE_TEST_NVRTC` is set: `.ci/run` fetches it.

#![cfg(feature = "cuda")]

use std::collections::BTreeMap;

use bonfire_kernels::source::{KernelSource, NVRTC_OPTIONS};
use bonfire_kernels::variants;
use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts};

/// All kernels once; some variants share one.
fn sources() -> Vec<KernelSource> {
    let mut sources = Vec::new();
    sources.extend(
        variants::reductions()
            .iter()
            .map(|kernel| kernel.cuda_source()),
    );
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

#[test]
fn every_kernel_compiles_for_ampere() {
    check("sm_80");
}

#[test]
fn every_kernel_compiles_for_hopper() {
    check("sm_90");
}

#[test]
fn every_kernel_compiles_for_blackwell() {
    check("sm_100");
}
