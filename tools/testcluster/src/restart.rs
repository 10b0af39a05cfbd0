//! Restarts components and reboots nodes.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cgroups::{self, Membership};
use super::layout::node_name;
use super::state::{Cluster, Network};
use super::{api, control_plane, daemon, links, node, reference};
use knit_dev::progress::Step;

/// How long processes may take to end, and links and cgroups to vanish.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Kills a containerd, a kubelet or the API server and starts it again. Containers keep running.
pub fn restart(cluster: &Cluster, component: &str) -> Result<()> {
    if component == control_plane::API_SERVER {
        return restart_api_server(cluster);
    }
    let start = cluster.node_numbers().find_map(|number| {
        let start: fn(&Cluster, u8) -> Result<()> = if node::containerd_component(number) == component {
            node::start_containerd
        } else if node::kubelet_component(number) == component {
            node::start_kubelet
        } else {
            return None;
        };
        Some((number, start))
    });
    let (number, start) = start
        .with_context(|| format!("{component} is not a containerd, kubelet or API server of this cluster"))?;
    stop(cluster, component)?;
    let _membership = Membership::enter(&cluster.names().cgroup())?;
    start(cluster, number)
}

/// Starts the API server again, whether it still runs or was killed.
fn restart_api_server(cluster: &Cluster) -> Result<()> {
    match daemon::find(cluster, control_plane::API_SERVER).filter(|found| found.is_alive()) {
        Some(_) => stop(cluster, control_plane::API_SERVER)?,
        None => daemon::remove_pid_file(cluster, control_plane::API_SERVER)?,
    }
    let _membership = Membership::enter(&cluster.names().cgroup())?;
    control_plane::start_api_server(cluster)?;
    control_plane::wait_for_api(cluster)
}

/// Kills a component.
pub fn stop(cluster: &Cluster, component: &str) -> Result<()> {
    let pid = daemon::running(cluster, component)?.pid;
    end(&mut || {
        Ok(if daemon::find(cluster, component).is_some_and(|one| one.is_alive()) {
            vec![pid]
        } else {
            vec![]
        })
    })?;
    daemon::remove_pid_file(cluster, component)
}

/// Stops the kubelets, which would delete pods that only the container runtime has, and the controller manager, which would
/// mark the nodes as unreachable.
pub fn stop_kubelets(cluster: &Cluster) -> Result<()> {
    stop(cluster, control_plane::CONTROLLER_MANAGER)?;
    cluster.node_numbers().try_for_each(|number| stop(cluster, &node::kubelet_component(number)))
}

/// Stops the controller manager and the scheduler: they would evict the pods of nodes without a kubelet.
pub fn stop_controllers(cluster: &Cluster) -> Result<()> {
    stop(cluster, control_plane::CONTROLLER_MANAGER)?;
    stop(cluster, control_plane::SCHEDULER)
}

/// Reboots a node: kills all its processes, which removes its namespaces and links, and clears its `/run`. Then starts it
/// again with the same disk, the same addresses and a new boot id.
pub fn reboot(cluster: &Cluster, number: u8) -> Result<()> {
    let can_reboot = matches!(cluster.network, Network::Reference | Network::Knit);
    ensure!(can_reboot, "only nodes of the networks `reference` and `knit` can reboot");
    let step = Step::start(format!("stop {}", node_name(number)));
    let nodes = api::nodes(cluster)?;
    let init = node::init(cluster, number)?;
    let mount_namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let node_namespace = mount_namespace(init.pid).context("the node has no namespaces")?;
    let cgroup = cluster.names().cgroup();
    let pods_cgroup = format!("{cgroup}/{}", node_name(number));
    end(&mut || {
        let mut found = cgroups::processes(&cgroup)?;
        found.retain(|pid| mount_namespace(*pid).as_ref() == Some(&node_namespace));
        found.extend(cgroups::processes(&pods_cgroup)?);
        Ok(found)
    })?;
    let components = [
        node::init_component(number),
        node::containerd_component(number),
        node::kubelet_component(number),
        reference::proxy_component(number),
    ];
    components.iter().try_for_each(|component| daemon::remove_pid_file(cluster, component))?;
    for name in ["run", "ready"] {
        let path = cluster.node_folder(number, name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    wait_for_port(cluster, number)?;
    // The kubelet would wait for each container that it finds here.
    cgroups::remove(&format!("{pods_cgroup}/kubepods"), TIMEOUT)?;
    step.done();

    let step = Step::start(format!("start {}", node_name(number)));
    let _membership = Membership::enter(&cgroup)?;
    node::create(cluster, number)?;
    node::start_containerd(cluster, number)?;
    reference::reconnect_node(cluster, &nodes, number)?;
    node::start_kubelet(cluster, number)?;
    step.done();
    Ok(())
}

/// Kills the processes that `find` returns until it returns none.
fn end(find: &mut dyn FnMut() -> Result<Vec<i32>>) -> Result<()> {
    let start = Instant::now();
    loop {
        let found = find()?;
        if found.is_empty() {
            return Ok(());
        }
        if start.elapsed() > TIMEOUT {
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

/// The kernel deletes the peer of a veth a moment after the namespace of its other end.
fn wait_for_port(cluster: &Cluster, number: u8) -> Result<()> {
    let (port, start) = (cluster.names().port(number), Instant::now());
    while links::list(&cluster.names())?.contains(&port) {
        ensure!(start.elapsed() < TIMEOUT, "link {port} is not deleted");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
