//! The listing runs, on the stand-in for a GPU that `.ci/run` builds.

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::env;
use std::process::Command;
use std::time::Duration;

use bonfire_testkit::Job;

/// All kernels may have yet to be compiled.
const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn gpus_do_what_the_book_says() {
    let Some(folder) = env::var_os("BONFIRE_TEST_STAND_IN") else {
        println!(
            "skipped: BONFIRE_TEST_STAND_IN is not set; .ci/run builds the stand-in and sets it"
        );
        return;
    };
    for (devices, nccl) in [
        ("2", "rank 1: the same over NCCL"),
        // NCCL takes a device for each rank.
        ("1", "not over NCCL: rank "),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpus"));
        command
            .env("LD_LIBRARY_PATH", &folder)
            .env("CUDA_STAND_IN_DEVICES", devices)
            .env_remove("NCCL_MULTI_RANK_GPU_ENABLE");
        let end = Job::start_for(&mut command, LIMIT).end();
        let text = [&end.stdout[..], &end.stderr].concat().join("\n");
        assert!(end.status.success(), "{text}");
        for line in ["rank 0: data go by Peer", nccl] {
            assert!(text.contains(line), "{line:?} is missing:\n{text}");
        }
    }
}
