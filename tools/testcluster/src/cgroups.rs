//! A cluster's cgroups: one directory in every hierarchy, which holds every process that the cluster ever started.
//!
//! `up` moves itself in before it starts anything, so that a child of a killed `up` is found there too.
//! Only the hierarchy that tracks processes is entered; resource limits of this process stay as they are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The cgroup of the control plane's and the nodes' own processes, a sibling of the nodes' cgroups: cgroup v2 allows
/// processes only in leaves.
const PROCESSES: &str = "processes";

/// One mounted hierarchy: a controller of cgroup v1, or cgroup v2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    mount: PathBuf,
    /// The cgroup that the mount shows as its root.
    root: String,
    /// The hierarchy's name in `/proc/<pid>/cgroup`; empty for v2.
    controllers: String,
}

impl Hierarchy {
    fn is_v2(&self) -> bool {
        self.controllers.is_empty()
    }

    /// The directory of a cgroup.
    pub fn folder(&self, cgroup: &str) -> PathBuf {
        self.mount.join(cgroup.trim_start_matches('/'))
    }

    /// The cgroup of a process in this hierarchy, such as `/a/b`.
    fn of_process(&self, membership: &str) -> Option<String> {
        let path = membership.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            (fields.next() == Some(&self.controllers)).then(|| fields.next()).flatten()
        })?;
        let seen = path.strip_prefix(self.root.trim_end_matches('/')).unwrap_or(path);
        Some(if seen.is_empty() { "/".to_owned() } else { seen.to_owned() })
    }
}

/// Every mounted hierarchy.
pub fn hierarchies() -> Result<Vec<Hierarchy>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    let found = parse(&mounts);
    if found.is_empty() {
        bail!("no cgroup hierarchy is mounted: containers need them");
    }
    Ok(found)
}

fn parse(mountinfo: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let (&[_, _, _, root, mount, ..], &[kind, _, options, ..]) = (left.as_slice(), right.as_slice())
        else {
            continue;
        };
        let controllers = match kind {
            "cgroup2" => String::new(),
            "cgroup" => v1_name(options),
            _ => continue,
        };
        if !found.iter().any(|known| known.controllers == controllers) {
            found.push(Hierarchy { mount: PathBuf::from(mount), root: root.to_owned(), controllers });
        }
    }
    found
}

/// The mount options without the generic ones: `rw,cpu,cpuacct` is `cpu,cpuacct`.
fn v1_name(options: &str) -> String {
    let general = ["rw", "ro", "xattr", "noprefix", "clone_children"];
    let names: Vec<&str> = options
        .split(',')
        .filter(|word| !general.contains(word) && !word.starts_with("release_agent="))
        .collect();
    names.join(",")
}

/// Creates the cluster's cgroups and one for each node.
pub fn create(cluster: &str, nodes: &[String]) -> Result<()> {
    for hierarchy in hierarchies()? {
        let top = hierarchy.folder(cluster);
        create_one(&hierarchy, &top)?;
        for below in nodes.iter().map(String::as_str).chain([PROCESSES]) {
            create_one(&hierarchy, &top.join(below))?;
        }
    }
    Ok(())
}

fn create_one(hierarchy: &Hierarchy, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create cgroup {}", folder.display()))?;
    let parent = folder.parent().expect("a cgroup lies below its hierarchy");
    if hierarchy.is_v2() {
        // Errors are ignored: the kubelet reports the controllers that it misses.
        let controllers = fs::read_to_string(parent.join("cgroup.controllers")).unwrap_or_default();
        for controller in controllers.split_whitespace() {
            let _ = fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        return Ok(());
    }
    // A new v1 cpuset has neither CPUs nor memory nodes and rejects processes until both are set.
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if folder.join(file).exists() && read_trimmed(&folder.join(file))?.is_empty() {
            let value = read_trimmed(&parent.join(file))?;
            fs::write(folder.join(file), value)
                .with_context(|| format!("cannot fill {}", folder.join(file).display()))?;
        }
    }
    Ok(())
}

fn read_trimmed(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.trim().to_owned())
}

/// This process and its children belong to the cluster until this is dropped.
pub struct Membership {
    before: PathBuf,
}

impl Membership {
    /// Enters the cluster's cgroup.
    pub fn enter(cluster: &str) -> Result<Self> {
        let hierarchy = tracking(hierarchies()?);
        let membership = fs::read_to_string("/proc/self/cgroup").context("cannot read /proc/self/cgroup")?;
        let before = hierarchy.of_process(&membership).unwrap_or_else(|| "/".to_owned());
        let processes = hierarchy.folder(cluster).join(PROCESSES).join("cgroup.procs");
        fs::write(&processes, "0").with_context(|| format!("cannot enter {}", processes.display()))?;
        Ok(Self { before: hierarchy.folder(&before).join("cgroup.procs") })
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.before, "0") {
            eprintln!("cannot return to cgroup {}: {error}", self.before.display());
        }
    }
}

/// The hierarchy from which nothing else moves processes: v2, or else the named one of v1.
fn tracking(mut all: Vec<Hierarchy>) -> Hierarchy {
    let best = all.iter().position(Hierarchy::is_v2);
    let best = best.or_else(|| all.iter().position(|one| one.controllers == "name=systemd"));
    all.swap_remove(best.unwrap_or(0))
}

/// All processes in the cluster's cgroups, in any hierarchy, except this one.
pub fn processes(cluster: &str) -> Result<Vec<i32>> {
    let own = nix::unistd::getpid().as_raw();
    let mut found = Vec::new();
    for hierarchy in hierarchies()? {
        walk(&hierarchy.folder(cluster), &mut |folder| {
            let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            // A process of another pid namespace is shown as 0.
            found.extend(
                text.lines()
                    .filter_map(|line| line.parse::<i32>().ok())
                    .filter(|pid| *pid > 0 && *pid != own),
            );
        });
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The directories of the cluster's cgroups, parents first.
pub fn folders(cluster: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for hierarchy in hierarchies()? {
        walk(&hierarchy.folder(cluster), &mut |folder| found.push(folder.to_owned()));
    }
    Ok(found)
}

/// Removes the cluster's cgroups, deepest first. A cgroup stays busy for a moment after its last process ends.
pub fn remove(cluster: &str, limit: Duration) -> Result<()> {
    let start = Instant::now();
    loop {
        let mut busy = None;
        for folder in folders(cluster)?.iter().rev() {
            match fs::remove_dir(folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => busy = Some((folder.clone(), error)),
                _ => {}
            }
        }
        match busy {
            None => return Ok(()),
            Some((folder, error)) if start.elapsed() > limit => {
                return Err(error).with_context(|| format!("cannot remove cgroup {}", folder.display()));
            }
            Some(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Visits a cgroup and its descendants, parents first. One that vanishes meanwhile is skipped.
fn walk(folder: &Path, visit: &mut impl FnMut(&Path)) {
    if !folder.is_dir() {
        return;
    }
    visit(folder);
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 /box /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
33 30 0:29 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
34 30 0:29 / /mnt/cgroup rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn each_hierarchy_is_found_once() {
        let found = parse(HYBRID);
        let names: Vec<&str> = found.iter().map(|one| one.controllers.as_str()).collect();
        assert_eq!(names, ["cpu,cpuacct", "name=systemd", ""]);
        assert_eq!(found[2].folder("a/b"), Path::new("/sys/fs/cgroup/unified/a/b"));
    }

    #[test]
    fn a_process_is_found_where_its_mount_shows_it() {
        let found = parse(HYBRID);
        let membership = "5:name=systemd:/box/inner\n3:cpu,cpuacct:/\n0::/user/1\n";
        assert_eq!(found[0].of_process(membership).as_deref(), Some("/"));
        assert_eq!(found[1].of_process(membership).as_deref(), Some("/inner"));
        assert_eq!(found[2].of_process(membership).as_deref(), Some("/user/1"));
    }

    #[test]
    fn processes_are_tracked_in_v2_or_the_named_v1_hierarchy() {
        assert!(tracking(parse(HYBRID)).is_v2());
        let mut without = parse(HYBRID);
        without.pop();
        assert_eq!(tracking(without).controllers, "name=systemd");
    }
}
