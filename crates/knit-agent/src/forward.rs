//! Ports of the node that lead to pods, and the way out of the cluster, in Knit's own nftables table.
//!
//! The whole table is replaced in one transaction, so that there is no moment with half of it. Nothing else in the packet
//! filter is touched.
//!
//! A port is open on the node's IPv4 loopback too. For that, packets of 127.0.0.0/8 may leave by the cluster's bridge, and
//! their answers come back by it (`route_localnet` of that bridge); a chain of its own keeps everything else that a pod
//! sends to the node's loopback out. So the chain is there before the sysctl, and goes after it.

mod table;

use knit_engine::forward::Forwarding;
use knit_kernel::Kernel;
use knit_kernel::error::Error;
use knit_model::IfName;
use knit_model::problem::{Problem, Reason};

/// Has exactly these.
pub(crate) fn apply(kernel: &mut Kernel, all: &Forwarding) -> Result<(), Problem> {
    let Forwarding { forwards, bridge, .. } = all;
    let table = table::of(all);
    let replace = |kernel: &mut Kernel| kernel.replace_tables(&[table]).map_err(|why| failed(&why));
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
    let message = format!("ports of the node and the way out of the cluster cannot be changed: {why}");
    Problem { field: "port_mappings".to_owned(), reason, message }
}
