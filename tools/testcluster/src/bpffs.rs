//! Mounts bpffs where the system did not: Debian does at boot, a container often has none.

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::process;

const MOUNT_POINT: &str = "/sys/fs/bpf";

/// Unmounts bpffs when dropped, if it was mounted here.
pub struct BpfFs {
    is_owned: bool,
}

/// Mounts bpffs if it is not mounted yet. Without root it does nothing.
pub fn ensure() -> Result<BpfFs> {
    let is_mounted = statfs(MOUNT_POINT).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC);
    let is_owned = !is_mounted && process::is_root();
    if is_owned {
        mount(Some("bpf"), MOUNT_POINT, Some("bpf"), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("cannot mount bpffs at {MOUNT_POINT}"))?;
    }
    Ok(BpfFs { is_owned })
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        if self.is_owned {
            let _ = umount(MOUNT_POINT);
        }
    }
}
