//! What a rank is started with.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bonfire_collective::RankEnv;
use bonfire_plan::Rank;

use super::AgentOptions;
use super::meeting::Meeting;
use crate::environment::{GROUP_RANK, GROUP_WORLD_SIZE, MAX_RESTARTS, NODE_RANK, rank_variables};
use crate::error::LaunchError;
use crate::ranks::cores;

/// The variable that sizes the thread pool of Burn's CPU backends.
const RAYON_NUM_THREADS: &str = "RAYON_NUM_THREADS";
/// The variable of glibc's allocator. Other C libraries do not look at it.
const GLIBC_TUNABLES: &str = "GLIBC_TUNABLES";
/// The variable of the queues that the CUDA driver has for the streams of a process; it takes 1 to 32.
const CUDA_DEVICE_MAX_CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
/// As many as there may be: streams that share one wait for each other, and each group of ranks has some. Scripts for
/// Megatron-LM set 1.
const QUEUES: u32 = 32;
/// As much of a script's first line as Linux reads.
const SHEBANG_BYTES_MAX: u64 = 256;

/// Keeps what a step frees for the next one. Left alone, glibc gives tensors back to the kernel, which clears new pages
/// for those of the next step. The first is its limit, above which memory is given back all the same.
const KEEPS_MEMORY: &str =
    "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=1073741824";

/// The program of a rank, with all that the environment says about its place in the job.
pub(super) fn command(options: &AgentOptions, meeting: &Meeting, place: &RankEnv) -> Command {
    let mut command = Command::new(&options.program);
    command.args(&options.args).stdin(Stdio::null());
    command.envs(rank_variables(place));
    for variable in [NODE_RANK, GROUP_RANK] {
        command.env(variable, meeting.node_rank().to_string());
    }
    command.env(GROUP_WORLD_SIZE, meeting.nnodes().to_string());
    command.env(MAX_RESTARTS, options.max_restarts.to_string());
    if env::var_os(RAYON_NUM_THREADS).is_none() {
        let threads = (cores().get() / options.nproc_per_node).max(1);
        command.env(RAYON_NUM_THREADS, threads.to_string());
    }
    if env::var_os(GLIBC_TUNABLES).is_none() {
        command.env(GLIBC_TUNABLES, KEEPS_MEMORY);
    }
    let queues = env::var(CUDA_DEVICE_MAX_CONNECTIONS).ok().and_then(|text| text.parse().ok());
    if queues.is_none_or(|queues: u32| queues < QUEUES) {
        command.env(CUDA_DEVICE_MAX_CONNECTIONS, QUEUES.to_string());
    }
    command
}

pub(super) fn spawn_error(program: &OsString, rank: Rank, source: io::Error) -> LaunchError {
    let path = PathBuf::from(program);
    match source.kind() {
        // The kernel says the same of a file that is there and names a missing one to run it.
        io::ErrorKind::NotFound => match found(&path) {
            Some(program) => {
                LaunchError::NoInterpreter { interpreter: interpreter(&program), program }
            }
            None => LaunchError::NoProgram { program: path },
        },
        io::ErrorKind::PermissionDenied => match not_executable(&path) {
            Some((program, reason)) => LaunchError::NotExecutable { program, reason },
            None => LaunchError::Spawn { program: path, rank: rank.get(), source },
        },
        _ => LaunchError::Spawn { program: path, rank: rank.get(), source },
    }
}

/// A folder, or a file that nobody may execute, and what to do.
fn not_executable(program: &Path) -> Option<(PathBuf, &'static str)> {
    if program.is_dir() {
        return Some((program.to_owned(), "it is a folder; give the path of a program"));
    }
    let file = found(program)?;
    let mode = file.metadata().ok()?.permissions().mode();
    let advice = "nobody may execute it; allow it with `chmod +x`, or put its interpreter first, as in \
                  `python train.py`";
    (mode & 0o111 == 0).then_some((file, advice))
}

fn found(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 || program.is_absolute() {
        return program.is_file().then(|| program.to_owned());
    }
    let path = env::var_os("PATH")?;
    let mut files = env::split_paths(&path).map(|folder| folder.join(program));
    files.find(|file| file.is_file())
}

/// What the first line of a script names to run it; of a binary, which has no such line, a general word.
fn interpreter(program: &Path) -> String {
    let mut line = Vec::new();
    let read = File::open(program).and_then(|file| {
        let mut start = BufReader::new(file).take(SHEBANG_BYTES_MAX);
        start.read_until(b'\n', &mut line)
    });
    match line.strip_prefix(b"#!").filter(|_| read.is_ok()) {
        // Quoted as in Rust, where a carriage return of Windows can be seen.
        Some(rest) => format!("{:?}", String::from_utf8_lossy(rest).trim_matches([' ', '\n'])),
        None => "or dynamic loader".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_interpreter_is_named_and_not_the_script() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("train.sh");
        let said = |program: &Path| {
            let missing = io::Error::from(io::ErrorKind::NotFound);
            spawn_error(&program.into(), Rank::new(0), missing).to_string()
        };
        assert!(said(&script).starts_with("there is no program "), "no file");
        std::fs::write(&script, "#!/bin/bash\r\necho hi\r\n").unwrap();
        let text = said(&script);
        assert!(text.contains(r#"its interpreter "/bin/bash\r" is not"#), "{text}");
        std::fs::write(&script, b"\x7fELF").unwrap();
        let text = said(&script);
        assert!(text.contains("its interpreter or dynamic loader is not"), "{text}");
    }
}
