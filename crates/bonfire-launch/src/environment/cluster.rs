//! Launchers of clusters, and the ranks that they start, which are numbered in variables of their own. All that is
//! known of a launcher is one [`Launcher`]; nothing else may depend on which one it is.

use bonfire_sys::process::ProcessStat;

use super::source::Source;
use super::{EnvError, LOCAL_RANK, LOCAL_WORLD_SIZE, Place, WORLD_SIZE};

/// All launchers: of those that speak the first counts, so the one that another can start goes before that one.
/// MPI's own can be started by Slurm, and Slurm by Kubernetes.
pub(super) static LAUNCHERS: [&Launcher; 4] = [&OPEN_MPI, &MPICH, &SLURM, &KUBERNETES];

type Master = fn(&Source<'_>, Place, Option<u16>) -> Result<(String, u16), EnvError>;

/// What a launcher says to the ranks that it starts, and how that is read.
#[derive(Debug)]
pub(super) struct Launcher {
    /// Its name in messages; jobs are called by it in small letters.
    pub(super) name: &'static str,
    /// The variables that number ranks.
    pub(super) rank: &'static str,
    world_size: &'static str,
    local_rank: &'static str,
    local_world_size: &'static str,
    /// The variable that numbers the hosts.
    pub(super) node: Option<&'static str>,
    /// A variable of its ranks, if one GPU that a rank sees is for this rank alone; other launchers hand on what the
    /// user has exported.
    pub(super) own_devices: Option<&'static str>,
    /// Whether ranks can be on one host at all; a pod counts as one.
    shares_hosts: bool,
    /// Its process on a host, above all ranks of one job there, whose number tells jobs without a name apart.
    process: Option<&'static str>,
    /// Reads the place of this rank; nothing if this launcher has not started it.
    detect: fn(&Source<'_>) -> Result<Option<Cluster>, EnvError>,
    /// Finds the host of rank 0, and the port unless the user says it, if the launcher says where that is.
    master: Option<Master>,
}

static OPEN_MPI: Launcher = Launcher {
    name: "Open MPI",
    rank: "OMPI_COMM_WORLD_RANK",
    world_size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_world_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    node: None,
    own_devices: Some("OMPI_COMM_WORLD_RANK"),
    shares_hosts: true,
    process: Some("orted"),
    detect: open_mpi,
    master: None,
};

/// Hydra, which MPICH, Intel MPI and MVAPICH share.
static MPICH: Launcher = Launcher {
    name: "MPICH",
    rank: "PMI_RANK",
    world_size: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_world_size: "MPI_LOCALNRANKS",
    node: None,
    own_devices: Some("PMI_RANK"),
    shares_hosts: true,
    process: Some("hydra_pmi_proxy"),
    detect: mpich,
    master: None,
};

static SLURM: Launcher = Launcher {
    name: "Slurm",
    rank: "SLURM_PROCID",
    world_size: "SLURM_STEP_NUM_TASKS",
    local_rank: "SLURM_LOCALID",
    local_world_size: "SLURM_STEP_TASKS_PER_NODE",
    node: Some("SLURM_NODEID"),
    own_devices: Some(SLURM_STEP_ID),
    shares_hosts: true,
    process: None,
    detect: slurm,
    master: Some(slurm_master),
};

/// Pods of an indexed job, which have their number; the size of the job is not given.
static KUBERNETES: Launcher = Launcher {
    name: "Kubernetes",
    rank: "JOB_COMPLETION_INDEX",
    world_size: WORLD_SIZE,
    local_rank: LOCAL_RANK,
    local_world_size: LOCAL_WORLD_SIZE,
    node: Some("JOB_COMPLETION_INDEX"),
    own_devices: None,
    shares_hosts: false,
    process: None,
    detect: kubernetes,
    master: None,
};

const SLURM_JOB_ID: &str = "SLURM_JOB_ID";
const SLURM_STEP_ID: &str = "SLURM_STEP_ID";
const SLURM_STEP_NODELIST: &str = "SLURM_STEP_NODELIST";
/// The names of an Open MPI job: of version 5, and of those before.
const OPEN_MPI_JOBS: [&str; 2] = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"];

/// A rank that a launcher has started.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) launcher: &'static Launcher,
    /// The launcher's name of the job, the same on all its ranks and on no others.
    job: Option<String>,
    pub(super) place: Place,
}

impl Cluster {
    /// What the innermost launcher says, if one is there.
    pub(super) fn detect(source: &Source<'_>) -> Result<Option<Self>, EnvError> {
        LAUNCHERS.iter().find_map(|launcher| (launcher.detect)(source).transpose()).transpose()
    }

    pub(super) fn is_on_one_host(&self) -> bool {
        self.launcher.shares_hosts && self.place.local_world_size == self.place.world_size
    }

    /// Compares the place with others' variables for its numbers, in their order, as far as they are set.
    pub(super) fn agree(
        &self,
        source: &Source<'_>,
        others: &[&'static str],
    ) -> Result<(), EnvError> {
        let Place { rank, world_size, local_rank, local_world_size } = self.place;
        let own = [
            (0, self.launcher.rank, rank),
            (1, self.launcher.world_size, world_size),
            (0, self.launcher.local_rank, local_rank),
            (1, self.launcher.local_world_size, local_world_size),
        ];
        let mut disagreement = None;
        for (&first, (min, second, second_value)) in others.iter().zip(own) {
            let said = source.number(first, min..=u32::MAX)?;
            if let Some(first_value) = said.filter(|&value| value != second_value) {
                let new = EnvError::LaunchersDisagree { first, first_value, second, second_value };
                disagreement.get_or_insert(new);
            }
        }
        disagreement.map_or(Ok(()), Err)
    }

    /// Where rank 0 serves the store, when the user does not say it.
    pub(super) fn master(&self, source: &Source<'_>) -> Result<(String, u16), EnvError> {
        let port = source.port()?;
        let Some(master) = self.launcher.master else {
            return Err(EnvError::NoMeetingPlace { launcher: self.launcher.name });
        };
        master(source, self.place, port)
    }

    /// The name of the job, the same on all its ranks and on no others of these hosts.
    pub(super) fn job_id(&self) -> String {
        let job = match (&self.job, self.launcher.process) {
            (Some(job), _) => job.clone(),
            (None, Some(name)) if self.is_on_one_host() => launcher_process(name).to_string(),
            // Between hosts they share no name that a rank could know.
            _ => return String::new(),
        };
        format!("{} {job}", self.launcher.name.to_lowercase().replace(' ', "-"))
    }
}

impl Launcher {
    /// Reads the four variables; a rank without the two of its host takes all ranks to be on one.
    fn numbered(
        &'static self,
        source: &Source<'_>,
        job: Option<String>,
    ) -> Result<Option<Cluster>, EnvError> {
        if !source.has_any(&[self.rank]) || !source.has_any(&[self.world_size]) {
            return Ok(None);
        }
        let rank = source.required_number(self.rank, 0..=u32::MAX - 1)?;
        let world_size = source.required_number(self.world_size, 1..=u32::MAX)?;
        let local_world_size =
            source.number(self.local_world_size, 1..=u32::MAX)?.unwrap_or(world_size);
        let local_rank =
            source.number(self.local_rank, 0..=u32::MAX - 1)?.unwrap_or(rank % local_world_size);
        let place = Place { rank, world_size, local_rank, local_world_size };
        Ok(Some(Cluster { launcher: self, job, place }))
    }

    /// The number of this host, or 0.
    fn node_number(&self, source: &Source<'_>) -> Result<u32, EnvError> {
        let number = self.node.map(|variable| source.number(variable, 0..=u32::MAX));
        Ok(number.transpose()?.flatten().unwrap_or(0))
    }
}

fn open_mpi(source: &Source<'_>) -> Result<Option<Cluster>, EnvError> {
    let mut jobs = OPEN_MPI_JOBS.iter();
    let cluster = OPEN_MPI.numbered(source, jobs.find_map(|variable| source.text(variable)))?;
    if let Some(cluster) = &cluster
        && mpich(source)?.is_some()
    {
        cluster.agree(source, &[MPICH.rank, MPICH.world_size])?;
    }
    Ok(cluster)
}

fn mpich(source: &Source<'_>) -> Result<Option<Cluster>, EnvError> {
    // Slurm can speak MPICH's protocol, but then it says more in its own words.
    if !source.has_any(&[MPICH.local_world_size]) && is_step(source) {
        return Ok(None);
    }
    MPICH.numbered(source, None)
}

/// Only a step: in the script of a batch job, which runs once, the same variables are set.
fn slurm(source: &Source<'_>) -> Result<Option<Cluster>, EnvError> {
    if !is_step(source) || !source.has_any(&[SLURM.rank]) {
        return Ok(None);
    }
    let node = SLURM.node_number(source)?;
    let tasks = source.required(SLURM.local_world_size)?;
    let Some(local_world_size) = tasks_of_node(&tasks, node) else {
        return Err(EnvError::Unintelligible { variable: SLURM.local_world_size, value: tasks });
    };
    let job = source.required_number(SLURM_JOB_ID, 0..=u32::MAX)?;
    Ok(Some(Cluster {
        launcher: &SLURM,
        job: Some(format!("{job}.{}", source.required(SLURM_STEP_ID)?)),
        place: Place {
            rank: source.required_number(SLURM.rank, 0..=u32::MAX - 1)?,
            world_size: source.required_number(SLURM.world_size, 1..=u32::MAX)?,
            local_rank: source.required_number(SLURM.local_rank, 0..=u32::MAX - 1)?,
            local_world_size,
        },
    }))
}

fn slurm_master(
    source: &Source<'_>,
    place: Place,
    port: Option<u16>,
) -> Result<(String, u16), EnvError> {
    let nodes = source.required(SLURM_STEP_NODELIST)?;
    let Some(first) = first_host(&nodes) else {
        return Err(EnvError::Unintelligible { variable: SLURM_STEP_NODELIST, value: nodes });
    };
    if place.rank == 0 && SLURM.node_number(source)? > 0 {
        return Err(EnvError::NotOnFirstHost { first });
    }
    let job = source.required_number(SLURM_JOB_ID, 0..=u32::MAX)?;
    let step: u32 = source.required(SLURM_STEP_ID)?.bytes().map(u32::from).sum();
    Ok((first, port.unwrap_or_else(|| port_of(job.wrapping_mul(31).wrapping_add(step)))))
}

/// An index alone makes no rank: the pods of an indexed job may have nothing to do with each other.
fn kubernetes(source: &Source<'_>) -> Result<Option<Cluster>, EnvError> {
    if !source.has_any(&[KUBERNETES.rank]) || !source.has_any(&[WORLD_SIZE]) {
        return Ok(None);
    }
    let place = Place {
        rank: source.required_number(KUBERNETES.rank, 0..=u32::MAX - 1)?,
        world_size: source.required_number(WORLD_SIZE, 1..=u32::MAX)?,
        local_rank: 0,
        local_world_size: 1,
    };
    Ok(Some(Cluster { launcher: &KUBERNETES, job: None, place }))
}

fn is_step(source: &Source<'_>) -> bool {
    source.has_any(&[SLURM_STEP_ID]) && source.has_any(&[SLURM.world_size])
}

/// Makes a job's port of a number that its ranks know: below the ports that systems give to connections.
fn port_of(job: u32) -> u16 {
    15_000 + u16::try_from(job % 15_000).expect("it is below 15,000")
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
fn launcher_process(name: &str) -> u32 {
    let parent = std::os::unix::process::parent_id();
    let mut process = parent;
    while let Some(stat) = ProcessStat::read(process).filter(|_| process > 1) {
        if stat.name == name {
            return process;
        }
        process = stat.parent;
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
        let parent = std::os::unix::process::parent_id();
        assert_eq!(launcher_process("no such name"), parent);
        let name = std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap();
        assert_eq!(launcher_process(name.trim_end()), parent);
    }
}
