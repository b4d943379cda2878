//! The running jobs: all of them in a list, or one by its name or a process.

use std::time::Duration;

use anyhow::{bail, ensure};
use bonfire_collective::{GroupReport, JobMember, RunningJob, SilentProcess, running_jobs};

/// What runs here, one job in a line.
pub(super) fn list() -> anyhow::Result<String> {
    let (jobs, strays) = running_jobs()?;
    if jobs.is_empty() && strays.is_empty() {
        return Ok("No job of this user runs on this host.\n".to_owned());
    }
    let mut text = String::new();
    if !jobs.is_empty() {
        text += &format!("{:>10}  {:>9}  ranks here  job\n", "launcher", "age");
    }
    text.extend(jobs.iter().map(line));
    for SilentProcess { process_id, rank } in strays {
        text += &format!(
            "Process {process_id} (rank {rank} of its job) does not answer: it is stopped, or about to end.\n"
        );
    }
    Ok(text)
}

fn line(job: &RunningJob) -> String {
    let first = &job.members[0];
    let launcher = first.launcher_id.map_or("-".to_owned(), |id| id.to_string());
    let here = job.members.len() + job.silent.len();
    let ranks = format!("{here} of {}", first.world_size);
    let ages = job.members.iter().map(|member| member.age);
    let (age, name) = (Age(ages.max().unwrap_or_default()), name(first));
    let mut text = format!("{launcher:>10}  {age:>9}  {ranks:>10}  {name}");
    if !first.program.is_empty() && first.program != name {
        text.push_str(&format!(" ({})", first.program));
    }
    for SilentProcess { process_id, rank } in &job.silent {
        text.push_str(&format!("; rank {rank} (process {process_id}) does not answer"));
    }
    text + "\n"
}

/// What the job is called, for want of a name by the process of its lowest rank here.
fn name(member: &JobMember) -> String {
    if member.job_id.is_empty() { member.process_id.to_string() } else { member.job_id.clone() }
}

/// What the ranks of the job do that is meant.
pub(super) fn report(target: &str, operations_max: usize) -> anyhow::Result<Vec<GroupReport>> {
    let (jobs, strays) = running_jobs()?;
    let meant: Vec<&RunningJob> = jobs.iter().filter(|job| is_meant(job, target)).collect();
    match &meant[..] {
        [job] => {
            let first = &job.members[0];
            ensure!(
                job.members.iter().any(|member| !member.groups.is_empty()),
                "the ranks of {} are still meeting, or have left: {} of {} are on this host",
                name(first),
                job.members.len() + job.silent.len(),
                first.world_size
            );
            Ok(job.report(operations_max)?)
        }
        [] if strays.iter().any(|stray| stray.process_id.to_string() == target) => {
            bail!(
                "process {target} does not answer: it is stopped, or about to end; ask another rank of its job"
            )
        }
        [] => bail!(
            "no job {target} of this user runs on this host, and there is no such folder; `bonfire inspect` \
             lists the running jobs"
        ),
        [first, ..] => bail!(
            "{} running jobs are called {target}: name one by the process of its launcher, as {}; `bonfire \
             inspect` lists them",
            meant.len(),
            first.members[0].launcher_id.unwrap_or(first.members[0].process_id)
        ),
    }
}

fn is_meant(job: &RunningJob, target: &str) -> bool {
    let number: Option<u32> = target.parse().ok();
    let is_process = |id: u32| Some(id) == number;
    let of_member = |member: &JobMember| {
        member.job_id == target
            || is_process(member.process_id)
            || member.launcher_id.is_some_and(is_process)
    };
    job.members.iter().any(of_member)
        || job.silent.iter().any(|silent| is_process(silent.process_id))
}

struct Age(Duration);

impl std::fmt::Display for Age {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.0.as_secs();
        let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
        let text = match (days, hours, minutes) {
            (0, 0, 0) => format!("{seconds} s"),
            (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
            (0, ..) => format!("{hours} h {} min", minutes % 60),
            _ => format!("{days} d {} h", hours % 24),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units() {
        for (seconds, text) in
            [(0, "0 s"), (61, "1 min 1 s"), (3_600, "1 h 0 min"), (90_000, "1 d 1 h")]
        {
            assert_eq!(Age(Duration::from_secs(seconds)).to_string(), text);
        }
    }
}
