//! A disk that is soon full.

use std::path::Path;
use std::process::{Command, Stdio};

/// A file system of few bytes, in memory, while it lives.
#[derive(Debug)]
pub struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// Mounts it on a folder, if this user may.
    pub fn mount(folder: &'a Path, bytes: u64) -> Option<Self> {
        let size = format!("size={bytes}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "none"]).arg(folder);
        let mounted = mount.stdin(Stdio::null()).output();
        let mounted = mounted.is_ok_and(|output| output.status.success());
        mounted.then_some(Self(folder))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}
