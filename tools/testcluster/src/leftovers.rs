//! A picture of the machine, as far as a test cluster could change it: taken before and after, it shows what is left.
//!
//! Other things happen on a machine at the same time. So processes, links and cgroups count only when they are that
//! cluster's, or could have escaped from it; settings, rules and the folders that Kubernetes likes to make count always.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::go_tools::{self, Tool};
use crate::marks::Marks;
use knit_dev::process;

/// What the parts of a cluster would make outside of their own folders, if they were let.
const FOLDERS: [&str; 17] = [
    "/etc/cni",
    "/etc/containerd",
    "/etc/kubernetes",
    "/opt/cni",
    "/opt/containerd",
    "/opt/nri",
    "/run/containerd",
    "/run/knit",
    "/run/nri",
    "/run/xtables.lock",
    "/usr/libexec/kubernetes",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/knit",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
];

/// What they would set for the whole machine.
const SETTINGS: [&str; 10] = [
    "kernel/hostname",
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "net/netfilter/nf_conntrack_max",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
];

/// What was told to end may be seen for so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// One line for each thing that was found, beginning with what kind of thing it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    found: BTreeSet<String>,
}

impl Snapshot {
    /// Looks at the machine, for what the cluster of that name may have done. Other clusters may come and go.
    pub fn take(cluster: &str) -> Result<Self> {
        let marks = &Marks::of(cluster)?;
        let mut found = BTreeSet::new();
        found.extend(processes(marks)?);
        found.extend(links(marks)?);
        found.extend(named_namespaces());
        found.extend(mounts()?);
        found.extend(marks.cgroups()?.iter().map(|folder| format!("cgroup {}", folder.display())));
        found.extend(tables()?);
        found.extend(routes(marks)?);
        found.extend(files(Path::new("/"), &marks.state()));
        found.extend(settings(Path::new("/proc/sys")));
        Ok(Self { found })
    }

    /// Looks until two looks are the same: what is about to end would be missed in every later picture.
    pub fn settled(cluster: &str) -> Result<Self> {
        let began = Instant::now();
        let mut seen = Self::take(cluster)?;
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let before = std::mem::replace(&mut seen, Self::take(cluster)?);
            if before == seen || began.elapsed() > PATIENCE {
                return Ok(seen);
            }
        }
    }

    /// How the machine differs from this picture, in words. What is about to end gets its moment.
    pub fn left_since(&self, cluster: &str) -> Result<Vec<String>> {
        let began = Instant::now();
        loop {
            let left = Self::take(cluster)?.difference(self);
            if left.is_empty() || began.elapsed() > PATIENCE {
                return Ok(left);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// What is here and was not there before, and the reverse, in words.
    pub fn difference(&self, before: &Self) -> Vec<String> {
        let left = self.found.difference(&before.found).map(|thing| format!("left behind: {thing}"));
        let gone = before.found.difference(&self.found).map(|thing| format!("gone: {thing}"));
        left.chain(gone).collect()
    }
}

/// Processes that run one of the clusters' programs, are in a cluster's cgroups, or name its folders. kubectl is a
/// person's: it may talk to any cluster.
fn processes(marks: &Marks) -> Result<Vec<String>> {
    let tools = go_tools::folder()?;
    let own = std::process::id();
    let state = format!("{}/", marks.state().display());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot read /proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process that ends while it is looked at reads as empty, and is no cluster's.
        let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let words = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let runs_tool = fs::read_link(entry.path().join("exe"))
            .is_ok_and(|exe| exe.starts_with(&tools) && !exe.ends_with(Tool::Kubectl.program()));
        let membership = String::from_utf8_lossy(&read("cgroup")).into_owned();
        let ended = String::from_utf8_lossy(&read("stat")).contains(") Z ");
        if pid == own || ended || marks.is_member_elsewhere(&membership) {
            continue;
        }
        if runs_tool || marks.is_member(&membership) || words.contains(&state) {
            found.push(format!("process {pid} {}", words.chars().take(120).collect::<String>()));
        }
    }
    Ok(found)
}

fn links(marks: &Marks) -> Result<Vec<String>> {
    let entries = fs::read_dir("/sys/class/net").context("cannot read /sys/class/net")?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| marks.is_link(name)).map(|name| format!("link {name}")).collect())
}

/// Container runtimes name the namespaces of their pods like this.
fn named_namespaces() -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("cni-")).map(|name| format!("network namespace {name}")).collect()
}

fn mounts() -> Result<Vec<String>> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    Ok(parse_mounts(&text))
}

/// Mounts of tests that run beside are theirs: named namespaces, and whatever lies below a folder for passing things.
fn parse_mounts(mountinfo: &str) -> Vec<String> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    let foreign =
        |point: &str| ["/run/netns", "/tmp", "/var/tmp"].iter().any(|top| Path::new(point).starts_with(top));
    points.filter(|point| !foreign(point)).map(|point| format!("mount {point}")).collect()
}

fn tables() -> Result<Vec<String>> {
    let listed = process::output(Command::new("nft").args(["list", "tables"]))?;
    Ok(listed.lines().map(|line| format!("nftables {line}")).collect())
}

fn routes(marks: &Marks) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for family in ["-4", "-6"] {
        let rules = process::output(Command::new("ip").args([family, "rule", "show"]))?;
        found.extend(rules.lines().map(|line| format!("rule {family} {}", line.trim())));
        let routes = process::output(Command::new("ip").args([family, "route", "show", "table", "all"]))?;
        let ours = routes.lines().filter(|line| line.split(' ').any(|word| marks.is_link(word)));
        found.extend(ours.map(|line| format!("route {family} {}", line.trim())));
    }
    Ok(found)
}

/// Each folder with what lies directly in it: a machine may have some of them for reasons of its own.
fn files(root: &Path, state: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube"));
    for place in FOLDERS.iter().map(PathBuf::from).chain(home).chain([state.to_owned()]) {
        let path = root.join(place.strip_prefix("/").unwrap_or(&place));
        if !path.exists() {
            continue;
        }
        found.push(format!("file {}", place.display()));
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            found.push(format!("file {}", place.join(entry.file_name()).display()));
        }
    }
    found
}

fn settings(folder: &Path) -> Vec<String> {
    let read =
        |name: &&str| fs::read_to_string(folder.join(name)).ok().map(|value| (name.to_string(), value));
    SETTINGS
        .iter()
        .filter_map(read)
        .map(|(name, value)| format!("setting {name} = {}", value.trim()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_what_is_left_and_what_is_gone() {
        let snapshot = |things: &[&str]| Snapshot { found: things.iter().map(ToString::to_string).collect() };
        let before = snapshot(&["link a", "setting x = 1"]);
        assert!(before.difference(&before).is_empty());
        assert_eq!(
            snapshot(&["link a", "link b"]).difference(&before),
            ["left behind: link b", "gone: setting x = 1"]
        );
    }

    #[test]
    fn a_folder_that_a_kubelet_made_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let before = files(root.path(), Path::new("/state"));
        fs::create_dir_all(root.path().join("var/lib/kubelet/pki")).unwrap();
        let after = files(root.path(), Path::new("/state"));
        assert!(before.iter().all(|line| !line.contains("kubelet")), "{before:?}");
        assert!(after.contains(&"file /var/lib/kubelet/pki".to_owned()), "{after:?}");
    }

    #[test]
    fn mounts_of_other_tests_do_not_count() {
        let text = "1 0 0:1 / /sys rw - sysfs sysfs rw\n2 0 0:4 net:[1] /run/netns/t1 rw - nsfs nsfs rw\n\
                    3 0 0:5 / /tmp/x rw - tmpfs tmpfs rw\n4 0 0:6 / /var/lib/kubelet/a rw - tmpfs tmpfs rw\n";
        assert_eq!(parse_mounts(text), ["mount /sys", "mount /var/lib/kubelet/a"]);
    }
}
