//! The node's packet filter, in Knit's own nftables tables: host port mappings (DNAT), masquerading and egress gateways (SNAT),
//! anti-spoofing on the ports of the cluster bridge, and isolation of gateway addresses on overlay tunnels.
//!
//! Both tables change in one transaction. The last applied tables are remembered, so that a pod costs a few set elements. Both tables are
//! replaced as a whole on every resync and whenever the kernel rejects an incremental update. No other table is touched.
//!
//! On kernels that support it, TCP between guarded ports takes the eBPF fast path past the bridge and these tables. It is updated after the
//! tables, and no attach waits for it.
//!
//! A host port is also reachable through the node's IPv4 loopback. For that, packets of 127.0.0.0/8 may leave through the cluster bridge and
//! their replies return through it (`route_localnet` of the bridge); a separate chain drops everything else that a pod sends to the node's
//! loopback. Therefore the chain is created before the sysctl is set, and removed after it is cleared.

mod anti_spoofing;
mod egress;
mod fast_path;
mod inet_table;

use std::sync::{Arc, Mutex, PoisonError};

use knit_engine::packet_filter::PacketFilter;
use knit_kernel::Kernel;
use knit_kernel::error::Error;
use knit_kernel::nft::Table;
use knit_model::problem::{Problem, Reason};
use knit_model::{IfName, sysctl};

pub(crate) use fast_path::update as update_fast_path;

/// The last applied packet filter, shared by all executors.
#[derive(Clone, Default)]
pub(crate) struct AppliedFilter(Arc<Mutex<Option<Filter>>>);

struct Filter {
    tables: [Table; 2],
    loopback: Option<Loopback>,
}

/// Whether the node's loopback and the pods of a bridge can communicate.
#[derive(PartialEq, Eq)]
struct Loopback {
    bridge: IfName,
    is_reachable: bool,
}

/// Applies the packet filter.
pub(crate) fn apply(kernel: &mut Kernel, last: &AppliedFilter, all: &PacketFilter) -> Result<(), Problem> {
    apply_filter(kernel, last, all).map_err(|why| problem(&why))?;
    if let Some(rules) = &all.egress {
        egress::move_connections(kernel, rules);
    }
    Ok(())
}

fn apply_filter(kernel: &mut Kernel, last: &AppliedFilter, all: &PacketFilter) -> Result<(), Error> {
    let mut last = last.0.lock().unwrap_or_else(PoisonError::into_inner);
    // After an error the kernel's state is unprevious.
    let previous = last.take().filter(|_| !all.force);
    let is_reachable = !all.host_ports.is_empty();
    let loopback = all.bridge.clone().map(|bridge| Loopback { bridge, is_reachable });
    let new = Filter {
        tables: [inet_table::build(all), anti_spoofing::build(&all.guarded_ports, &all.overlay_ports)],
        loopback,
    };
    if is_reachable {
        new.apply_tables(kernel, previous.as_ref())?;
        new.apply_loopback(kernel, previous.as_ref())?;
    } else {
        new.apply_loopback(kernel, previous.as_ref())?;
        new.apply_tables(kernel, previous.as_ref())?;
    }
    *last = Some(new);
    Ok(())
}

impl Filter {
    fn apply_tables(&self, kernel: &mut Kernel, previous: Option<&Self>) -> Result<(), Error> {
        match previous.map(|previous| kernel.update_tables(&previous.tables, &self.tables)) {
            Some(Ok(())) => Ok(()),
            // The first time, or after a change by others.
            Some(Err(_)) | None => kernel.replace_tables(&self.tables),
        }
    }

    fn apply_loopback(&self, kernel: &mut Kernel, previous: Option<&Self>) -> Result<(), Error> {
        let Some(Loopback { bridge, is_reachable }) = &self.loopback else { return Ok(()) };
        if previous.is_some_and(|previous| previous.loopback == self.loopback) {
            return Ok(());
        }
        let key = sysctl::link_path(bridge, "ipv4/route_localnet");
        kernel.write_host_sysctl(&key, if *is_reachable { "1" } else { "0" })
    }
}

fn problem(why: &Error) -> Problem {
    let reason =
        if why.unsupported_feature().is_some() { Reason::KernelUnsupported } else { Reason::KernelError };
    let message = format!("nftables update failed: {why}");
    Problem::new("", reason, message)
}
