//! What happens to nodes in their lives: a part that ends and comes again, and a node that reboots.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cgroups::{self, Membership};
use super::layout::node_name;
use super::state::{Cluster, Network};
use super::{api, control, daemon, links, node, reference};
use knit_dev::progress::Step;

/// What was told to end has this long.
const LIMIT: Duration = Duration::from_secs(30);

/// Ends a containerd or a kubelet, as a crash would, and starts it again. Containers live on without them.
pub fn restart(cluster: &Cluster, part: &str) -> Result<()> {
    let start = cluster.node_numbers().find_map(|number| {
        let start: fn(&Cluster, u8) -> Result<()> = if node::containerd_part(number) == part {
            node::start_containerd
        } else if node::kubelet_part(number) == part {
            node::start_kubelet
        } else {
            return None;
        };
        Some((number, start))
    });
    let (number, start) =
        start.with_context(|| format!("{part} is no containerd and no kubelet of this cluster"))?;
    stop(cluster, part)?;
    let _membership = Membership::enter(&cluster.names().cgroup())?;
    start(cluster, number)
}

/// Ends a part of a cluster, as a crash would.
fn stop(cluster: &Cluster, part: &str) -> Result<()> {
    let pid = daemon::alive(cluster, part)?.pid;
    end(&mut || {
        Ok(if daemon::find(cluster, part).is_some_and(|one| one.is_alive()) { vec![pid] } else { vec![] })
    })?;
    daemon::forget(cluster, part)
}

/// Ends whoever would take pods away that only a container runtime knows: the kubelets; and the controllers, which would
/// otherwise tell everybody that the nodes have gone.
pub fn leave_to_runtimes(cluster: &Cluster) -> Result<()> {
    stop(cluster, control::CONTROLLERS)?;
    cluster.node_numbers().try_for_each(|number| stop(cluster, &node::kubelet_part(number)))
}

/// Has a node reboot: all that runs there ends at once, its namespaces and links go, and what lies in `/run`. Then it comes up
/// again, with the same disk, the same addresses and another boot id.
pub fn reboot(cluster: &Cluster, number: u8) -> Result<()> {
    let can_reboot = matches!(cluster.network, Network::Reference | Network::Knit);
    ensure!(can_reboot, "only a node on the reference network, or with Knit as its network, can reboot");
    let step = Step::start(format!("{} goes down", node_name(number)));
    let seen = api::nodes(cluster)?;
    let holder = node::holder(cluster, number)?;
    let space = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let home = space(holder.pid).context("the node has no namespaces")?;
    let cgroup = cluster.names().cgroup();
    let inside = format!("{cgroup}/{}", node_name(number));
    end(&mut || {
        let mut found = cgroups::processes(&cgroup)?;
        found.retain(|pid| space(*pid).as_ref() == Some(&home));
        found.extend(cgroups::processes(&inside)?);
        Ok(found)
    })?;
    let parts = [
        node::holder_part(number),
        node::containerd_part(number),
        node::kubelet_part(number),
        reference::proxy_part(number),
    ];
    parts.iter().try_for_each(|part| daemon::forget(cluster, part))?;
    for gone in ["run", "arranged"] {
        let path = cluster.node_folder(number, gone);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    wait_for_port(cluster, number)?;
    // The kubelet would wait for each container that it finds here.
    cgroups::remove(&format!("{inside}/kubepods"), LIMIT)?;
    step.done();

    let step = Step::start(format!("{} comes up", node_name(number)));
    let _membership = Membership::enter(&cgroup)?;
    node::make(cluster, number)?;
    node::start_containerd(cluster, number)?;
    reference::connect_again(cluster, &seen, number)?;
    node::start_kubelet(cluster, number)?;
    step.done();
    Ok(())
}

/// Kills what is found, until nothing is.
fn end(find: &mut dyn FnMut() -> Result<Vec<i32>>) -> Result<()> {
    let began = Instant::now();
    loop {
        let found = find()?;
        if found.is_empty() {
            return Ok(());
        }
        if began.elapsed() > LIMIT {
            bail!("processes do not end: {found:?}");
        }
        for pid in found {
            match kill(Pid::from_raw(pid), Signal::SIGKILL) {
                Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
                Err(error) => return Err(error).with_context(|| format!("cannot end process {pid}")),
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The kernel takes the far end of a namespace's link away a moment after the namespace.
fn wait_for_port(cluster: &Cluster, number: u8) -> Result<()> {
    let (port, began) = (cluster.names().port(number), Instant::now());
    while links::of(&cluster.names())?.contains(&port) {
        ensure!(began.elapsed() < LIMIT, "link {port} does not go");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
