//! Bridge ports of pods: what each may send, and which may use the eBPF fast path.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;
use knit_model::intent::{IntentSpec, RoutingEntry};
use knit_model::link::{LinkKind, Veth};
use knit_model::report::InterfaceReport;
use knit_model::{IfName, Mac, Sandbox, SandboxId};

use super::{FastPath, GuardedPort, elements};
use crate::event::Unit;
use crate::resolve;
use crate::state::{BridgeKey, ObjectKey, State, UnitState};

/// Whether another unit has a port on the fast path.
pub(super) fn has_other_fast_path(state: &State, unit: &Unit) -> bool {
    let mut others = state.units.iter().filter(|(other, _)| *other != unit);
    others.any(|(_, unit_state)| !fast_path_ports(state, unit_state).is_empty())
}

/// The whole fast path.
pub(super) fn fast_path(state: &State) -> FastPath {
    let desired = &state.packet_filter.desired;
    FastPath {
        ports: state.units.values().flat_map(|unit_state| fast_path_ports(state, unit_state)).collect(),
        bridge: desired.features.bridge.clone(),
        node_routes: Arc::clone(&desired.node_routes),
    }
}

/// The ports of a unit that may use the fast path. Only a port whose anti-spoofing is applied does.
pub(super) fn fast_path_ports(state: &State, unit_state: &UnitState) -> Vec<GuardedPort> {
    let is_applied = |port: &GuardedPort| unit_state.filter.contains_key(&elements::guarded_port(&port.link));
    let ports = ports(state, &unit_state.interfaces).into_iter();
    ports.filter(|port| port.fast_path && is_applied(port)).collect()
}

/// The sandbox's guarded ports, unless an admin allows its namespace to spoof. On the bridges of its own namespace a pod may
/// be a DHCP server; and a router forwards packets of others there, so only its MAC address is checked.
pub(super) fn guarded_ports(
    state: &State,
    id: &SandboxId,
    used_bridges: &BTreeSet<BridgeKey>,
    interfaces: &[(ObjectKey, InterfaceReport)],
) -> BTreeSet<GuardedPort> {
    if state.namespace_options(id).allow_spoofing {
        return BTreeSet::new();
    }
    let Some(sandbox) = state.sandboxes.get(id) else { return BTreeSet::new() };
    let cluster = state.cluster().map(|cluster| cluster.bridge_key());
    let own = used_bridges.iter().filter(|key| key.namespace == sandbox.namespace);
    let own = own.filter(|key| cluster.as_ref() != Some(*key)).map(|key| resolve::bridge_name(state, key));
    let own: BTreeSet<IfName> = own.collect();
    let forwards = !own.is_empty() && is_router(state, sandbox);
    let is_own = |port: &GuardedPort| {
        let mut reports = interfaces.iter().map(|(_, report)| report);
        let report = reports.find(|report| report.peer.as_ref() == Some(&port.link));
        report.and_then(|report| report.master.as_ref()).is_some_and(|master| own.contains(master))
    };
    let permitted = |mut port: GuardedPort| {
        port.may_serve = is_own(&port);
        if port.may_serve && forwards {
            port.addresses.clear();
        }
        port
    };
    ports(state, interfaces).into_iter().map(permitted).collect()
}

/// Whether an object enables forwarding in the pod.
pub(super) fn is_router(state: &State, sandbox: &Sandbox) -> bool {
    let forwards = |name: &str, value: &str| {
        let is_forwarding = name == "net/ipv4/ip_forward" || name.ends_with("/forwarding");
        is_forwarding && value.trim() != "0"
    };
    let intents = state.objects_selecting(sandbox).flat_map(|stored| {
        let namespace = stored.object.namespace.as_str();
        stored.intents.iter().map(move |intent| (namespace, &intent.spec))
    });
    let mut intents =
        intents.filter(|(namespace, spec)| spec.pods().is_some_and(|pods| pods.matches(namespace, sandbox)));
    intents.any(|(_, spec)| match spec {
        IntentSpec::Routing(routing) => {
            matches!(&routing.entry, RoutingEntry::Sysctl(sysctl) if forwards(&sysctl.key, &sysctl.value))
        }
        IntentSpec::Interface(interface) => {
            interface.sysctls.iter().any(|(name, value)| forwards(name, value))
        }
        _ => false,
    })
}

/// The bridge ports of interfaces. Interfaces without a host end are stacked on such a port or share it, so their addresses
/// are allowed on each port.
pub(super) fn ports(state: &State, interfaces: &[(ObjectKey, InterfaceReport)]) -> BTreeSet<GuardedPort> {
    let cluster = state.cluster().map(|cluster| cluster.bridge);
    let fast_path_bridge = state.packet_filter.desired.fast_path_bridge.as_ref();
    let is_guarded = |bridge: &IfName| cluster != Some(bridge) || fast_path_bridge == Some(bridge);
    let is_internal = |report: &&InterfaceReport| report.peer.is_none();
    let internal: Vec<&InterfaceReport> =
        interfaces.iter().map(|(_, report)| report).filter(is_internal).collect();
    let ports = interfaces.iter().filter(|(_, report)| report.master.as_ref().is_some_and(is_guarded));
    ports
        .filter_map(|(_, report)| {
            let own = || internal.iter().copied().chain([report]);
            let macs: BTreeSet<Mac> = own().filter_map(|report| report.mac).collect();
            let misses_nothing = !report.limited && report.vlans.is_none();
            let on_fast_path = report.master.as_ref() == fast_path_bridge;
            Some(GuardedPort {
                link: report.peer.clone()?,
                may_serve: false,
                fast_path: on_fast_path && report.kind == Veth::NAME && macs.len() == 1 && misses_nothing,
                macs,
                addresses: own().flat_map(|report| &report.addresses).map(IpNet::addr).collect(),
            })
        })
        .collect()
}
