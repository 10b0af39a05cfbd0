//! By what anything of a cluster is known, for those who look for what is left of it. Other clusters may come and go
//! meanwhile: theirs is told apart.

use std::path::PathBuf;

use anyhow::Result;

use super::cgroups;
use super::layout::{CGROUP_PREFIX, Names};

/// What to look for.
pub struct Marks {
    names: Names,
}

impl Marks {
    /// Of the cluster of that name.
    pub fn of(name: &str) -> Result<Self> {
        Ok(Self { names: Names::new(name)? })
    }

    /// Whether a link of the machine's own namespace is the cluster's.
    pub fn is_link(&self, link: &str) -> bool {
        self.names.owns_link(link)
    }

    /// Whether the contents of `/proc/<pid>/cgroup` name the cluster's cgroup.
    pub fn is_member(&self, membership: &str) -> bool {
        clusters(membership).any(|cluster| cluster == self.names.name())
    }

    /// Whether they name another cluster's cgroup.
    pub fn is_member_elsewhere(&self, membership: &str) -> bool {
        !self.is_member(membership) && clusters(membership).next().is_some()
    }

    /// The cluster's cgroups, and those that a kubelet would make without one.
    pub fn cgroups(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for hierarchy in cgroups::hierarchies()? {
            for entry in std::fs::read_dir(hierarchy.folder("")).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let wanted = self.is_member(&format!("0::/{name}")) || name.starts_with("kubepods");
                if entry.path().is_dir() && wanted {
                    found.push(entry.path());
                }
            }
        }
        Ok(found)
    }

    /// Where the cluster's state is.
    pub fn state(&self) -> PathBuf {
        self.names.state()
    }
}

/// The names of the clusters in whose cgroups a process is.
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
    fn a_process_of_a_cluster_is_known_by_any_of_its_cgroups() {
        let knit = Marks::of("knit").unwrap();
        assert!(knit.is_member(MEMBER));
        assert!(!knit.is_member("3:cpu:/\n0::/user.slice/knit-cluster-knit\n"));
    }

    #[test]
    fn another_clusters_things_are_not_looked_for() {
        let other = Marks::of("kni").unwrap();
        assert!(!other.is_member(MEMBER));
        assert!(other.is_member_elsewhere(MEMBER));
        assert!(!other.is_member_elsewhere("0::/\n"));
        assert!(!other.is_link("kn-knit"));
    }
}
