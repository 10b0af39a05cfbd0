//! The status of the node itself: its NICs, bridges, kernel and networks.
//!
//! The engine's part is computed on every change of the state. NICs are listed when Uplinks change and every half minute, to detect link
//! changes. Kernel features are probed once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use knit_crds::states::{
    AppliedObject, KernelState, LinkSupport, NetworkCapacity, NodeBridge, NodeNetworkStatus, UplinkState,
};
use knit_engine::{State, Unit};
use knit_model::intent::IntentSpec;
use knit_model::problem::Reason;
use knit_model::report::AppliedReport;
use knit_model::{IfName, Kind};
use tokio::time::Instant;

use crate::capacity::NetworkAddresses;
use crate::host::{self, Feature, FeatureState, Nic};

/// How often NICs are listed.
const NIC_INTERVAL: Duration = Duration::from_secs(30);

/// The host links opened by Uplinks, with the names of the objects.
pub(super) type Opened = BTreeMap<IfName, String>;

/// The engine's part of the status, without quota problems of the namespaces whose claims are in flight.
pub(super) fn of(state: &State) -> (NodeNetworkStatus, Opened) {
    let claiming = state.namespaces_awaiting_quota();
    let bridges = state.units.iter().filter_map(|(unit, unit_state)| match (unit, &unit_state.bridge) {
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
        objects: settled(state.node_states(), &claiming).iter().map(AppliedObject::of).collect(),
        networks: NetworkAddresses::all(state).into_iter().map(capacity).collect(),
    };
    let intents =
        state.objects.iter().flat_map(|(key, object)| object.intents.iter().map(move |intent| (key, intent)));
    let opened = intents.filter_map(|(key, intent)| match &intent.spec {
        IntentSpec::Uplink(uplink) => Some((uplink.link.clone(), key.name.clone())),
        _ => None,
    });
    (status, opened.collect())
}

/// Removes quota problems of these namespaces, and objects that have nothing else to report.
fn settled(mut all: Vec<AppliedReport>, claiming: &BTreeSet<&str>) -> Vec<AppliedReport> {
    for one in all.iter_mut().filter(|one| claiming.contains(one.object.namespace.as_str())) {
        one.problems.retain(|problem| problem.reason != Reason::QuotaExceeded);
    }
    all.retain(|one| one.ready || !one.problems.is_empty() || !one.warnings.is_empty());
    all
}

/// The kernel's part of the status.
#[derive(Default)]
pub(super) struct KernelFacts {
    kernel: Option<KernelState>,
    nics: Vec<Nic>,
    /// The links of Uplinks at the time of the last list, and that time.
    listed: Option<(BTreeSet<IfName>, Instant)>,
}

impl KernelFacts {
    /// Adds the kernel's part, reading it where that is due.
    pub(super) async fn complete(&mut self, status: &mut NodeNetworkStatus, opened: &Opened) {
        if self.kernel.is_none() {
            match host::kernel_features().await {
                Ok((release, features)) => self.kernel = Some(kernel(release, &features)),
                Err(why) => tracing::warn!(error = %why, "cannot probe the kernel's features"),
            }
        }
        let named: BTreeSet<IfName> = opened.keys().cloned().collect();
        let is_due =
            self.listed.as_ref().is_none_or(|(then, at)| *then != named || at.elapsed() >= NIC_INTERVAL);
        if is_due {
            match host::nics(named.clone()).await {
                Ok(nics) => self.nics = nics,
                Err(why) => tracing::warn!(error = %why, "cannot list the node's NICs"),
            }
            self.listed = Some((named, Instant::now()));
        }
        status.kernel = self.kernel.clone().unwrap_or_default();
        status.uplinks = self.nics.iter().map(|nic| uplink(nic, opened)).collect();
    }

    /// When to read the kernel again.
    pub(super) fn due(&self) -> Instant {
        self.listed.as_ref().map_or_else(Instant::now, |(_, at)| *at + NIC_INTERVAL)
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

/// The kernel's release and its supported link kinds.
fn kernel(release: String, features: &[Feature]) -> KernelState {
    let links = kinds(features);
    let lacks = links.iter().filter(|link| !link.present).map(|link| link.kind.clone()).collect();
    KernelState { release, lacks, links }
}

fn kinds(features: &[Feature]) -> Vec<LinkSupport> {
    let kinds = Kind::names().filter_map(|kind| {
        // Moving a NIC into a pod requires only namespaces.
        let name = if kind == "host-device" { "netns" } else { kind };
        let feature = features.iter().find(|feature| feature.name == name)?;
        let why = match &feature.state {
            FeatureState::Present { .. } => String::new(),
            FeatureState::Absent { reason: why, .. } | FeatureState::Unknown { reason: why, .. } => {
                why.clone()
            }
        };
        Some(LinkSupport { kind: kind.to_owned(), present: feature.state.is_present(), why })
    });
    kinds.collect()
}

fn capacity(capacity: NetworkAddresses) -> NetworkCapacity {
    // Numbers of the API are signed.
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
    use knit_model::Problem;
    use knit_model::provenance::ObjectRef;

    use super::*;

    #[tokio::test]
    async fn every_unsupported_kind_of_link_has_a_reason() {
        let (release, features) = host::kernel_features().await.unwrap();
        let kinds = kernel(release, &features).links;
        assert_eq!(kinds.len(), Kind::names().count());
        for kind in kinds {
            assert_eq!(kind.present, kind.why.is_empty(), "{kind:?}");
        }
    }

    #[test]
    fn a_quota_problem_is_no_problem_while_its_claim_is_in_flight() {
        let with = |namespace: &str, reasons: &[Reason]| AppliedReport {
            object: ObjectRef {
                kind: "Bridge".to_owned(),
                namespace: namespace.to_owned(),
                name: "b".to_owned(),
                uid: String::new(),
                generation: 1,
            },
            ready: false,
            attached: None,
            interfaces: Vec::new(),
            items: Vec::new(),
            bridges: Vec::new(),
            problems: reasons.iter().map(|reason| Problem::new("", *reason, "QuotaExceeded")).collect(),
            warnings: Vec::new(),
        };
        let all = vec![
            with("claiming", &[Reason::QuotaExceeded]),
            with("claiming", &[Reason::QuotaExceeded, Reason::NotOwned]),
            with("settled", &[Reason::QuotaExceeded]),
        ];
        let expected = [with("claiming", &[Reason::NotOwned]), with("settled", &[Reason::QuotaExceeded])];
        assert_eq!(settled(all, &BTreeSet::from(["claiming"])), expected);
    }

    #[test]
    fn a_nic_names_the_uplink_that_opens_it() {
        let nic = Nic { name: "eth1".parse().unwrap(), mac: None, mtu: 9000, up: true, speed: Some(1000) };
        assert_eq!(uplink(&nic, &Opened::new()).opened_by, None);
        let opened = Opened::from([("eth1".parse().unwrap(), "wan".to_owned())]);
        assert_eq!(uplink(&nic, &opened).opened_by.as_deref(), Some("wan"));
    }
}
