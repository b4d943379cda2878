use std::collections::HashMap;

use super::*;

/// The environment of a space-separated list of assignments, of which the last of a variable counts.
fn environment(assignments: &str) -> impl Fn(&str) -> Option<OsString> {
    let pairs = assignments.split_whitespace().map(|pair| pair.split_once('=').unwrap());
    let values: HashMap<&str, &str> = pairs.collect();
    move |variable| values.get(variable).map(OsString::from)
}

fn parse(assignments: &str) -> Result<Option<RankEnv>, EnvError> {
    detect_rank_in(environment(assignments))
}

fn accepted(assignments: &str) -> RankEnv {
    parse(assignments).unwrap().expect("a worker's environment")
}

#[track_caller]
fn refused(assignments: &str, expected: &str) {
    let message = parse(assignments).unwrap_err().to_string();
    assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    assert!(!message.contains('\n'), "{message:?} is more than one line");
}

const MEETING: &str = "MASTER_ADDR=127.0.0.1 MASTER_PORT=29500";

#[test]
fn nothing_set_is_no_worker() {
    assert!(parse("").unwrap().is_none());
    assert!(parse(MEETING).unwrap().is_none());
    let token = format!("BONFIRE_JOB_TOKEN={}", "ab".repeat(32));
    assert!(parse(&token).unwrap().is_none());
}

#[test]
fn local_values_default_to_one_host() {
    let worker = accepted(&format!("RANK=3 WORLD_SIZE=4 {MEETING}"));
    assert_eq!((worker.rank.get(), worker.world_size.get()), (3, 4));
    assert_eq!((worker.local_rank, worker.local_world_size), (3, 4));
    assert_eq!(worker.master_addr, "127.0.0.1");
    assert_eq!(worker.master_port, 29500);
    assert!(worker.job_token.is_empty());
    assert_eq!(worker.agent_store, StoreHost::RankZero);
}

#[test]
fn local_rank_defaults_to_the_place_among_consecutive_ranks() {
    let worker = accepted(&format!("RANK=6 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 {MEETING}"));
    assert_eq!((worker.local_rank, worker.local_world_size), (2, 4));
}

#[test]
fn what_the_launcher_writes_is_what_the_worker_reads() {
    let written = RankEnv {
        rank: Rank::new(5),
        world_size: WorldSize::new(8).unwrap(),
        local_rank: 1,
        local_world_size: 4,
        master_addr: "node-0".to_owned(),
        master_port: 4242,
        job_token: JobToken::random().unwrap(),
        agent_store: StoreHost::Agent,
        job_id: "night run".to_owned(),
        restart_count: 2,
        host_id: Some("rack 7".to_owned()),
        launcher_id: Some(99),
        settings: EnvSettings {
            overrides: "all_reduce=ring".parse().unwrap(),
            streams_per_link: Some(4),
            stream_threads: Some(bonfire_collective::StreamThreads::On),
            ..EnvSettings::default()
        },
    };
    let variables: HashMap<_, _> = rank_variables(&written).into_iter().collect();
    let read = rank_from_lookup(|name| variables.get(name).map(OsString::from)).unwrap();
    assert_eq!(rank_variables(&read), rank_variables(&written));
    assert_eq!((read.job_id.as_str(), read.restart_count), ("night run", 2));
    assert_eq!(read.host_id, written.host_id);
    assert_eq!(read.launcher_id, Some(99));
    assert_eq!(read.settings, written.settings);

    let silent = RankEnv {
        job_token: JobToken::empty(),
        agent_store: StoreHost::RankZero,
        host_id: None,
        launcher_id: None,
        settings: EnvSettings::default(),
        ..written
    };
    let variables: HashMap<_, _> = rank_variables(&silent).into_iter().collect();
    let read = rank_from_lookup(|name| variables.get(name).map(OsString::from)).unwrap();
    assert!(read.job_token.is_empty());
    assert_eq!(read.agent_store, StoreHost::RankZero);
}

#[test]
fn a_missing_variable_is_named() {
    refused(&format!("RANK=0 {MEETING}"), "WORLD_SIZE is not set");
    refused(&format!("WORLD_SIZE=1 {MEETING}"), "RANK is not set");
    refused(&format!("LOCAL_RANK=0 {MEETING}"), "RANK is not set");
    refused("RANK=0 WORLD_SIZE=1 MASTER_PORT=1", "MASTER_ADDR is not set");
    refused("RANK=0 WORLD_SIZE=1 MASTER_ADDR=a", "MASTER_PORT is not set");
}

#[test]
fn a_world_of_zero_is_refused() {
    refused(&format!("RANK=0 WORLD_SIZE=0 {MEETING}"), "WORLD_SIZE must be a whole number from 1");
}

#[test]
fn a_rank_outside_its_world_is_refused() {
    refused(&format!("RANK=4 WORLD_SIZE=4 {MEETING}"), "RANK is 4, but WORLD_SIZE is 4");
    refused(
        &format!("RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2 {MEETING}"),
        "LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2",
    );
    refused(
        &format!("RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=5 {MEETING}"),
        "LOCAL_WORLD_SIZE is 5, more than WORLD_SIZE",
    );
}

#[test]
fn text_that_is_no_number_is_shown() {
    refused(&format!("RANK=one WORLD_SIZE=4 {MEETING}"), "RANK must be a whole number");
    refused(&format!("RANK=-1 WORLD_SIZE=4 {MEETING}"), "not \"-1\"");
    refused(&format!("RANK= WORLD_SIZE=4 {MEETING}"), "not \"\"");
    refused(&format!("RANK=0 WORLD_SIZE=99999999999 {MEETING}"), "not \"99999999999\"");
}

#[test]
fn a_port_outside_its_range_is_refused() {
    for port in ["0", "65536", "http"] {
        refused(
            &format!("RANK=0 WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT={port}"),
            "MASTER_PORT must be a whole number from 1 to 65535",
        );
    }
}

#[test]
fn an_empty_address_is_refused() {
    refused("RANK=0 WORLD_SIZE=1 MASTER_ADDR= MASTER_PORT=1", "MASTER_ADDR is empty");
}

#[test]
fn a_bad_token_or_switch_is_refused() {
    let base = format!("RANK=0 WORLD_SIZE=1 {MEETING}");
    refused(&format!("{base} BONFIRE_JOB_TOKEN=secret"), "BONFIRE_JOB_TOKEN is wrong");
    refused(
        &format!("{base} BONFIRE_JOB_TOKEN_FILE=/none/such"),
        "BONFIRE_JOB_TOKEN_FILE is wrong",
    );
    refused(
        &format!("{base} BONFIRE_AGENT_STORE=yes"),
        "BONFIRE_AGENT_STORE must be 0, 1, nearby or torchrun",
    );
}

#[test]
fn a_bad_name_count_or_setting_is_refused() {
    let base = format!("RANK=0 WORLD_SIZE=1 {MEETING}");
    refused(&format!("{base} BONFIRE_HOST_ID={}", "h".repeat(65)), "BONFIRE_HOST_ID has 65 bytes");
    refused(
        &format!("{base} TORCHELASTIC_RUN_ID={}", "j".repeat(257)),
        "TORCHELASTIC_RUN_ID has 257 bytes",
    );
    refused(
        &format!("{base} TORCHELASTIC_RESTART_COUNT=twice"),
        "TORCHELASTIC_RESTART_COUNT must be a whole number",
    );
    refused(&format!("{base} BONFIRE_ALGORITHM=fast"), "BONFIRE_ALGORITHM is wrong");
}

const SLURM: &str = "SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=6 SLURM_PROCID=5 \
                     SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=4,2 \
                     SLURM_STEP_NODELIST=gpu[07,09]";
const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 \
                        OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 \
                        PMIX_NAMESPACE=prterun-host-99@1";
const MPICH: &str = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_FD=9";

/// What a launcher sets for a rank other than 0, and what follows from it.
struct Case {
    launcher: &'static str,
    variables: &'static str,
    /// Rank, world size, local rank and local world size.
    place: [u32; 4],
    /// How the name of the job begins; empty if there is none.
    job: &'static str,
}

/// One for each of [`LAUNCHERS`], in their order.
const CASES: &[Case] = &[
    Case {
        launcher: "Open MPI",
        variables: OPEN_MPI,
        place: [1, 2, 1, 2],
        job: "open-mpi prterun-host-99@1",
    },
    Case { launcher: "MPICH", variables: MPICH, place: [1, 2, 1, 2], job: "mpich " },
    Case { launcher: "Slurm", variables: SLURM, place: [5, 6, 1, 2], job: "slurm 77.0" },
    Case {
        launcher: "Kubernetes",
        variables: "JOB_COMPLETION_INDEX=2 WORLD_SIZE=3 KUBERNETES_SERVICE_HOST=10.0.0.1",
        place: [2, 3, 0, 1],
        job: "",
    },
];

#[test]
fn each_launcher_has_a_case() {
    let cases: Vec<&str> = CASES.iter().map(|case| case.launcher).collect();
    assert_eq!(cases, LAUNCHERS.map(|launcher| launcher.name));
}

#[test]
fn a_rank_of_each_launcher_is_understood() {
    for (case, launcher) in CASES.iter().zip(LAUNCHERS) {
        let worker = accepted(&format!("{} {MEETING}", case.variables));
        assert_eq!(place(&worker), case.place, "{}", case.launcher);
        assert_eq!((worker.agent_store, worker.master_port), (StoreHost::RankZero, 29500));
        assert!(worker.job_id.starts_with(case.job), "{worker:?}");
        assert_eq!(worker.job_id.is_empty(), case.job.is_empty(), "{worker:?}");
        let is_set = |variable| environment(case.variables)(variable).is_some();
        assert!(launcher.node.is_none_or(is_set), "{launcher:?}");
    }
}

#[test]
fn each_launcher_is_compared_with_what_is_exported() {
    for (case, launcher) in CASES.iter().zip(LAUNCHERS) {
        let [rank, ..] = case.place;
        assert!(rank > 0, "{}", case.launcher);
        let expected = format!("RANK is 0, but {} is {rank}", launcher.rank);
        refused(&format!("RANK=0 {}", case.variables), &expected);
    }
}

#[test]
fn a_launcher_counts_over_those_that_can_start_it() {
    let detected = |variables: &str| {
        let lookup = environment(variables);
        let cluster = Cluster::detect(&Source { lookup: &lookup }).unwrap();
        cluster.map(|cluster| cluster.launcher.name)
    };
    for (index, inner) in CASES.iter().enumerate() {
        assert_eq!(detected(inner.variables), Some(inner.launcher));
        for outer in &CASES[index + 1..] {
            let both = format!("{} {}", outer.variables, inner.variables);
            assert_eq!(detected(&both), Some(inner.launcher), "in {}", outer.launcher);
        }
    }
}

fn place(worker: &RankEnv) -> [u32; 4] {
    [worker.rank.get(), worker.world_size.get(), worker.local_rank, worker.local_world_size]
}

#[test]
fn a_step_of_slurm_is_understood() {
    let worker = accepted(SLURM);
    assert_eq!(place(&worker), [5, 6, 1, 2]);
    assert_eq!(worker.agent_store, StoreHost::RankZero);
    assert_eq!(worker.master_addr, "gpu07");
    assert!((15_000..30_000).contains(&worker.master_port), "{worker:?}");
    assert_eq!(worker.job_id, "slurm 77.0");
    // Another step of the same job meets elsewhere, and what the user says counts.
    let other = accepted(&SLURM.replace("STEP_ID=0", "STEP_ID=1"));
    assert_ne!(other.master_port, worker.master_port);
    let env = accepted(&format!("{SLURM} {MEETING}"));
    assert_eq!((env.master_addr.as_str(), env.master_port), ("127.0.0.1", 29500));
    let port = accepted(&format!("{SLURM} MASTER_PORT=4000"));
    assert_eq!((port.master_addr.as_str(), port.master_port), ("gpu07", 4000));
    let one_host = accepted(
        &SLURM
            .replace("TASKS_PER_NODE=4,2", "TASKS_PER_NODE=6")
            .replace("SLURM_NODEID=1", "SLURM_NODEID=0")
            .replace("LOCALID=1", "LOCALID=5"),
    );
    assert_eq!(place(&one_host), [5, 6, 5, 6]);
    assert_eq!(one_host.agent_store, StoreHost::Nearby);
}

#[test]
fn a_rank_0_that_slurm_put_elsewhere_says_what_to_export() {
    let arbitrary = SLURM.replace("PROCID=5", "PROCID=0");
    refused(&arbitrary, "rank 0 is not on gpu07");
    refused(&arbitrary, "export MASTER_ADDR, the host of rank 0");
    let env = accepted(&format!("{arbitrary} {MEETING}"));
    assert_eq!(env.master_addr, "127.0.0.1");
}

#[test]
fn the_script_of_a_batch_job_is_no_rank() {
    let script = SLURM.replace("SLURM_STEP_ID=0", "").replace("SLURM_STEP_NUM_TASKS=6", "");
    assert!(parse(&script).unwrap().is_none());
}

#[test]
fn a_step_of_one_task_is_no_rank() {
    let shell = SLURM
        .replace("NUM_TASKS=6", "NUM_TASKS=1")
        .replace("PROCID=5", "PROCID=0")
        .replace("LOCALID=1", "LOCALID=0")
        .replace("NODEID=1", "NODEID=0")
        .replace("PER_NODE=4,2", "PER_NODE=1");
    assert!(parse(&shell).unwrap().is_none());
}

#[test]
fn ranks_of_mpirun_are_understood() {
    for (variables, job) in [(OPEN_MPI, "open-mpi prterun-host-99@1"), (MPICH, "mpich ")] {
        let worker = accepted(variables);
        assert_eq!(place(&worker), [1, 2, 1, 2]);
        assert_eq!(worker.agent_store, StoreHost::Nearby);
        assert!(worker.job_id.starts_with(job), "{worker:?}");
        let hosts =
            variables.replace("LOCAL_SIZE=2", "LOCAL_SIZE=1").replace("NRANKS=2", "NRANKS=1");
        let hosts = hosts.replace("LOCAL_RANK=1", "LOCAL_RANK=0").replace("RANKID=1", "RANKID=0");
        refused(&hosts, "export MASTER_ADDR, the host of rank 0");
        let env = accepted(&format!("{hosts} {MEETING}"));
        assert_eq!((env.agent_store, env.master_port), (StoreHost::RankZero, 29500));
    }
}

#[test]
fn a_pod_of_an_indexed_job_needs_the_size_and_the_address() {
    assert!(parse("JOB_COMPLETION_INDEX=2").unwrap().is_none(), "a job of its own");
    refused("JOB_COMPLETION_INDEX=2 WORLD_SIZE=3", "export MASTER_ADDR");
}

#[test]
fn a_pod_of_a_pytorch_job_has_its_devices_for_itself() {
    let pod = format!("RANK=2 WORLD_SIZE=3 KUBERNETES_SERVICE_HOST=10.0.0.1 {MEETING}");
    assert_eq!(place(&accepted(&pod)), [2, 3, 0, 1]);
    // But not the ranks that an agent starts there.
    let agent = format!("{pod} BONFIRE_AGENT_STORE=1");
    assert_eq!(place(&accepted(&agent)), [2, 3, 2, 3]);
}

#[test]
fn torchruns_own_store_is_left_alone() {
    let torchrun = format!(
        "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 TORCHELASTIC_USE_AGENT_STORE=True \
         TORCHELASTIC_RUN_ID=x TORCHELASTIC_RESTART_COUNT=3 {MEETING}"
    );
    let worker = accepted(&torchrun);
    assert_eq!(worker.agent_store, StoreHost::Torchrun);
    assert_eq!((worker.job_id.as_str(), worker.restart_count), ("x", 3));
    let within = accepted(&format!("{torchrun} BONFIRE_AGENT_STORE=1"));
    assert_eq!(within.agent_store, StoreHost::Agent);
    let free = torchrun.replace("STORE=True", "STORE=False");
    assert_eq!(accepted(&free).agent_store, StoreHost::RankZero);
}

#[test]
fn the_innermost_launcher_counts() {
    let agent = format!("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 BONFIRE_AGENT_STORE=1 {MEETING}");
    for outer in CASES {
        let worker = accepted(&format!("{} {agent}", outer.variables));
        assert_eq!((worker.rank.get(), worker.agent_store), (0, StoreHost::Agent));
    }
    // mpirun starts a daemon per host as a step of Slurm, and the ranks inherit its numbers.
    for inner in [OPEN_MPI, MPICH] {
        assert_eq!(accepted(&format!("{SLURM} {inner}")).world_size.get(), 2);
    }
    // Slurm speaking MPICH's protocol is Slurm.
    let pmi2 = accepted(&format!("{SLURM} PMI_RANK=5 PMI_SIZE=6"));
    assert_eq!(pmi2.job_id, "slurm 77.0");
}

#[test]
fn two_launchers_that_disagree_are_refused() {
    refused(&format!("WORLD_SIZE=4 {OPEN_MPI}"), "WORLD_SIZE is 4, but OMPI_COMM_WORLD_SIZE is 2");
    refused(&format!("LOCAL_RANK=0 {MPICH}"), "LOCAL_RANK is 0, but MPI_LOCALRANKID is 1");
    refused(
        &format!("{OPEN_MPI} PMI_RANK=0 PMI_SIZE=2"),
        "PMI_RANK is 0, but OMPI_COMM_WORLD_RANK is 1",
    );
    let agreeing = format!("RANK=5 WORLD_SIZE=6 LOCAL_RANK=1 {SLURM}");
    assert_eq!(place(&accepted(&agreeing)), [5, 6, 1, 2]);
}

#[test]
fn lists_of_slurm_that_make_no_sense_are_shown() {
    let tasks = SLURM.replace("PER_NODE=4,2", "PER_NODE=four");
    refused(&tasks, "SLURM_STEP_TASKS_PER_NODE makes no sense: \"four\"");
    let nodes = SLURM.replace("gpu[07,09]", "gpu[07");
    refused(&nodes, "SLURM_STEP_NODELIST makes no sense");
}

#[test]
fn a_rank_that_its_launcher_shows_one_device_has_it_for_itself() {
    let sees = |assignments: &str| sees_own_devices_in(environment(assignments));
    for (case, launcher) in CASES.iter().zip(LAUNCHERS) {
        let shown = format!("{} CUDA_VISIBLE_DEVICES=0", case.variables);
        assert_eq!(sees(&shown), launcher.own_devices.is_some(), "{launcher:?}");
    }
    assert!(!sees(&format!("{SLURM} CUDA_VISIBLE_DEVICES=0,1")));
    assert!(!sees(SLURM));
    assert!(!sees("CUDA_VISIBLE_DEVICES=0"));
    // A program that launches its ranks itself inside of a step of one task.
    assert!(!sees(&format!("{SLURM} CUDA_VISIBLE_DEVICES=0 BONFIRE_AGENT_STORE=1")));
}
