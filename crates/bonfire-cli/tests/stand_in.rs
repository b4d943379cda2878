//! The CUDA engine without a GPU: the program on a stand-in for the driver, as `.ci/run` starts it.
//!
//! `BONFIRE_TEST_STAND_IN` names the folder in which `libcuda.so`, `libnvrtc.so` and `libnccl.so.2` are
//! the stand-in.

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::env;
use std::process::Command;
use std::time::Duration;

use bonfire_testkit::{Job, JobEnd, assert_each_says};

/// Of one run of the program: minutes, where all kernels have yet to be compiled and the machine is busy.
const LIMIT: Duration = Duration::from_secs(1000);

/// Runs the program on so many devices, of which this is broken; `None` where there is no stand-in.
fn on_stand_in(devices: u32, faults: &str, arguments: &[&str]) -> Option<JobEnd> {
    let Some(folder) = env::var_os("BONFIRE_TEST_STAND_IN") else {
        println!("skipped: .ci/run builds the stand-in and sets BONFIRE_TEST_STAND_IN");
        return None;
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_bonfire"));
    command
        .args(arguments)
        .env("LD_LIBRARY_PATH", &folder)
        // Burn's backend looks for an installation, and has kernels for tensor cores, which there are none of.
        .env("CUDA_PATH", &folder)
        .env("CUDA_STAND_IN_CAPABILITY", "7.5")
        .env("CUBECL_ENVIRONMENT", "stand-in")
        .env("CUBECL_AUTOTUNE_LEVEL", "minimal")
        .env("CUDA_STAND_IN_DEVICES", devices.to_string())
        .env("CUDA_STAND_IN_FAULTS", faults);
    if faults == FULL {
        command.env("CUDA_STAND_IN_FAULTS", "").env("CUDA_STAND_IN_MEMORY_MIB", "24");
    }
    if faults == FEW_QUEUES {
        command.env("CUDA_STAND_IN_FAULTS", "").env("CUDA_DEVICE_MAX_CONNECTIONS", "8");
    }
    Some(Job::start_for(&mut command, LIMIT).end())
}

/// Instead of a fault: devices with little memory.
const FULL: &str = "full";

/// Instead of a fault: as many queues as a driver has that nobody has told of more.
const FEW_QUEUES: &str = "few-queues";

/// A self-test that passes and says all of this; everything that it said.
fn passes(devices: u32, faults: &str, parts: (&str, &str), lines: &[&str]) -> Option<String> {
    let (end, text) = selftest(devices, faults, parts)?;
    assert!(end.status.success(), "{text}");
    assert_each_says([&text], lines);
    Some(text)
}

/// The parts of the self-test with these numbers of ranks; everything that it said.
fn selftest(devices: u32, faults: &str, (parts, ranks): (&str, &str)) -> Option<(JobEnd, String)> {
    let arguments = ["selftest", "--cuda", "--quick", "--only", parts, "--ranks", ranks];
    let end = on_stand_in(devices, faults, &arguments)?;
    let text = [&end.stdout[..], &end.stderr].concat().join("\n");
    Some((end, text))
}

#[test]
fn ranks_that_share_a_device_give_the_bits_of_the_cpu() {
    // Code that waits for a device that waits for another rank would never come.
    let parts = ("threads,processes,faults", "2,4,8");
    let lines = [
        "8 ranks as threads, waiting in Kernel: ",
        "8 ranks as threads, waiting in Stream: ",
        "8 ranks as threads, through host memory: ",
        "1 ranks as processes: all bits as on the CPU",
        "4 ranks as processes: all bits as on the CPU",
        "8 ranks as processes: all bits as on the CPU",
        "faults         passed",
    ];
    let Some(text) = passes(1, "load-waits", parts, &lines) else { return };
    assert!(!text.contains("data go through host memory"), "{text}");
}

#[test]
fn ranks_on_devices_of_their_own_give_the_bits_of_the_cpu() {
    let parts = ("inventory,threads,processes,faults", "2,3");
    let Some(text) = passes(2, "", parts, &["memory of device 1: direct"]) else { return };
    assert!(!text.contains("data go through host memory"), "{text}");
}

#[test]
fn burn_models_learn_on_several_ranks_what_they_learn_on_one() {
    // Two devices for three ranks: some share one.
    let lines = [
        "3 ranks as threads: 4448 parameters, the same bits on all of them, the same bits on both ways, ",
        "3 ranks as processes: 4448 parameters, the same bits on all of them, the same bits on both ways, ",
        "training       passed",
    ];
    passes(2, "", ("training", "3"), &lines);
}

#[test]
fn models_do_not_train_without_the_headers_of_cuda_and_the_error_says_what_to_do() {
    let missing = "cannot open source file \"cuda_fp16.h\"): Burn's kernels include them; install";
    for parts in ["training", "steps"] {
        let Some((end, text)) = selftest(1, "no-headers", (parts, "2")) else {
            return;
        };
        assert!(!end.status.success(), "{text}");
        let says =
            "cannot train on cuda: no headers of CUDA (NVRTC does not compile with the headers of ";
        assert_each_says([&text], &[says, missing]);
        assert!(!text.contains("panicked"), "{text}");
    }
    // Collectives need none.
    passes(1, "no-headers", ("threads", "2"), &[]);
}

#[test]
fn steps_of_burn_models_are_timed() {
    let lines = [
        "4448 parameters in 32 tensors, 6 samples per rank, each of 4 tokens",
        "steps          passed",
    ];
    let Some(text) = passes(1, "", ("steps", "2"), &lines) else { return };
    let begins = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let rows: Vec<String> = text.lines().filter_map(begins).collect();
    for ranks in ["1", "2"] {
        assert!(rows.iter().any(|row| row == ranks), "{ranks}:\n{text}");
    }
}

#[test]
fn devices_that_reach_each_other_alike_reduce_directly_at_every_size() {
    let direct =
        "1 KiB by Direct, 64 KiB by Direct, 1 MiB by Direct, 64 MiB by Direct, 1 GiB by Direct";
    let lines = [
        "4 ranks: large all-reduce direct: pairs at ",
        &format!("in canonical order: {direct}"),
        &format!("in any order: {direct}"),
        "rank 3  reads ",
    ];
    passes(4, "", ("choice", "4"), &lines);
}

#[test]
fn where_only_neighbours_are_fast_large_sums_go_from_neighbour_to_neighbour() {
    let lines = [
        "4 ranks: large all-reduce direct, by a chain from ",
        "in canonical order: 1 KiB by Direct, ",
        "64 MiB by Chain, 1 GiB by Chain",
        "in any order: 1 KiB by Direct, ",
        "64 MiB by Ring, 1 GiB by Ring",
        // What is asked for is done at every size, with the same bits.
        "as asked: 1 KiB by Direct, 64 KiB by Direct, 1 MiB by Direct, 64 MiB by Direct, 1 GiB by Direct: 18 cases",
        "as asked: 1 KiB by Chain, 64 KiB by Chain, 1 MiB by Chain, 64 MiB by Chain, 1 GiB by Chain: 12 cases",
        "as asked: 1 KiB by Ring, 64 KiB by Ring, 1 MiB by Ring, 64 MiB by Ring, 1 GiB by Ring: 6 cases",
        "as chosen: 24 cases, bits as on the CPU",
    ];
    passes(4, "far-peers-slow", ("choice", "4"), &lines);
}

#[test]
fn ranks_that_share_a_device_measure_nothing() {
    let line = "2 ranks: large all-reduce direct, on one device";
    let Some(text) = passes(1, "", ("choice", "2"), &[line]) else { return };
    assert!(!text.contains("GB/s"), "{text}");
}

#[test]
fn no_kernel_waits_where_one_device_ends_kernels_that_take_long() {
    for (fault, sync) in [("", "Kernel"), ("kernel-time-limit", "Stream")] {
        let line = format!("cases, waiting in {sync}");
        let Some(text) = passes(2, fault, ("processes", "2"), &[&line]) else { return };
        assert!(!text.contains("data go through host memory"), "{text}");
    }
}

/// With what is broken, the ranks take the way through the host, say why, and are right.
fn falls_back(devices: u32, fault: &str, (parts, reason): (&str, &str)) {
    let lines = ["data go through host memory, because 2 of 2 pairs", reason];
    passes(devices, fault, (parts, "2"), &lines);
}

#[test]
fn devices_that_do_not_reach_each_other_use_the_host() {
    let reason = "cuCtxEnablePeerAccess: CUDA_ERROR_PEER_ACCESS_UNSUPPORTED";
    falls_back(2, "no-peer", ("threads", reason));
}

#[test]
fn data_that_arrive_wrong_between_devices_are_noticed() {
    let reason = "written by rank 1 is 0xcf7f6d44 and not 0xcf7f6d54";
    falls_back(2, "corrupt-peer", ("threads,processes", reason));
}

#[test]
fn ranks_whose_streams_cannot_wait_for_each_other_use_the_host() {
    let reason = "its stream writes no words there: cuStreamBatchMemOp: CUDA_ERROR_NOT_SUPPORTED";
    falls_back(1, "no-stream-ops", ("threads,processes", reason));
}

#[test]
fn words_that_do_not_arrive_between_devices_are_noticed() {
    let reason =
        "rank 1 does not reach the memory of rank 0: a word that its stream wrote there did not";
    falls_back(2, "lost-words", ("threads,processes", reason));
    let reason =
        "rank 1 does not reach the memory of rank 0: a word that its kernel wrote there did not";
    falls_back(2, "lost-kernel-words", ("threads", reason));
}

#[test]
fn memory_that_is_not_given_to_other_processes_is_not_needed() {
    let reason = "it is not given to other processes: cuIpcGetMemHandle";
    falls_back(1, "no-ipc,no-descriptors", ("processes", reason));
}

#[test]
fn memory_of_other_processes_that_is_not_opened_is_not_needed() {
    let fault = "no-ipc-open,no-descriptors";
    falls_back(1, fault, ("processes", "cuIpcOpenMemHandle"));
}

/// As between containers.
#[test]
fn memory_without_handles_goes_to_other_processes_by_descriptors() {
    for (devices, fault) in [(1, "no-ipc"), (2, "no-ipc"), (2, "no-ipc-open")] {
        let Some(text) = passes(devices, fault, ("processes", "3"), &[]) else { return };
        assert!(!text.contains("data go through host memory"), "{text}");
    }
    let reason = "cuMemSetAccess: CUDA_ERROR_PEER_ACCESS_UNSUPPORTED";
    falls_back(2, "no-ipc,no-peer", ("processes", reason));
}

#[test]
fn pages_that_cannot_be_locked_make_copies_slower_and_no_more() {
    let reason = "copies between host and device are slower";
    falls_back(2, "no-peer,no-host-lock", ("processes", reason));
}

#[test]
fn a_full_device_is_named_with_what_is_free() {
    let Some((end, text)) = selftest(1, FULL, ("threads", "4")) else {
        return;
    };
    assert!(!end.status.success(), "{text}");
    // How much is free depends on who comes first.
    let named = "no 16777216 bytes of device memory to be had on device 0, ";
    assert_each_says([text], &[named, " of 25165824 are free"]);
}

#[test]
fn every_operation_is_measured_and_right_between_devices() {
    for devices in [1, 2] {
        let mut arguments = vec!["bench"];
        arguments.extend(["all-reduce", "reduce-scatter", "all-gather", "broadcast"]);
        arguments.extend(["reduce", "gather", "scatter", "barrier"]);
        arguments.extend(["all-to-all", "send-recv"]);
        arguments.extend(["--device", "cuda", "--oversubscribe", "--ranks", "3"]);
        arguments.extend(["--min-bytes", "64", "--max-bytes", "256K", "--step-factor", "16"]);
        arguments.extend(["--iters", "3"]);
        let Some(end) = on_stand_in(devices, "", &arguments) else {
            return;
        };
        let text = [&end.stdout[..], &end.stderr].concat().join("\n");
        assert!(end.status.success(), "{text}");
        assert!(text.contains("# Out of bounds values : 0 OK"), "{text}");
        assert!(text.contains("oversubscribed"), "{text}");
    }
}

#[test]
fn ranks_of_one_process_that_share_a_device_have_queues_or_use_the_host() {
    let mut arguments = vec!["bench", "all-reduce", "--device", "cuda", "--oversubscribe"];
    arguments.extend(["--transport", "local", "--ranks", "5", "--iters", "3"]);
    arguments.extend(["--min-bytes", "64K", "--max-bytes", "256K"]);
    let refused = "data go through host memory, because 5 ranks of one process need 17 queues on a device, \
                   and the driver has 8: set CUDA_DEVICE_MAX_CONNECTIONS=17";
    // The program itself asks for more, unless it is told not to.
    for (queues, is_refused) in [("", false), (FEW_QUEUES, true)] {
        let Some(end) = on_stand_in(1, queues, &arguments) else {
            return;
        };
        let text = [&end.stdout[..], &end.stderr].concat().join("\n");
        assert!(end.status.success(), "{text}");
        assert!(text.contains("# Out of bounds values : 0 OK"), "{text}");
        assert_eq!(text.contains(refused), is_refused, "{text}");
    }
}

#[test]
fn a_group_over_nccl_gives_the_bits_of_the_cpu() {
    let parts = "nccl-threads,nccl-processes";
    for (devices, ranks) in [(1, "2,4"), (3, "1,3")] {
        let most = &ranks[2..];
        let threads = format!("{most} ranks as threads over NCCL: ");
        let processes = format!("{most} ranks as processes over NCCL: all bits as on the CPU");
        passes(devices, "", (parts, ranks), &[&threads, &processes]);
    }
}

#[test]
fn ranks_over_nccl_learn_which_process_died() {
    for devices in [1, 3] {
        let lines = [
            "[rank 0] notified that rank 1 failed: ",
            "[rank 2] notified that rank 1 failed: ",
            "a process died, and the others knew which and ended after ",
        ];
        passes(devices, "", ("nccl-faults", "2"), &lines);
    }
}

#[test]
fn a_link_of_nccl_that_breaks_is_an_error_before_the_deadline() {
    let Some((end, text)) = selftest(2, "nccl-link-breaks", ("nccl-threads", "2")) else {
        return;
    };
    assert!(!end.status.success(), "{text}");
    let says = "ncclCommGetAsyncError: ncclResult 6 (set NCCL_DEBUG=WARN to see why)";
    assert_each_says([text], &[says]);
}

#[test]
fn packed_tensors_are_averaged_as_on_the_cpu() {
    let line = "3 ranks, [150, 400, 1000] tensors: all bits as on the CPU";
    passes(1, "load-waits", ("pack", "2,3"), &[line]);
}

#[test]
fn the_doctor_shows_which_devices_reach_each_other() {
    for (fault, state) in [
        ("", "to GPU 1: NVLink; P2P"),
        ("no-peer", "to GPU 1: through the host"),
        ("kernel-time-limit", "kernels have a time limit"),
        ("no-headers", "PROBLEM: Burn's kernels cannot be compiled, those of collectives can: "),
    ] {
        let Some(end) = on_stand_in(2, fault, &["doctor"]) else {
            return;
        };
        let text = end.stdout.join("\n");
        assert!(end.status.success(), "{text}");
        assert_each_says([text], &[state]);
    }
}
