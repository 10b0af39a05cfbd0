//! What dialects and status need from the host's kernel, as plain data.
//!
//! Dialects (`kubernetes`, `services`, `standalone`, `nri`) never talk to the kernel: they call these functions, or the
//! node does while it handles their events, and get names, numbers and addresses. Changes are made only by executors.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
#[cfg(feature = "kubernetes")]
use std::sync::OnceLock;

use knit_engine::call::{AttachRequest, RequestedDevice};
use knit_kernel::connected_routes::{connected_routes, link_by_address};
use knit_kernel::counters::link_counters;
use knit_kernel::nft::ChainCounters;
use knit_kernel::{Netns, devices, features, nft};
use knit_model::connected_routes::ConnectedRoutes;
use knit_model::filter::TableFamily;
use knit_model::{IfName, Sandbox};
use tokio::task::{JoinError, spawn_blocking};

pub(crate) use knit_kernel::counters::LinkCounters;
#[cfg(feature = "kubernetes")]
pub(crate) use knit_kernel::counters::TrafficCounters;
pub(crate) use knit_kernel::features::Feature;
#[cfg(feature = "kubernetes")]
pub(crate) use knit_kernel::features::FeatureState;
pub(crate) use knit_kernel::nics::Nic;

use crate::error::{Error, Result};

/// A link of the host that has an address of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddressedLink {
    /// Its name.
    pub(crate) name: IfName,
    /// Its MTU, unless the link was deleted meanwhile.
    pub(crate) mtu: Option<u32>,
}

/// Addresses of the node, each with its link. An address that no link has is missing.
pub(crate) type NodeAddresses = BTreeMap<IpAddr, AddressedLink>;

/// The host's links as the cluster network needs them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostLinks {
    /// The node's own addresses.
    pub(crate) addresses: NodeAddresses,
    /// The connected routes of the main routing table.
    pub(crate) routes: ConnectedRoutes,
}

impl HostLinks {
    /// Reads the main routing table, and the links of these addresses.
    pub(crate) async fn read(own: Vec<IpAddr>) -> Result<Self> {
        blocking(move || {
            let host = Netns::current()?;
            Ok(Self { addresses: addresses_in(&host, &own), routes: connected_routes(&host)? })
        })
        .await
    }
}

/// The links of these addresses.
pub(crate) async fn node_addresses(own: Vec<IpAddr>) -> Result<NodeAddresses> {
    blocking(move || Ok(addresses_in(&Netns::current()?, &own))).await
}

fn addresses_in(host: &Netns, own: &[IpAddr]) -> NodeAddresses {
    let links = own.iter().filter_map(|address| {
        let name = link_by_address(host, *address).ok().flatten()?;
        let mtu = std::fs::read_to_string(format!("/sys/class/net/{name}/mtu"));
        let mtu = mtu.ok().and_then(|text| text.trim().parse().ok());
        Some((*address, AddressedLink { name, mtu }))
    });
    links.collect()
}

/// The host's NICs, and the links in `also` of any kind.
pub(crate) async fn nics(also: BTreeSet<IfName>) -> Result<Vec<Nic>> {
    blocking(move || Ok(knit_kernel::nics::nics(&Netns::current()?, &also)?)).await
}

/// The kernel's release and its probed features.
pub(crate) async fn kernel_features() -> Result<(String, Vec<Feature>)> {
    blocking(|| {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok((release.trim().to_owned(), features::detect()))
    })
    .await
}

/// The traffic counters of a sandbox's interfaces; `None` if the sandbox is gone, replaced, or has no namespace.
pub(crate) fn interface_counters(sandbox: &Sandbox) -> Option<BTreeMap<IfName, LinkCounters>> {
    // A virtual machine has no namespace.
    let netns = Netns::open(Path::new(&sandbox.netns)).ok()?;
    link_counters(&netns, sandbox.instance.cookie).ok()?
}

/// What the rules with comments in these chains of the table `inet knit` have counted, read chain by chain.
pub(crate) async fn chain_counters(chains: Vec<String>) -> Result<BTreeMap<String, ChainCounters>> {
    blocking(move || {
        let (host, table) = (Netns::current()?, TableFamily::Inet.table());
        Ok(nft::chain_counters(&host, &table, chains.iter().map(String::as_str))?)
    })
    .await
}

/// Whether the packet filter can log packets. It is tried once, when a policy first requests it; a warning says if it fails.
#[cfg(feature = "kubernetes")]
pub(crate) fn can_log_drops() -> bool {
    static CAN_LOG: OnceLock<bool> = OnceLock::new();
    *CAN_LOG.get_or_init(|| match nft::can_log() {
        Ok(()) => true,
        Err(why) => {
            tracing::warn!(error = %why, "packets that network policies drop cannot be logged");
            false
        }
    })
}

/// Finds the NICs of the devices that a request names.
pub(crate) fn find_nics(attach: &mut AttachRequest) {
    let requests = attach.interfaces.iter_mut().map(|(_, _, request)| request);
    requests.filter_map(|request| request.device.as_mut()).for_each(find_nic);
}

fn find_nic(device: &mut RequestedDevice) {
    let nic = devices::nic_of(Path::new(devices::SYSFS), &device.id);
    device.nic = Some(nic.map_err(|why| why.to_string()));
}

/// Runs a function that reads the kernel on a thread for blocking work.
async fn blocking<T: Send + 'static>(read: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let failed =
        |why: JoinError| Error::Panicked { what: "read the host's kernel".to_owned(), why: why.to_string() };
    spawn_blocking(read).await.map_err(failed)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requested_device_gets_its_nic_or_the_reason_why_it_has_none() {
        let mut device = RequestedDevice { id: "0000:ff:1f.6".to_owned(), nic: None };
        find_nic(&mut device);
        let why = device.nic.unwrap().unwrap_err();
        assert!(why.contains("device 0000:ff:1f.6 does not exist"), "{why}");
    }

    #[tokio::test]
    async fn an_address_of_the_node_has_a_link_and_others_have_none() {
        let (loopback, other) = ("127.0.0.1".parse().unwrap(), "192.0.2.77".parse().unwrap());
        let found = node_addresses(vec![loopback, other]).await.unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), [&loopback]);
        assert_eq!(found[&loopback].name.as_str(), "lo");
        assert!(found[&loopback].mtu.is_some());
        assert_eq!(HostLinks::read(vec![loopback]).await.unwrap().addresses, found);
    }
}
