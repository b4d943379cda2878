//! `bonfire report`: runs side by side on one page.

use std::path::{Path, PathBuf};

use bonfire_report::{PageError, Report, page};
use clap::Args;

/// Compare runs: one page with their curves, their times, and what differs between them.
///
/// FOLDER is what a training has written into, as it says at its end, runs/20261124-122530-gpt, or a folder of such
/// folders, runs. A run that goes on, or was killed, has its curves so far. The page is one file that needs nothing else.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The folders of the runs
    #[arg(required = true, value_name = "FOLDER")]
    folders: Vec<PathBuf>,
    /// The page
    #[arg(long, value_name = "FILE", default_value = "runs.html")]
    out: PathBuf,
}

pub(crate) fn write(args: &ReportArgs) -> anyhow::Result<()> {
    let mut runs = Vec::new();
    for folder in &args.folders {
        runs.extend(runs_in(folder)?);
    }
    let out = &args.out;
    crate::save(out, &page(&runs))?;
    crate::print(&format!("{}\n", out.display()))
}

/// The run of a folder, or else those of the folders in it, by name.
fn runs_in(folder: &Path) -> anyhow::Result<Vec<(String, Report)>> {
    let named = |folder: &Path, report| (folder.display().to_string(), report);
    let none = match Report::read(folder) {
        Err(none @ PageError::NoRun { .. }) if folder.is_dir() => none,
        other => return Ok(vec![named(folder, other?)]),
    };
    let mut runs = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if !path.is_dir() {
            continue;
        }
        match Report::read(&path) {
            Ok(report) => runs.push(named(&path, report)),
            Err(PageError::NoRun { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    runs.sort_by(|(one, _), (other, _)| one.cmp(other));
    anyhow::ensure!(!runs.is_empty(), none);
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_runs_stands_for_all_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let none = runs_in(folder.path()).unwrap_err().to_string();
        assert!(none.starts_with("there is no run in "), "{none}");
        for name in ["second", "first"] {
            let run = folder.path().join(name);
            std::fs::create_dir(&run).unwrap();
            std::fs::write(run.join("log.jsonl"), "{\"step\":1,\"loss\":2.0}\n").unwrap();
        }
        std::fs::write(folder.path().join("notes.txt"), "").unwrap();
        let runs = runs_in(folder.path()).unwrap();
        let names: Vec<_> = runs.iter().map(|(name, _)| name.rsplit('/').next()).collect();
        assert_eq!(names, [Some("first"), Some("second")]);
    }
}
