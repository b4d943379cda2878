//! Ranks that other launchers start: the templates of `examples/clusters`, with the real launchers
//! where they are there. Each says why it skips.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use bonfire_collective::{RankEnv, StoreHost};
use bonfire_launch::detect_rank_in;
use bonfire_testkit::{Job, JobEnd, OwnPort};

/// One rank of the conformance suite, which prints a digest.
const PROGRAM: [&str; 3] = [env!("CARGO_BIN_EXE_conformance-rank"), "auto", "4096"];

fn repository() -> PathBuf {
    // Cargo runs tests in the folder of their package.
    Path::new("../..").canonicalize().unwrap()
}

fn template(name: &str) -> PathBuf {
    repository().join("examples/clusters").join(name)
}

/// A launcher's program: in `PATH`, or where `.ci/run` and `benches/peers/run` install it.
fn launcher(program: &str, package: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let peers = cache.or(home).map(|cache| cache.join("bonfire/peers").join(package).join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    // The cache first: there it is the package that is asked for, and not another with its name.
    let folders = peers.into_iter().chain(std::env::split_paths(&path));
    let found = folders.map(|folder| folder.join(program)).find(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: there is no {program} of {package}");
    }
    found
}

/// All of `count` ranks print the same digest, and nothing else is on the output.
#[track_caller]
fn all_agree(end: &JobEnd, count: usize) {
    assert!(end.status.success(), "{}: {:?}", end.status, end.stderr);
    agree(&end.stdout, count);
}

#[track_caller]
fn agree(lines: &[String], count: usize) {
    assert_eq!(lines.len(), count, "{lines:?}");
    assert_eq!(lines[0].len(), 16, "{lines:?}");
    assert!(lines.iter().all(|line| *line == lines[0]), "{lines:?}");
}

fn open_mpi(ranks: &str) -> Option<Command> {
    let mut command = Command::new(template("openmpi.sh"));
    command
        .env("MPIRUN", launcher("mpirun", "openmpi")?)
        .env("RANKS", ranks)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    Some(command)
}

#[test]
fn ranks_of_open_mpi_form_a_group() {
    if let Some(mut command) = open_mpi("3") {
        all_agree(&Job::start(command.args(PROGRAM)).end(), 3);
    }
}

#[test]
fn ranks_of_open_mpi_meet_at_the_given_address() {
    if let Some(mut command) = open_mpi("2") {
        let port = OwnPort::new();
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        all_agree(&Job::start(command.args(PROGRAM)).end(), 2);
    }
}

#[test]
fn jobs_of_open_mpi_at_the_same_time_do_not_meet() {
    let jobs: Vec<Job> = (0..3)
        .filter_map(|_| open_mpi("2"))
        .map(|mut command| Job::start(command.args(PROGRAM)))
        .collect();
    for job in jobs {
        all_agree(&job.end(), 2);
    }
}

#[test]
fn ranks_of_mpich_form_a_group() {
    let Some(program) = launcher("mpiexec.hydra", "mpich") else {
        return;
    };
    // At once, and one of them through a shell, whose children are not the launcher's.
    let start = |through_shell: &[&str]| {
        let mut command = Command::new(template("mpich.sh"));
        command.env("MPIEXEC", &program).env("RANKS", "3");
        Job::start(command.args(through_shell).args(PROGRAM))
    };
    let jobs = [start(&[]), start(&["/bin/sh", "-c", "\"$0\" \"$@\"; exit $?"])];
    for job in jobs {
        all_agree(&job.end(), 3);
    }
}

#[test]
fn ranks_of_torchrun_form_a_group() {
    if let Some(program) = launcher("torchrun", "torch") {
        let mut command = Command::new(template("torchrun.sh"));
        command.env("TORCHRUN", program).env("RANKS", "3");
        all_agree(&Job::start(command.args(PROGRAM)).end(), 3);
    }
}

/// The script that the book has beside its own program is one that runs.
#[test]
fn the_books_script_of_pytorch_learns() {
    let Some(program) = launcher("torchrun", "torch") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command
        .args(["--standalone", "--nproc-per-node", "2"])
        .arg(repository().join("book/listings/src/from_pytorch.py"))
        .current_dir(folder.path());
    let end = Job::start(&mut command).end();
    // Ranks of PyTorch 2.11 sometimes abort when all is done, most of all on a busy machine.
    let aborts = |line: &String| line == "terminate called without an active exception";
    assert!(
        end.status.success() || end.stderr.iter().any(aborts),
        "{}: {:?}",
        end.status,
        end.stderr
    );
    let loss = end.stdout.last().and_then(|line| line.split(' ').next_back());
    assert!(loss.unwrap().parse::<f64>().unwrap() < 1e-3, "{:?}", end.stdout);
    assert!(folder.path().join("line.pt").is_file());
}

#[test]
fn ranks_of_two_torchruns_form_a_group() {
    let Some(program) = launcher("torchrun", "torch") else {
        return;
    };
    let port = OwnPort::new();
    let start = |node: &str| {
        let mut command = Command::new(template("torchrun.sh"));
        command
            .env("TORCHRUN", &program)
            .env("RANKS", "2")
            .env("NNODES", "2")
            .env("NODE_RANK", node)
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string());
        Job::start(command.args(PROGRAM))
    };
    let ends = [start("0"), start("1")].map(Job::end);
    let mut lines = Vec::new();
    for end in ends {
        assert!(end.status.success(), "{}: {:?}", end.status, end.stderr);
        lines.extend(end.stdout);
    }
    agree(&lines, 4);
}

/// Runs a command in a Slurm of one node; nothing if there can be none here.
fn in_slurm(arguments: &[&str]) -> Option<JobEnd> {
    let end = Job::start(Command::new(repository().join(".ci/slurm")).args(arguments)).end();
    if end.status.code() == Some(77) {
        eprintln!("skipped: {}", end.stderr.join("; "));
        return None;
    }
    Some(end)
}

#[test]
fn tasks_of_slurm_form_a_group() {
    let srun = ["srun", "-n", "3"];
    if let Some(end) = in_slurm(&[&srun[..], &PROGRAM[..]].concat()) {
        all_agree(&end, 3);
    }
}

#[test]
fn a_batch_job_of_slurm_forms_a_group() {
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("slurm.out");
    let _ = std::fs::remove_file(&output);
    let (output_flag, script) =
        (format!("--output={}", output.display()), template("slurm.sbatch").display().to_string());
    let sbatch = ["sbatch", "--wait", "--nodes=1", "--ntasks-per-node=3", &output_flag, &script];
    if let Some(end) = in_slurm(&[&sbatch[..], &PROGRAM[..]].concat()) {
        let text = std::fs::read_to_string(&output).unwrap_or_default();
        assert!(end.status.success(), "{:?}; {text}", end.stderr);
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        agree(&lines, 3);
    }
}

#[test]
fn the_books_page_has_every_template() {
    let page = std::fs::read_to_string(repository().join("book/src/clusters.md")).unwrap();
    let table = page.lines().filter(|line| line.starts_with('|')).collect::<String>();
    let names = std::fs::read_dir(template("")).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    assert!(names.len() > 1, "{names:?}");
    for name in names.iter().filter(|name| *name != "README.md") {
        assert!(table.contains(&format!("`{name}`")), "the table of clusters.md lacks {name}");
    }
}

/// The variables that a template for Kubernetes sets to a value.
fn variables_of(name: &str) -> HashMap<String, String> {
    let text = std::fs::read_to_string(template(name)).unwrap();
    let lines: Vec<&str> =
        text.lines().map(|line| line.split('#').next().unwrap().trim()).collect();
    let pairs = lines.windows(2).filter_map(|pair| {
        let variable = pair[0].strip_prefix("- name: ")?;
        let value = pair[1].strip_prefix("value: ")?;
        Some((variable.trim().to_owned(), value.trim_matches('"').to_owned()))
    });
    pairs.collect()
}

fn worker_of(variables: &HashMap<String, String>) -> RankEnv {
    let lookup = |name: &str| variables.get(name).map(OsString::from);
    detect_rank_in(lookup).unwrap().unwrap()
}

#[test]
fn the_pods_of_the_indexed_job_are_ranks() {
    let mut variables = variables_of("indexed-job.yaml");
    variables.insert("KUBERNETES_SERVICE_HOST".to_owned(), "10.0.0.1".to_owned());
    for index in 0..2_u32 {
        variables.insert("JOB_COMPLETION_INDEX".to_owned(), index.to_string());
        let worker = worker_of(&variables);
        assert_eq!((worker.rank.get(), worker.world_size.get()), (index, 2));
        assert_eq!((worker.local_rank, worker.local_world_size), (0, 1));
        assert_eq!(worker.master_addr, "train-0.train");
        assert_eq!(worker.agent_store, StoreHost::RankZero);
    }
}

#[test]
fn the_pods_of_a_job_set_are_ranks() {
    let mut variables = variables_of("jobset.yaml");
    variables.insert("KUBERNETES_SERVICE_HOST".to_owned(), "10.0.0.1".to_owned());
    variables.insert("JOB_COMPLETION_INDEX".to_owned(), "1".to_owned());
    let worker = worker_of(&variables);
    assert_eq!((worker.rank.get(), worker.world_size.get()), (1, 2));
    // SET-JOB-NUMBER-INDEX.SUBDOMAIN, where the subdomain is called as the set.
    assert_eq!(worker.master_addr, "train-ranks-0-0.train");
}

/// The fields that JobSet v1alpha2, TrainJob v1alpha1 and what is in them have, as far as the templates use them.
const KUBERNETES_FIELDS: &str = "apiVersion kind metadata name spec network enableDNSHostnames \
    publishNotReadyAddresses failurePolicy maxRestarts replicatedJobs replicas template completionMode completions \
    parallelism backoffLimit restartPolicy containers image command env value valueFrom secretKeyRef key runtimeRef \
    trainer numNodes resourcesPerNode limits nvidia.com/gpu";

#[test]
fn fields_of_kubernetes_templates_are_spelled_as_their_schemas_have_them() {
    for name in ["jobset.yaml", "trainjob.yaml"] {
        let text = std::fs::read_to_string(template(name)).unwrap();
        let lines = text.lines().map(|line| line.trim_start_matches([' ', '-']));
        for line in lines.filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (field, _) = line.split_once(':').unwrap();
            let mut known = KUBERNETES_FIELDS.split_whitespace();
            assert!(known.any(|known| known == field), "{name}: {line}");
        }
    }
}

#[test]
fn the_pods_of_a_pytorch_job_are_ranks() {
    let mut variables = variables_of("pytorchjob.yaml");
    // What the training operator adds.
    for (name, value) in [
        ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
        ("RANK", "1"),
        ("WORLD_SIZE", "3"),
        ("MASTER_ADDR", "train-master-0"),
        ("MASTER_PORT", "23456"),
    ] {
        variables.insert(name.to_owned(), value.to_owned());
    }
    let worker = worker_of(&variables);
    assert_eq!((worker.rank.get(), worker.world_size.get()), (1, 3));
    assert_eq!((worker.local_rank, worker.local_world_size), (0, 1));
}
