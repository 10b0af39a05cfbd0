//! The eBPF file system, where a machine's start did not mount it: Debian's does, a container's often does not.

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::process;

const PLACE: &str = "/sys/fs/bpf";

/// The file system is there as long as this is.
pub struct FileSystem {
    is_ours: bool,
}

/// Mounts it if it is not there. Whoever is not root does without.
pub fn ensure() -> Result<FileSystem> {
    let is_there = statfs(PLACE).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC);
    let is_ours = !is_there && process::is_root();
    if is_ours {
        mount(Some("bpf"), PLACE, Some("bpf"), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("the eBPF file system cannot be mounted at {PLACE}"))?;
    }
    Ok(FileSystem { is_ours })
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = umount(PLACE);
        }
    }
}
