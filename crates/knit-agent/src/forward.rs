//! The node's part of the way to and from pods, in Knit's own nftables tables: ports of the node that lead to pods, the way out
//! of the cluster, what may come in by the ports of the cluster's bridge, and what stays out of the tunnels of networks.
//!
//! Both tables change in one transaction, so that there is no moment with half of it. What was told last is remembered, so that a
//! pod that comes or goes is a few elements of sets; from time to time, and whenever the kernel does not take that, both tables
//! are replaced as a whole. Nothing else in the packet filter is touched.
//!
//! Where a kernel can do it, TCP of guarded ports with other pods goes past the bridge and these tables. That comes after the tables,
//! and no attach waits for it.
//!
//! A port is open on the node's IPv4 loopback too. For that, packets of 127.0.0.0/8 may leave by the cluster's bridge, and
//! their answers come back by it (`route_localnet` of that bridge); a chain of its own keeps everything else that a pod
//! sends to the node's loopback out. So the chain is there before the sysctl, and goes after it.

mod direct;
mod egress;
mod guard;
mod table;

use std::sync::{Arc, Mutex, PoisonError};

use knit_engine::forward::Forwarding;
use knit_kernel::Kernel;
use knit_kernel::error::Error;
use knit_kernel::nft::Table;
use knit_model::IfName;
use knit_model::problem::{Problem, Reason};

pub(crate) use direct::apply as direct;

/// What the host's packet filter was told last, by whichever hands.
#[derive(Clone, Default)]
pub(crate) struct LastFilter(Arc<Mutex<Option<Filter>>>);

struct Filter {
    tables: [Table; 2],
    loopback: Option<Loopback>,
}

/// Whether the node's loopback and the pods on a bridge can talk.
#[derive(PartialEq, Eq)]
struct Loopback {
    bridge: IfName,
    is_open: bool,
}

/// Has exactly these.
pub(crate) fn apply(kernel: &mut Kernel, last: &LastFilter, all: &Forwarding) -> Result<(), Problem> {
    filter(kernel, last, all).map_err(|why| failed(&why))?;
    if let Some(leaving) = &all.egress {
        egress::move_connections(kernel, leaving);
    }
    Ok(())
}

fn filter(kernel: &mut Kernel, last: &LastFilter, all: &Forwarding) -> Result<(), Error> {
    let mut last = last.0.lock().unwrap_or_else(PoisonError::into_inner);
    // After an error nobody knows what there is.
    let known = last.take().filter(|_| !all.anew);
    let is_open = !all.forwards.is_empty();
    let loopback = all.bridge.clone().map(|bridge| Loopback { bridge, is_open });
    let new = Filter { tables: [table::of(all), guard::of(&all.guarded, &all.gates)], loopback };
    if is_open {
        new.tell_tables(kernel, known.as_ref())?;
        new.tell_loopback(kernel, known.as_ref())?;
    } else {
        new.tell_loopback(kernel, known.as_ref())?;
        new.tell_tables(kernel, known.as_ref())?;
    }
    *last = Some(new);
    Ok(())
}

impl Filter {
    fn tell_tables(&self, kernel: &mut Kernel, known: Option<&Self>) -> Result<(), Error> {
        match known.map(|known| kernel.change_tables(&known.tables, &self.tables)) {
            Some(Ok(())) => Ok(()),
            // Somebody else has changed it, or it is the first time.
            Some(Err(_)) | None => kernel.replace_tables(&self.tables),
        }
    }

    fn tell_loopback(&self, kernel: &mut Kernel, known: Option<&Self>) -> Result<(), Error> {
        let Some(Loopback { bridge, is_open }) = &self.loopback else { return Ok(()) };
        if known.is_some_and(|known| known.loopback == self.loopback) {
            return Ok(());
        }
        let key = format!("net/ipv4/conf/{bridge}/route_localnet");
        kernel.write_host_sysctl(&key, if *is_open { "1" } else { "0" })
    }
}

fn failed(why: &Error) -> Problem {
    let reason = if why.lack().is_some() { Reason::KernelLacks } else { Reason::KernelRefused };
    let message = format!("the node's part of the way to and from pods cannot be changed: {why}");
    Problem { field: String::new(), reason, message }
}
