//! Removes a cluster in whatever state it is: complete, half started, or without its record.
//!
//! Processes are found by the cluster's cgroups and PID files, links and cgroups by their names. Mounts of the nodes are in
//! their own mount namespaces and vanish with their last process.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::layout::Names;
use super::state::{self, Cluster};
use super::{cgroups, daemon, links, node};
use knit_dev::process;
use knit_dev::progress::Step;

const TIMEOUT: Duration = Duration::from_secs(30);

/// The result of `down`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A cluster, or remains of one, was removed.
    Removed,
    /// There was nothing to remove.
    NotFound,
}

/// Removes everything that belongs to the cluster of that name, and checks that it is gone.
pub fn down(name: &str) -> Result<Outcome> {
    process::require_root("removing a cluster")?;
    let names = Names::new(name)?;
    if remaining(&names)?.is_empty() {
        // An `up` that was killed right at its start has created only the directory of all clusters.
        state::remove(&names)?;
        return Ok(Outcome::NotFound);
    }
    let _lock = if names.state().exists() { Some(state::lock(&names)?) } else { None };

    let step = Step::start("kill kubelets, containers and all other processes");
    end_processes(&names)?;
    step.done();
    let step = Step::start("remove cgroups, links and files");
    cgroups::remove(&names.cgroup(), TIMEOUT)?;
    links::remove(&names, TIMEOUT)?;
    unmount(&names.state())?;
    state::remove(&names)?;
    step.done();

    let left = remaining(&names)?;
    if !left.is_empty() {
        bail!("cluster {name}: not removed:\n  {}", left.join("\n  "));
    }
    Ok(Outcome::Removed)
}

/// Everything that exists of a cluster, one line per item.
pub fn remaining(names: &Names) -> Result<Vec<String>> {
    let cgroup = names.cgroup();
    let mut found: Vec<String> =
        cgroups::processes(&cgroup)?.iter().map(|pid| format!("process {pid}")).collect();
    found.extend(links::list(names)?.iter().map(|link| format!("link {link}")));
    found.extend(cgroups::folders(&cgroup)?.iter().map(|folder| format!("cgroup {}", folder.display())));
    found.extend(mounts_below(&names.state())?.iter().map(|mount| format!("mount {mount}")));
    if names.state().exists() {
        found.push(format!("directory {}", names.state().display()));
    }
    Ok(found)
}

/// Kills kubelets and containerds first, so that nothing is restarted; then all the rest, until no process is left.
fn end_processes(names: &Names) -> Result<()> {
    // An unreadable record is ignored: the cgroups contain all processes.
    if let Ok(Some(cluster)) = Cluster::find(names) {
        for number in cluster.node_numbers() {
            for component in [node::kubelet_component(number), node::containerd_component(number)] {
                if let Some(running) = daemon::find(&cluster, &component).filter(|running| running.is_alive())
                {
                    end(running.pid)?;
                }
            }
        }
    }
    let start = Instant::now();
    loop {
        let left = cgroups::processes(&names.cgroup())?;
        if left.is_empty() {
            return Ok(());
        }
        if start.elapsed() > TIMEOUT {
            let left: Vec<String> = left.iter().map(ToString::to_string).collect();
            bail!("cluster {}: processes do not end: {}", names.name(), left.join(" "));
        }
        for pid in left {
            end(pid)?;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn end(pid: i32) -> Result<()> {
    match kill(Pid::from_raw(pid), Signal::SIGKILL) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot kill process {pid}")),
    }
}

/// Mount points at or below a directory, deepest last.
fn mounts_below(folder: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    let points = text.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(points.filter(|point| Path::new(point).starts_with(folder)).map(str::to_owned).collect())
}

/// `up` mounts nothing there; but the directory is removed recursively, and never through a mount.
fn unmount(folder: &Path) -> Result<()> {
    for point in mounts_below(folder)?.iter().rev() {
        match nix::mount::umount2(Path::new(point), nix::mount::MntFlags::MNT_DETACH) {
            // It has vanished since it was listed.
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot unmount {point}")),
        }
    }
    Ok(())
}
