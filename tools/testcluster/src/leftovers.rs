//! A snapshot of the machine, as far as a test cluster could change it: compared before and after, it shows what is left.
//!
//! Other things happen on a machine at the same time. So processes, links and cgroups count only when they belong to that
//! cluster or could have escaped from it; sysctls, rules and the directories that Kubernetes components create always count.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::go_tools::{self, Tool};
use crate::ownership::Ownership;
use knit_dev::process;

/// Directories that components of a cluster would create on the host without their own mount namespaces.
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

/// Sysctls that they would set for the whole machine.
const SYSCTLS: [&str; 10] = [
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

/// How long ending processes may still show up.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

/// One line for each item, which starts with the kind of item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSnapshot {
    found: BTreeSet<String>,
}

impl HostSnapshot {
    /// Takes a snapshot of what the cluster of that name may have changed; resources of other clusters are left out.
    pub fn take(cluster: &str) -> Result<Self> {
        let ownership = &Ownership::of(cluster)?;
        let mut found = BTreeSet::new();
        found.extend(processes(ownership)?);
        found.extend(links(ownership)?);
        found.extend(named_namespaces());
        found.extend(mounts()?);
        found.extend(ownership.cgroups()?.iter().map(|folder| format!("cgroup {}", folder.display())));
        found.extend(tables()?);
        found.extend(routes(ownership)?);
        found.extend(files(Path::new("/"), &ownership.state()));
        found.extend(sysctls(Path::new("/proc/sys")));
        Ok(Self { found })
    }

    /// Takes snapshots until two are equal: an item that is about to vanish would be reported as gone later.
    pub fn take_settled(cluster: &str) -> Result<Self> {
        let start = Instant::now();
        let mut seen = Self::take(cluster)?;
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let before = std::mem::replace(&mut seen, Self::take(cluster)?);
            if before == seen || start.elapsed() > SETTLE_TIMEOUT {
                return Ok(seen);
            }
        }
    }

    /// How the machine differs from this snapshot, once ending processes had time to end.
    pub fn leftovers(&self, cluster: &str) -> Result<Vec<String>> {
        let start = Instant::now();
        loop {
            let left = Self::take(cluster)?.difference(self);
            if left.is_empty() || start.elapsed() > SETTLE_TIMEOUT {
                return Ok(left);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Items that were added and items that vanished since another snapshot.
    pub fn difference(&self, before: &Self) -> Vec<String> {
        let left = self.found.difference(&before.found).map(|item| format!("left behind: {item}"));
        let gone = before.found.difference(&self.found).map(|item| format!("gone: {item}"));
        left.chain(gone).collect()
    }
}

/// Processes that run one of the clusters' programs, are in the cluster's cgroups, or mention its state directory.
/// kubectl does not count: a person may use it with any cluster.
fn processes(ownership: &Ownership) -> Result<Vec<String>> {
    let tools = go_tools::folder()?;
    let own = std::process::id();
    let state = format!("{}/", ownership.state().display());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot read /proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process that ends meanwhile reads as empty.
        let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let command_line = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let runs_tool = fs::read_link(entry.path().join("exe"))
            .is_ok_and(|exe| exe.starts_with(&tools) && !exe.ends_with(Tool::Kubectl.program()));
        let membership = String::from_utf8_lossy(&read("cgroup")).into_owned();
        let ended = String::from_utf8_lossy(&read("stat")).contains(") Z ");
        if pid == own || ended || ownership.is_of_other_cluster(&membership) {
            continue;
        }
        if runs_tool || ownership.owns_process(&membership) || command_line.contains(&state) {
            found.push(format!("process {pid} {}", command_line.chars().take(120).collect::<String>()));
        }
    }
    Ok(found)
}

fn links(ownership: &Ownership) -> Result<Vec<String>> {
    let entries = fs::read_dir("/sys/class/net").context("cannot read /sys/class/net")?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| ownership.owns_link(name)).map(|name| format!("link {name}")).collect())
}

/// Container runtimes give the network namespaces of pods such names.
fn named_namespaces() -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("cni-")).map(|name| format!("network namespace {name}")).collect()
}

fn mounts() -> Result<Vec<String>> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    Ok(parse_mounts(&text))
}

/// Mounts of tests that run at the same time do not count: named namespaces, and everything below temporary directories.
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

fn routes(ownership: &Ownership) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for family in ["-4", "-6"] {
        let rules = process::output(Command::new("ip").args([family, "rule", "show"]))?;
        found.extend(rules.lines().map(|line| format!("rule {family} {}", line.trim())));
        let routes = process::output(Command::new("ip").args([family, "route", "show", "table", "all"]))?;
        let own = routes.lines().filter(|line| line.split(' ').any(|word| ownership.owns_link(word)));
        found.extend(own.map(|line| format!("route {family} {}", line.trim())));
    }
    Ok(found)
}

/// Each directory with its direct entries: a machine may have some of them for other reasons.
fn files(root: &Path, state: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube"));
    for target in FOLDERS.iter().map(PathBuf::from).chain(home).chain([state.to_owned()]) {
        let path = root.join(target.strip_prefix("/").unwrap_or(&target));
        if !path.exists() {
            continue;
        }
        found.push(format!("file {}", target.display()));
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            found.push(format!("file {}", target.join(entry.file_name()).display()));
        }
    }
    found
}

fn sysctls(folder: &Path) -> Vec<String> {
    let read =
        |name: &&str| fs::read_to_string(folder.join(name)).ok().map(|value| (name.to_string(), value));
    SYSCTLS.iter().filter_map(read).map(|(name, value)| format!("sysctl {name} = {}", value.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_what_is_left_and_what_is_gone() {
        let snapshot =
            |items: &[&str]| HostSnapshot { found: items.iter().map(ToString::to_string).collect() };
        let before = snapshot(&["link a", "sysctl x = 1"]);
        assert!(before.difference(&before).is_empty());
        assert_eq!(
            snapshot(&["link a", "link b"]).difference(&before),
            ["left behind: link b", "gone: sysctl x = 1"]
        );
    }

    #[test]
    fn a_directory_that_a_kubelet_created_is_found() {
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
