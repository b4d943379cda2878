//! The files in which the kernel describes a machine.

use std::fs;
use std::path::{Path, PathBuf};

/// Such files below a root: `/`, or a folder that describes another machine.
#[derive(Clone, Debug)]
pub(super) struct Files {
    root: PathBuf,
}

impl Files {
    pub(super) fn below(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The content of a file, if it can be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// A file of the control group of this process, or of the one that its container shows as the root.
    pub(super) fn of_group(&self, name: &str) -> Option<String> {
        let groups = self.text("proc/self/cgroup").unwrap_or_default();
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
        let own = own.and_then(|group| self.text(&format!("sys/fs/cgroup/{group}/{name}")));
        own.or_else(|| self.text(&format!("sys/fs/cgroup/{name}")))
    }
}
