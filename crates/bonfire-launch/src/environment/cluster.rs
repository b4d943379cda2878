//! Ranks that a cluster's own launcher started, in its own words: `mpirun` of Open MPI and MPICH,
//! `srun` of Slurm, and indexed jobs of Kubernetes.

use super::source::Source;
use super::{EnvError, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_PORT, Place, RANK, WORLD_SIZE};

/// The variables with which a launcher numbers ranks.
#[derive(Debug)]
struct Words {
    rank: &'static str,
    world_size: &'static str,
    local_rank: &'static str,
    local_world_size: &'static str,
}

const OPEN_MPI: Words = Words {
    rank: "OMPI_COMM_WORLD_RANK",
    world_size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_world_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
};

/// Those of Hydra, which MPICH, Intel MPI and MVAPICH share.
const MPICH: Words = Words {
    rank: "PMI_RANK",
    world_size: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_world_size: "MPI_LOCALNRANKS",
};

const SLURM: Words = Words {
    rank: "SLURM_PROCID",
    world_size: "SLURM_STEP_NUM_TASKS",
    local_rank: "SLURM_LOCALID",
    local_world_size: "SLURM_STEP_TASKS_PER_NODE",
};

/// The number of a pod in an indexed job; the size of the job is not given.
const COMPLETION_INDEX: &str = "JOB_COMPLETION_INDEX";

const KUBERNETES: Words = Words {
    rank: COMPLETION_INDEX,
    world_size: WORLD_SIZE,
    local_rank: LOCAL_RANK,
    local_world_size: LOCAL_WORLD_SIZE,
};

const SLURM_JOB_ID: &str = "SLURM_JOB_ID";
const SLURM_STEP_ID: &str = "SLURM_STEP_ID";
const SLURM_STEP_NODELIST: &str = "SLURM_STEP_NODELIST";
const SLURM_NODEID: &str = "SLURM_NODEID";
/// The names of an Open MPI job: of version 5, and of those before.
const OPEN_MPI_JOBS: [&str; 2] = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"];
/// Ports for jobs of Slurm that choose none: below those that systems give to connections.
const SLURM_PORTS: std::ops::Range<u32> = 15_000..30_000;

/// Who started this rank, and what else is needed to meet the others.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Launcher {
    OpenMpi { job: Option<String> },
    Mpich,
    Slurm { job: u32, step: String },
    Kubernetes,
}

#[derive(Debug)]
pub(super) struct Cluster {
    launcher: Launcher,
    words: &'static Words,
    place: Place,
}

impl Cluster {
    /// What the innermost launcher says, if one is there: MPI's own launchers can themselves be
    /// started by Slurm, and Slurm by Kubernetes.
    pub(super) fn detect(source: &Source<'_>) -> Result<Option<Self>, EnvError> {
        let open_mpi = Self::open_mpi(source)?;
        let mpich = Self::mpich(source)?;
        if let (Some(first), Some(second)) = (&open_mpi, &mpich) {
            first.agree(&[
                (second.words.rank, second.place.rank),
                (second.words.world_size, second.place.world_size),
            ])?;
        }
        if let Some(cluster) = open_mpi.or(mpich) {
            return Ok(Some(cluster));
        }
        match Self::slurm(source)? {
            Some(cluster) => Ok(Some(cluster)),
            None => Self::kubernetes(source),
        }
    }

    fn open_mpi(source: &Source<'_>) -> Result<Option<Self>, EnvError> {
        let mut jobs = OPEN_MPI_JOBS.iter();
        let job = jobs.find_map(|variable| source.text(variable));
        Self::in_words(source, &OPEN_MPI, Launcher::OpenMpi { job })
    }

    fn mpich(source: &Source<'_>) -> Result<Option<Self>, EnvError> {
        // Slurm can speak MPICH's protocol, but then it says more in its own words.
        if !source.has_any(&[MPICH.local_world_size]) && is_step(source) {
            return Ok(None);
        }
        Self::in_words(source, &MPICH, Launcher::Mpich)
    }

    /// Only a step: in the script of a batch job, which runs once, the same variables are set.
    fn slurm(source: &Source<'_>) -> Result<Option<Self>, EnvError> {
        if !is_step(source) || !source.has_any(&[SLURM.rank]) {
            return Ok(None);
        }
        let node = source.number(SLURM_NODEID, 0..=u32::MAX)?.unwrap_or(0);
        let tasks = source.required(SLURM.local_world_size)?;
        let Some(local_world_size) = tasks_of_node(&tasks, node) else {
            return Err(EnvError::Unintelligible {
                variable: SLURM.local_world_size,
                value: tasks,
            });
        };
        Ok(Some(Self {
            launcher: Launcher::Slurm {
                job: source.required_number(SLURM_JOB_ID, 0..=u32::MAX)?,
                step: source.required(SLURM_STEP_ID)?,
            },
            words: &SLURM,
            place: Place {
                rank: source.required_number(SLURM.rank, 0..=u32::MAX - 1)?,
                world_size: source.required_number(SLURM.world_size, 1..=u32::MAX)?,
                local_rank: source.required_number(SLURM.local_rank, 0..=u32::MAX - 1)?,
                local_world_size,
            },
        }))
    }

    /// An index alone makes no rank: the pods of an indexed job may have nothing to do with each other.
    fn kubernetes(source: &Source<'_>) -> Result<Option<Self>, EnvError> {
        if !source.has_any(&[COMPLETION_INDEX]) || !source.has_any(&[WORLD_SIZE]) {
            return Ok(None);
        }
        Ok(Some(Self {
            launcher: Launcher::Kubernetes,
            words: &KUBERNETES,
            place: Place {
                rank: source.required_number(COMPLETION_INDEX, 0..=u32::MAX - 1)?,
                world_size: source.required_number(WORLD_SIZE, 1..=u32::MAX)?,
                local_rank: 0,
                local_world_size: 1,
            },
        }))
    }

    fn in_words(
        source: &Source<'_>,
        words: &'static Words,
        launcher: Launcher,
    ) -> Result<Option<Self>, EnvError> {
        if !source.has_any(&[words.rank]) || !source.has_any(&[words.world_size]) {
            return Ok(None);
        }
        let rank = source.required_number(words.rank, 0..=u32::MAX - 1)?;
        let world_size = source.required_number(words.world_size, 1..=u32::MAX)?;
        let local_world_size =
            source.number(words.local_world_size, 1..=u32::MAX)?.unwrap_or(world_size);
        let local_rank =
            source.number(words.local_rank, 0..=u32::MAX - 1)?.unwrap_or(rank % local_world_size);
        Ok(Some(Self {
            launcher,
            words,
            place: Place { rank, world_size, local_rank, local_world_size },
        }))
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    pub(super) fn is_alone(&self) -> bool {
        self.place.world_size == 1
    }

    /// Whether ranks can be on one host at all.
    pub(super) fn may_share_host(&self) -> bool {
        self.launcher != Launcher::Kubernetes
    }

    /// Compares with torchrun's variables, as far as they are set: what a user exports for one rank reaches all.
    pub(super) fn agree_with(&self, source: &Source<'_>) -> Result<(), EnvError> {
        let mut said = Vec::new();
        for (variable, min) in [(RANK, 0), (WORLD_SIZE, 1), (LOCAL_RANK, 0), (LOCAL_WORLD_SIZE, 1)]
        {
            if let Some(value) = source.number(variable, min..=u32::MAX)? {
                said.push((variable, value));
            }
        }
        self.agree(&said)
    }

    fn agree(&self, said: &[(&'static str, u32)]) -> Result<(), EnvError> {
        for &(variable, value) in said {
            let (own, own_value) = match variable {
                RANK | "PMI_RANK" => (self.words.rank, self.place.rank),
                WORLD_SIZE | "PMI_SIZE" => (self.words.world_size, self.place.world_size),
                LOCAL_RANK => (self.words.local_rank, self.place.local_rank),
                _ => (self.words.local_world_size, self.place.local_world_size),
            };
            if value != own_value {
                return Err(EnvError::LaunchersDisagree {
                    first: variable,
                    first_value: value,
                    second: own,
                    second_value: own_value,
                });
            }
        }
        Ok(())
    }

    /// Where rank 0 serves the store, when the user does not say it; `port` is what the user says.
    pub(super) fn master(
        &self,
        source: &Source<'_>,
        port: Option<u32>,
    ) -> Result<(String, u16), EnvError> {
        let nowhere = |launcher| Err(EnvError::NoMeetingPlace { launcher });
        let (job, step) = match &self.launcher {
            Launcher::Slurm { job, step } => (job, step),
            Launcher::OpenMpi { .. } => return nowhere("Open MPI"),
            Launcher::Mpich => return nowhere("MPICH"),
            Launcher::Kubernetes => return nowhere("Kubernetes"),
        };
        let nodes = source.required(SLURM_STEP_NODELIST)?;
        let Some(first) = first_host(&nodes) else {
            return Err(EnvError::Unintelligible { variable: SLURM_STEP_NODELIST, value: nodes });
        };
        let node = source.number(SLURM_NODEID, 0..=u32::MAX)?.unwrap_or(0);
        if self.place.rank == 0 && node > 0 {
            return Err(EnvError::NotOnFirstHost { first });
        }
        let step: u32 = step.bytes().map(u32::from).sum();
        let ports = SLURM_PORTS.end - SLURM_PORTS.start;
        let chosen = SLURM_PORTS.start + job.wrapping_mul(31).wrapping_add(step) % ports;
        let port = u16::try_from(port.unwrap_or(chosen)).map_err(|_| EnvError::NotANumber {
            variable: MASTER_PORT,
            value: port.unwrap_or(chosen).to_string(),
            min: 1,
            max: u16::MAX.into(),
        })?;
        Ok((first, port))
    }

    /// The name of the job, the same on all its ranks and on no others of these hosts.
    pub(super) fn job_id(&self) -> String {
        let one_host = self.place.local_world_size == self.place.world_size;
        match &self.launcher {
            Launcher::OpenMpi { job: Some(job) } => format!("open-mpi {job}"),
            Launcher::Slurm { job, step } => format!("slurm {job}.{step}"),
            // Their launcher is one process of this host, above all ranks.
            Launcher::Mpich if one_host => format!("mpich {}", launcher_process("hydra_pmi_proxy")),
            Launcher::OpenMpi { job: None } if one_host => {
                format!("open-mpi {}", launcher_process("orted"))
            }
            // Between hosts they share no name that a rank could know.
            Launcher::Mpich | Launcher::OpenMpi { job: None } | Launcher::Kubernetes => {
                String::new()
            }
        }
    }
}

fn is_step(source: &Source<'_>) -> bool {
    source.has_any(&[SLURM_STEP_ID]) && source.has_any(&[SLURM.world_size])
}

/// The number of tasks of a node in Slurm's short form, as in `4(x2),3`: 4, 4 and 3.
fn tasks_of_node(text: &str, node: u32) -> Option<u32> {
    let mut first = 0_u32;
    for part in text.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        let tasks: u32 = tasks.trim().parse().ok()?;
        first = first.checked_add(nodes)?;
        if node < first {
            return Some(tasks).filter(|&tasks| tasks > 0);
        }
    }
    None
}

/// The first host of Slurm's short form, as in `gpu[01-04,07],login`: `gpu01`.
fn first_host(text: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['[', ',']) {
        host.push_str(&rest[..at]);
        if rest[at..].starts_with(',') {
            rest = "";
            break;
        }
        let (range, after) = rest[at + 1..].split_once(']')?;
        host.push_str(range.split(['-', ',']).next()?);
        rest = after;
    }
    host.push_str(rest);
    Some(host).filter(|host| !host.is_empty())
}

/// The number of the nearest process above this one with a name, or of its parent.
fn launcher_process(name: &str) -> i32 {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let mut process = parent;
    while process > 1 {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else {
            break;
        };
        // `PID (NAME) STATE PARENT ...`; a name can contain anything.
        let Some((head, tail)) = stat.rsplit_once(')') else {
            break;
        };
        if head.split_once('(').is_some_and(|(_, found)| found == name) {
            return process;
        }
        let above = tail.split_whitespace().nth(1);
        process = above.and_then(|above| above.parse().ok()).unwrap_or(0);
    }
    parent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list_is_found() {
        let cases = [
            ("vm", Some("vm")),
            ("a,b", Some("a")),
            ("gpu[01-04,07],login", Some("gpu01")),
            ("rack[2]node[7,9]", Some("rack2node7")),
            ("n[3-4].cluster", Some("n3.cluster")),
            ("", None),
            ("gpu[1", None),
        ];
        for (list, first) in cases {
            assert_eq!(first_host(list).as_deref(), first, "{list:?}");
        }
    }

    #[test]
    fn the_tasks_of_each_node_are_found() {
        let of = |text: &str| -> Vec<Option<u32>> {
            (0..4).map(|node| tasks_of_node(text, node)).collect()
        };
        assert_eq!(of("4(x2),3"), [Some(4), Some(4), Some(3), None]);
        assert_eq!(of("2"), [Some(2), None, None, None]);
        assert_eq!(of("1,2(x3)"), [Some(1), Some(2), Some(2), Some(2)]);
        for text in ["", "x", "4(x", "4(y2)", "0"] {
            assert_eq!(tasks_of_node(text, 0), None, "{text:?}");
        }
    }

    #[test]
    fn a_process_above_is_found_by_its_name() {
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
        assert_eq!(launcher_process("no such name"), parent);
        let name = std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap();
        assert_eq!(launcher_process(name.trim_end()), parent);
    }
}
