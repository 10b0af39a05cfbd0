//! What there is to say about the node itself: its NICs, its bridges, its kernel, its networks.
//!
//! What the loop knows is read whenever it may have changed. NICs are the kernel's to say: they are listed when Uplinks
//! change, and every half minute, because a cable may be pulled. The kernel's features are tried once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use knit_crds::states::{
    AppliedObject, KernelState, LinkSupport, NetworkCapacity, NodeBridge, NodeNetworkStatus, UplinkState,
};
use knit_engine::{State, Unit};
use knit_kernel::Netns;
use knit_kernel::features::{self, Feature, State as Found};
use knit_kernel::nics::{Nic, nics};
use knit_model::intent::IntentSpec;
use knit_model::problem::Reason;
use knit_model::{IfName, Kind};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::capacity::Capacity;

/// How often NICs are listed.
const NICS: Duration = Duration::from_secs(30);

/// What an Uplink opens: the host's link, and the object's name.
pub(super) type Opened = BTreeMap<IfName, String>;

/// What the loop knows about the node.
pub(super) fn of(state: &State) -> (NodeNetworkStatus, Opened) {
    let bridges = state.made.iter().filter_map(|(unit, made)| match (unit, &made.bridge) {
        (Unit::Bridge(key), Some(bridge)) => {
            Some(NodeBridge { namespace: key.namespace.clone(), ..NodeBridge::of(bridge) })
        }
        _ => None,
    });
    let status = NodeNetworkStatus {
        agent: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: KernelState::default(),
        uplinks: Vec::new(),
        bridges: bridges.collect(),
        objects: state.node_states().iter().map(AppliedObject::of).collect(),
        networks: Capacity::of_all(state).into_iter().map(room).collect(),
    };
    let intents =
        state.objects.iter().flat_map(|(key, object)| object.intents.iter().map(move |intent| (key, intent)));
    let opened = intents.filter_map(|(key, intent)| match &intent.spec {
        IntentSpec::Uplink(uplink) => Some((uplink.link.clone(), key.name.clone())),
        _ => None,
    });
    (status, opened.collect())
}

/// Leaves out what a quota refused in these namespaces: more of it is being claimed.
pub(super) fn pass_over_quotas(status: &mut NodeNetworkStatus, namespaces: &BTreeSet<&str>) {
    let refused = format!("{:?}", Reason::QuotaExceeded);
    let claiming = status.objects.iter_mut().filter(|one| namespaces.contains(one.namespace.as_str()));
    claiming.for_each(|one| one.problems.retain(|problem| problem.reason != refused));
    status.objects.retain(|one| one.ready || !one.problems.is_empty() || !one.warnings.is_empty());
}

/// What only the kernel can say about the node.
#[derive(Default)]
pub(super) struct Facts {
    kernel: Option<KernelState>,
    nics: Vec<Nic>,
    /// The links of Uplinks that NICs were listed for, and when.
    listed: Option<(BTreeSet<IfName>, Instant)>,
}

impl Facts {
    /// Puts in what the kernel says, which is asked where that is due.
    pub(super) async fn complete(&mut self, status: &mut NodeNetworkStatus, opened: &Opened) {
        if self.kernel.is_none() {
            self.kernel = spawn_blocking(kernel).await.ok();
        }
        let named: BTreeSet<IfName> = opened.keys().cloned().collect();
        let is_due = self.listed.as_ref().is_none_or(|(then, at)| *then != named || at.elapsed() >= NICS);
        if is_due {
            let also = named.clone();
            let listed = spawn_blocking(move || nics(&Netns::current()?, &also)).await;
            match listed {
                Ok(Ok(nics)) => self.nics = nics,
                Ok(Err(why)) => tracing::warn!(%why, "the node's NICs cannot be listed"),
                Err(why) => tracing::warn!(%why, "the node's NICs cannot be listed"),
            }
            self.listed = Some((named, Instant::now()));
        }
        status.kernel = self.kernel.clone().unwrap_or_default();
        status.uplinks = self.nics.iter().map(|nic| uplink(nic, opened)).collect();
    }

    /// When the kernel is to be asked again.
    pub(super) fn due(&self) -> Instant {
        self.listed.as_ref().map_or_else(Instant::now, |(_, at)| *at + NICS)
    }
}

fn uplink(nic: &Nic, opened: &Opened) -> UplinkState {
    UplinkState {
        name: nic.name.to_string(),
        hardware_addr: nic.mac.as_ref().map(ToString::to_string),
        mtu: nic.mtu,
        up: nic.up,
        speed: nic.speed,
        opened_by: opened.get(&nic.name).cloned(),
    }
}

/// The kernel and what it offers, by trying.
fn kernel() -> KernelState {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let links = kinds(&features::detect());
    let lacks = links.iter().filter(|link| !link.present).map(|link| link.kind.clone()).collect();
    KernelState { release: release.trim().to_owned(), lacks, links }
}

fn kinds(features: &[Feature]) -> Vec<LinkSupport> {
    let kinds = Kind::names().filter_map(|kind| {
        // To lend a NIC takes namespaces, and nothing else.
        let name = if kind == "host-device" { "netns" } else { kind };
        let feature = features.iter().find(|feature| feature.name == name)?;
        let why = match &feature.state {
            Found::Present { .. } => String::new(),
            Found::Absent { why, .. } | Found::Unknown { why, .. } => why.clone(),
        };
        Some(LinkSupport { kind: kind.to_owned(), present: feature.state.is_present(), why })
    });
    kinds.collect()
}

fn room(capacity: Capacity) -> NetworkCapacity {
    // The API has no larger numbers.
    let number = |addresses: u128| u64::try_from(addresses).unwrap_or(u64::MAX).min(i64::MAX.unsigned_abs());
    NetworkCapacity {
        total: number(capacity.total),
        free: number(capacity.free),
        namespace: capacity.namespace,
        name: capacity.network,
        family: if capacity.ipv6 { "IPv6" } else { "IPv4" }.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_link_is_told_with_the_reason_why_it_cannot_be_had() {
        let kinds = kernel().links;
        assert_eq!(kinds.len(), Kind::names().count());
        for kind in kinds {
            assert_eq!(kind.present, kind.why.is_empty(), "{kind:?}");
        }
    }

    #[test]
    fn a_nic_says_which_uplink_opens_it() {
        let nic = Nic { name: "eth1".parse().unwrap(), mac: None, mtu: 9000, up: true, speed: Some(1000) };
        assert_eq!(uplink(&nic, &Opened::new()).opened_by, None);
        let opened = Opened::from([("eth1".parse().unwrap(), "wan".to_owned())]);
        assert_eq!(uplink(&nic, &opened).opened_by.as_deref(), Some("wan"));
    }
}
