//! The node's part of the way to and from pods, in Knit's own nftables tables: ports of the node that lead to pods, the way out
//! of the cluster, what may come in by the ports of the cluster's bridge, and what stays out of the tunnels of networks.
//!
//! Both tables are replaced as a whole in one transaction, so that there is no moment with half of it. Nothing else in the packet
//! filter is touched.
//!
//! Where a kernel can do it, TCP of guarded ports with other pods goes past the bridge and these tables.
//!
//! A port is open on the node's IPv4 loopback too. For that, packets of 127.0.0.0/8 may leave by the cluster's bridge, and
//! their answers come back by it (`route_localnet` of that bridge); a chain of its own keeps everything else that a pod
//! sends to the node's loopback out. So the chain is there before the sysctl, and goes after it.

mod direct;
mod egress;
mod guard;
mod table;

use knit_engine::forward::Forwarding;
use knit_kernel::Kernel;
use knit_kernel::error::Error;
use knit_kernel::redirect::Redirect;
use knit_model::IfName;
use knit_model::problem::{Problem, Reason};

/// Has exactly these.
pub(crate) fn apply(
    kernel: &mut Kernel,
    all: &Forwarding,
    redirect: Option<&Redirect>,
) -> Result<(), Problem> {
    filter(kernel, all)?;
    if let Some(leaving) = &all.egress {
        egress::move_connections(kernel, leaving);
    }
    if let Some(redirect) = redirect {
        direct::apply(redirect, kernel, all);
    }
    Ok(())
}

fn filter(kernel: &mut Kernel, all: &Forwarding) -> Result<(), Problem> {
    let Forwarding { forwards, bridge, .. } = all;
    let tables = [table::of(all), guard::of(&all.guarded, &all.gates)];
    let replace = |kernel: &mut Kernel| kernel.replace_tables(&tables).map_err(|why| failed(&why));
    if forwards.is_empty() {
        open_loopback(kernel, bridge.as_ref(), false)?;
        return replace(kernel);
    }
    replace(kernel)?;
    open_loopback(kernel, bridge.as_ref(), true)
}

/// Lets the node's loopback and the pods on a bridge talk, or not.
fn open_loopback(kernel: &mut Kernel, bridge: Option<&IfName>, open: bool) -> Result<(), Problem> {
    let Some(bridge) = bridge else { return Ok(()) };
    let key = format!("net/ipv4/conf/{bridge}/route_localnet");
    kernel.write_host_sysctl(&key, if open { "1" } else { "0" }).map_err(|why| failed(&why))
}

fn failed(why: &Error) -> Problem {
    let reason = if why.lack().is_some() { Reason::KernelLacks } else { Reason::KernelRefused };
    let message = format!("the node's part of the way to and from pods cannot be changed: {why}");
    Problem { field: String::new(), reason, message }
}
