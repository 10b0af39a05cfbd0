//! Bridge ports of pods: what each may send, and which may use the eBPF fast path.

use std::collections::BTreeSet;
use std::sync::Arc;

use knit_model::intent::{IntentSpec, RoutingEntry};
use knit_model::link::{LinkKind, Master, Veth};
use knit_model::report::InterfaceReport;
use knit_model::{IfName, NetState, Sandbox, SandboxId, Scope};

use super::sources::PortSources;
use super::{FastPath, GuardedPort, elements};
use crate::event::Unit;
use crate::policies;
use crate::resolve::{self, Resolved};
use crate::state::{ObjectKey, State, UnitState};
use crate::unit_state::{Source, sources};

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

/// The ports of a unit that may use the fast path, with the addresses that its applied elements allow. Only a port whose
/// anti-spoofing is applied does, and no port of a pod with policies.
pub(super) fn fast_path_ports(state: &State, unit_state: &UnitState) -> Vec<GuardedPort> {
    if policies::restricts(unit_state) {
        return Vec::new();
    }
    let reports = unit_state.interfaces.iter().map(|(_, report)| report);
    let links =
        reports.filter(|report| may_skip_bridge(state, report)).filter_map(|report| report.peer.as_ref());
    let ports = links.filter_map(|link| elements::port_of(&unit_state.filter, link));
    ports.filter(|port| port.macs.len() == 1).map(|port| GuardedPort { fast_path: true, ..port }).collect()
}

/// Whether the host end of an interface is a port of the fast path's bridge, and the fast path would skip nothing of it.
fn may_skip_bridge(state: &State, report: &InterfaceReport) -> bool {
    let bridge = state.packet_filter.desired.fast_path_bridge.as_ref();
    let misses_nothing = !report.limited && report.vlans.is_none();
    bridge.is_some() && report.master.as_ref() == bridge && report.kind == Veth::NAME && misses_nothing
}

/// Whether the ports of a bridge have anti-spoofing.
fn is_guarded(state: &State, bridge: &IfName) -> bool {
    let is_cluster = state.cluster().is_some_and(|cluster| cluster.bridge == bridge);
    !is_cluster || state.packet_filter.desired.fast_path_bridge.as_ref() == Some(bridge)
}

/// The sandbox's guarded ports, unless an admin allows its namespace to spoof, and warnings about addresses that they drop. On
/// the bridges of its own namespace a pod may be a DHCP server; and a router forwards packets of others there, so only its MAC
/// address is checked.
pub(super) fn guarded_ports(
    state: &State,
    id: &SandboxId,
    resolved: &Resolved,
) -> (BTreeSet<GuardedPort>, BTreeSet<(ObjectKey, String)>) {
    let (mut ports, mut warnings) = (BTreeSet::new(), BTreeSet::new());
    let guarded = state.sandboxes.get(id).filter(|_| !state.namespace_options(id).allow_spoofing);
    let Some(sandbox) = guarded else { return (ports, warnings) };
    let unit_state = &resolved.unit_state;
    let cluster = state.cluster().map(|cluster| cluster.bridge_key());
    let own = unit_state.used_bridges.iter().filter(|key| key.namespace == sandbox.namespace);
    let own = own.filter(|key| cluster.as_ref() != Some(*key)).map(|key| resolve::bridge_name(state, key));
    let own: BTreeSet<IfName> = own.collect();
    let forwards = !own.is_empty() && is_router(state, sandbox);
    for (_, report) in &unit_state.interfaces {
        let (Some(link), Some(bridge)) = (&report.peer, &report.master) else { continue };
        if !is_guarded(state, bridge) {
            continue;
        }
        let may_serve = own.contains(bridge);
        let mut port = GuardedPort {
            link: link.clone(),
            macs: BTreeSet::new(),
            addresses: BTreeSet::new(),
            only_macs: true,
            may_serve,
            fast_path: false,
        };
        let stack = stack_on(&resolved.desired.state, &Scope::Sandbox(id.clone()), report, unit_state);
        let allowed = PortSources { state, sandbox, bridge, port: report };
        for (object, stacked) in unit_state.interfaces.iter().filter(|(_, one)| stack.contains(&one.name)) {
            for source in sources(stacked) {
                if matches!(source, Source::Address(_)) {
                    if may_serve && forwards {
                        continue;
                    }
                    port.only_macs = false;
                }
                if let Err(refusal) = allowed.check(stacked, source) {
                    let (name, pod) = (&stacked.name, sandbox.title());
                    let warning =
                        format!("interface {name} of pod {pod}: {refusal}: packets from it are dropped");
                    warnings.insert((object.clone(), warning));
                    continue;
                }
                match source {
                    Source::Mac(mac) => port.macs.insert(mac),
                    Source::Address(address) => port.addresses.insert(address),
                };
            }
        }
        port.fast_path = may_skip_bridge(state, report) && port.macs.len() == 1;
        ports.insert(port);
    }
    (ports, warnings)
}

/// The interfaces of a pod whose frames leave through a port: the port's own, and those stacked on it. The packets of a tunnel are
/// encapsulated, with an address of the interface below.
fn stack_on(
    desired: &NetState,
    scope: &Scope,
    port: &InterfaceReport,
    unit_state: &UnitState,
) -> BTreeSet<IfName> {
    let is_on = |upper: &IfName, lower: &IfName| {
        let Some(link) = desired.link(scope, upper) else { return false };
        let is_port = || {
            let lower = desired.link(scope, lower).and_then(|lower| lower.attrs.master.as_ref());
            link.kind.configures_ports() && lower.and_then(Master::name) == Some(upper)
        };
        let is_parent = link.parent_scope.is_none() && link.kind.parent() == Some(lower);
        is_parent && link.kind.overhead() == 0 || is_port()
    };
    let mut stack = BTreeSet::from([port.name.clone()]);
    loop {
        let others = unit_state.interfaces.iter().map(|(_, one)| &one.name);
        let above =
            others.filter(|name| !stack.contains(*name) && stack.iter().any(|lower| is_on(name, lower)));
        let above: Vec<IfName> = above.cloned().collect();
        if above.is_empty() {
            return stack;
        }
        stack.extend(above);
    }
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
