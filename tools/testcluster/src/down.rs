//! Taking a cluster away, whatever state it is in: complete, half made, or without its record.
//!
//! Processes are found by the cluster's cgroups and by what was written down about them, links and cgroups by their
//! names. What the nodes mounted lives in their own namespaces and goes with their last process.

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

const LIMIT: Duration = Duration::from_secs(30);

/// What `down` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There was a cluster, or something left of one, and it is gone.
    Removed,
    /// There was nothing.
    NothingThere,
}

/// Takes away everything of the cluster of that name, and makes sure that it is gone.
pub fn down(name: &str) -> Result<Outcome> {
    process::require_root("taking a cluster away")?;
    let names = Names::new(name)?;
    if remains(&names)?.is_empty() {
        // An `up` that was killed at its very start has made the folder of all clusters and nothing else.
        state::remove(&names)?;
        return Ok(Outcome::NothingThere);
    }
    let _claim = if names.state().exists() { Some(state::lock(&names)?) } else { None };

    let step = Step::start("end kubelets, containers and everything else");
    end_processes(&names)?;
    step.done();
    let step = Step::start("remove cgroups, links and files");
    cgroups::remove(&names.cgroup(), LIMIT)?;
    links::remove(&names, LIMIT)?;
    unmount(&names.state())?;
    state::remove(&names)?;
    step.done();

    let left = remains(&names)?;
    if !left.is_empty() {
        bail!("cluster {name}: something is left:\n  {}", left.join("\n  "));
    }
    Ok(Outcome::Removed)
}

/// Everything that there is of a cluster, in words.
pub fn remains(names: &Names) -> Result<Vec<String>> {
    let cgroup = names.cgroup();
    let mut found: Vec<String> =
        cgroups::processes(&cgroup)?.iter().map(|pid| format!("process {pid}")).collect();
    found.extend(links::of(names)?.iter().map(|link| format!("link {link}")));
    found.extend(cgroups::folders(&cgroup)?.iter().map(|folder| format!("cgroup {}", folder.display())));
    found.extend(mounts_below(&names.state())?.iter().map(|mount| format!("mount {mount}")));
    if names.state().exists() {
        found.push(format!("folder {}", names.state().display()));
    }
    Ok(found)
}

/// Kubelets and containerds first, so that nothing is started again; then all the rest, until there is none.
fn end_processes(names: &Names) -> Result<()> {
    // A record that cannot be read is no reason to leave the processes: the cgroups know them all.
    if let Ok(Some(cluster)) = Cluster::find(names) {
        for number in cluster.node_numbers() {
            for part in [node::kubelet_part(number), node::containerd_part(number)] {
                if let Some(running) = daemon::find(&cluster, &part).filter(|running| running.is_alive()) {
                    end(running.pid)?;
                }
            }
        }
    }
    let began = Instant::now();
    loop {
        let left = cgroups::processes(&names.cgroup())?;
        if left.is_empty() {
            return Ok(());
        }
        if began.elapsed() > LIMIT {
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
        Err(error) => Err(error).with_context(|| format!("cannot end process {pid}")),
    }
}

/// Mount points at or below a folder, deepest last.
fn mounts_below(folder: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    let points = text.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(points.filter(|point| Path::new(point).starts_with(folder)).map(str::to_owned).collect())
}

/// Nothing is mounted there by `up`; but files are removed below, and never through a mount.
fn unmount(folder: &Path) -> Result<()> {
    for point in mounts_below(folder)?.iter().rev() {
        match nix::mount::umount2(Path::new(point), nix::mount::MntFlags::MNT_DETACH) {
            // It has gone since it was listed.
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot unmount {point}")),
        }
    }
    Ok(())
}
