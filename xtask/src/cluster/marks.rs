//! By what anything of any cluster is known, for those who look for what is left of one.

use std::path::PathBuf;

use anyhow::Result;

use super::cgroups;
use super::layout::{CGROUP_PREFIX, LINK_PREFIX};

pub use super::layout::STATE;

/// Whether a link of the machine's own namespace could be a cluster's.
pub fn is_link(link: &str) -> bool {
    link.starts_with(LINK_PREFIX)
}

/// Whether the contents of `/proc/<pid>/cgroup` name a cluster's cgroup.
pub fn is_cgroup(membership: &str) -> bool {
    membership.contains(&format!(":/{CGROUP_PREFIX}"))
}

/// The cgroups of every cluster, and those that a kubelet would make without one.
pub fn cgroups() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for hierarchy in cgroups::hierarchies()? {
        for entry in std::fs::read_dir(hierarchy.folder("")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.path().is_dir() && (name.starts_with(CGROUP_PREFIX) || name.starts_with("kubepods")) {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_a_cluster_is_known_by_any_of_its_cgroups() {
        assert!(is_cgroup("3:cpu:/\n0::/knit-cluster-knit/processes\n"));
        assert!(!is_cgroup("3:cpu:/\n0::/user.slice/knit-cluster\n"));
    }
}
