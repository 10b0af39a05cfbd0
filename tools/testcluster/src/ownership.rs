//! Decides which links, processes and cgroups of the machine belong to a cluster, and which to another one that runs at the
//! same time.

use std::path::PathBuf;

use anyhow::Result;

use super::cgroups;
use super::layout::{CGROUP_PREFIX, Names};

/// Identifies the resources of one cluster.
pub struct Ownership {
    names: Names,
}

impl Ownership {
    /// Of the cluster of that name.
    pub fn of(name: &str) -> Result<Self> {
        Ok(Self { names: Names::new(name)? })
    }

    /// Whether a link of the host's namespace belongs to the cluster.
    pub fn owns_link(&self, link: &str) -> bool {
        self.names.owns_link(link)
    }

    /// Whether the contents of `/proc/<pid>/cgroup` name the cluster's cgroup.
    pub fn owns_process(&self, membership: &str) -> bool {
        clusters(membership).any(|cluster| cluster == self.names.name())
    }

    /// Whether they name another cluster's cgroup.
    pub fn is_of_other_cluster(&self, membership: &str) -> bool {
        !self.owns_process(membership) && clusters(membership).next().is_some()
    }

    /// The cluster's cgroups, and those that a kubelet creates by default.
    pub fn cgroups(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for hierarchy in cgroups::hierarchies()? {
            for entry in std::fs::read_dir(hierarchy.folder("")).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let is_relevant = self.owns_process(&format!("0::/{name}")) || name.starts_with("kubepods");
                if entry.path().is_dir() && is_relevant {
                    found.push(entry.path());
                }
            }
        }
        Ok(found)
    }

    /// The cluster's state directory.
    pub fn state(&self) -> PathBuf {
        self.names.state()
    }
}

/// The names of the clusters whose cgroups contain a process.
fn clusters(membership: &str) -> impl Iterator<Item = &str> {
    membership.lines().filter_map(|line| {
        let path = line.splitn(3, ':').nth(2)?.strip_prefix('/')?;
        path.split('/').next()?.strip_prefix(CGROUP_PREFIX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBER: &str = "3:cpu:/\n0::/knit-cluster-knit/processes\n";

    #[test]
    fn a_process_belongs_to_a_cluster_by_any_of_its_cgroups() {
        let knit = Ownership::of("knit").unwrap();
        assert!(knit.owns_process(MEMBER));
        assert!(!knit.owns_process("3:cpu:/\n0::/user.slice/knit-cluster-knit\n"));
    }

    #[test]
    fn resources_of_another_cluster_do_not_count() {
        let other = Ownership::of("kni").unwrap();
        assert!(!other.owns_process(MEMBER));
        assert!(other.is_of_other_cluster(MEMBER));
        assert!(!other.is_of_other_cluster("0::/\n"));
        assert!(!other.owns_link("kn-knit"));
    }
}
