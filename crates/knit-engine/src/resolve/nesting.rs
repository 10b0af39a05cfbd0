//! Dependencies between interfaces of a pod (parent, master, VRF), and restrictions of uplinks.

use std::collections::BTreeMap;

use knit_model::intent::{IntentSpec, UplinkIntent};
use knit_model::link::{Kind, Link, Master};
use knit_model::problem::Reason;
use knit_model::{IfName, Scope};

use super::interface::{Builder, RequestedInterface};
use crate::object_index::{Feature, by_age};

/// Why an interface cannot be had.
type Rejection = (Reason, String);

/// Orders interfaces after those that they depend on; otherwise the order is stable. Cycles come last and fail because
/// their parent is missing.
pub(super) fn in_order(
    mut remaining: Vec<RequestedInterface>,
    masters: &BTreeMap<String, String>,
) -> Vec<RequestedInterface> {
    let mut ordered: Vec<RequestedInterface> = Vec::with_capacity(remaining.len());
    while !remaining.is_empty() {
        let waits = |requested: &RequestedInterface| {
            let port_of = masters.get(&requested.rule_text());
            remaining
                .iter()
                .map(RequestedInterface::rule_text)
                .any(|other| port_of == Some(&other) || requested.depends_on(&other))
        };
        let next = remaining.iter().position(|requested| !waits(requested)).unwrap_or(0);
        ordered.push(remaining.remove(next));
    }
    ordered
}

/// The masters that list their ports, by port; both by the names with which they are requested. If several list a port,
/// the first request decides.
pub(super) fn masters(requested: &[RequestedInterface]) -> BTreeMap<String, String> {
    let mut masters = BTreeMap::new();
    for master in requested {
        for port in &master.spec.ports {
            masters.entry(port.clone()).or_insert_with(|| master.rule_text());
        }
    }
    masters
}

impl RequestedInterface {
    fn depends_on(&self, other: &str) -> bool {
        let spec = &self.spec;
        let interface = spec.master.as_deref().filter(|_| !matches!(spec.kind, Kind::Veth(_)));
        [spec.parent.as_deref(), spec.vrf.as_deref(), interface].contains(&Some(other))
    }
}

impl Builder<'_> {
    /// Another of Knit's interfaces in this pod; `None` if the name means something else.
    pub(super) fn pod_interface(&self, name: &str, role: &str) -> Result<Option<IfName>, Rejection> {
        let Some(interface) = self.names.get(name) else { return Ok(None) };
        if self.resolved.desired.state.link(&self.scope(), interface).is_some() {
            return Ok(Some(interface.clone()));
        }
        let pod = self.sandbox.title();
        Err((Reason::NotFound, format!("interface {interface} of pod {pod}, {role}, cannot be created")))
    }

    /// The VRF that the interface is a port of.
    pub(super) fn vrf(&self, requested: &RequestedInterface) -> Result<Option<IfName>, Rejection> {
        let Some(vrf) = requested.spec.vrf.as_deref() else { return Ok(None) };
        let interface = self.pod_interface(vrf, "its VRF")?;
        let link = interface.as_ref().and_then(|name| self.resolved.desired.state.link(&self.scope(), name));
        if link.is_some_and(|link| matches!(link.kind, Kind::Vrf(_))) {
            return Ok(interface);
        }
        let pod = self.sandbox.title();
        Err((Reason::NotFound, format!("there is no VRF {vrf} in pod {pod}: a Vrf object makes one")))
    }

    /// The master that lists this interface among its ports.
    pub(super) fn listing_master(&self, requested: &RequestedInterface) -> Result<Option<IfName>, Rejection> {
        let Some(master) = self.masters.get(&requested.rule_text()) else { return Ok(None) };
        let spec = &requested.spec;
        let has_pod_master = spec.master.is_some() && !matches!(spec.kind, Kind::Veth(_));
        if spec.vrf.is_some() || has_pod_master {
            let name = requested.rule_text();
            let message = format!("interface {name} is a port of {master}, so it can have no other master");
            return Err((Reason::Conflict, message));
        }
        self.pod_interface(master, "its master")
    }

    /// Reports the ports of an interface that no entry requests, and those that are ports of an older one.
    pub(super) fn check_ports(&mut self, requested: &RequestedInterface) {
        let (pod, own) = (self.sandbox.title(), requested.rule_text());
        for port in &requested.spec.ports {
            let (reason, message) = match self.masters.get(port).filter(|master| **master != own) {
                Some(master) => {
                    (Reason::Conflict, format!("interface {port} of pod {pod} is a port of {master}"))
                }
                None if !self.names.contains_key(port) => {
                    (Reason::NotFound, format!("there is no interface {port} of Knit in pod {pod}"))
                }
                None => continue,
            };
            self.resolved.problem(&requested.object, requested.origin.field.clone(), reason, message);
        }
    }

    /// A link that configures its ports gives them its MTU and hardware address.
    pub(super) fn take_from_master(&self, link: &mut Link) {
        let master = link.attrs.master.as_ref().and_then(Master::name);
        let master = master.and_then(|name| self.resolved.desired.state.link(&self.scope(), name));
        if let Some(master) = master.filter(|master| master.kind.configures_ports()) {
            (link.attrs.mac, link.attrs.mtu) = (None, master.attrs.mtu);
        }
    }

    /// The routing table of a link if it is not the main table: its VRF's, or its own.
    pub(super) fn table(&self, link: &Link, master: Option<&IfName>) -> Option<u32> {
        let master = master.and_then(|name| self.resolved.desired.state.link(&self.scope(), name));
        link.kind.table().or_else(|| master.and_then(|master| master.kind.table()))
    }

    /// Enforces the restrictions of an uplink: kinds, VLANs, MTU. Also for a VLAN on another interface of the pod that
    /// passes frames untagged to the uplink.
    pub(super) fn check_uplink(
        &mut self,
        requested: &RequestedInterface,
        link: &Link,
    ) -> Result<(), Rejection> {
        let parent = requested.spec.parent.as_deref().unwrap_or_default();
        let is_direct = link.parent_scope == Some(Scope::Host);
        let through = link.kind.parent().and_then(|parent_mtu| self.uplinks.get(parent_mtu)).cloned();
        let name = if is_direct { Some(parent.to_owned()) } else { through };
        let uplink = name.as_deref().and_then(|name| self.state.uplink(&self.sandbox.namespace, name));
        let Some(uplink) = uplink.and_then(Result::ok).cloned() else {
            return self.check_ipvlan_mode(requested, link);
        };
        let refuse = |message: String| Err((Reason::NotAllowed, format!("uplink {} {message}", uplink.name)));
        let kind = link.kind.name();
        if is_direct && !uplink.kinds.is_empty() && !uplink.kinds.iter().any(|open| open == kind) {
            return refuse(format!("is not open to {kind} links"));
        }
        if let Kind::Vlan(vlan) = &link.kind
            && !uplink.vlans.iter().any(|(first, last)| (*first..=*last).contains(&vlan.id))
        {
            return refuse(format!("is not open to VLAN {}, {}", vlan.id, open_vlans(&uplink)));
        }
        if let Some(max_mtu) = uplink.max_mtu.filter(|_| is_direct) {
            match link.attrs.mtu {
                Some(mtu) if mtu > max_mtu => {
                    return refuse(format!("allows an MTU of at most {max_mtu}"));
                }
                Some(_) => {}
                None => {
                    self.resolved.max_mtus.insert(link.name.clone(), max_mtu);
                }
            }
        }
        if link.kind.is_transparent() {
            self.uplinks.insert(link.name.clone(), uplink.name.clone());
        }
        self.check_ipvlan_mode(requested, link)
    }

    /// All ipvlans on one link share mode and flag: the first request decides.
    fn check_ipvlan_mode(&self, requested: &RequestedInterface, link: &Link) -> Result<(), Rejection> {
        let Kind::Ipvlan(mine) = &link.kind else { return Ok(()) };
        let is_direct = link.parent_scope == Some(Scope::Host);
        for (object, stored) in by_age(self.state.objects.with(Feature::Ipvlan)) {
            for intent in &stored.intents {
                if (object, &intent.origin.field) == (&requested.object, &requested.origin.field) {
                    return Ok(());
                }
                let IntentSpec::Interface(other) = &intent.spec else { continue };
                let Kind::Ipvlan(theirs) = &other.kind else { continue };
                let meets = is_direct || other.pods.matches(&object.namespace, self.sandbox);
                let same_place = meets && other.parent == requested.spec.parent;
                if same_place && (theirs.mode, theirs.flag) != (mine.mode, mine.flag) {
                    let message = format!(
                        "all ipvlans on {} share mode and flag, and {object}, which is older, requests different ones",
                        requested.spec.parent.as_deref().unwrap_or_default()
                    );
                    return Err((Reason::Conflict, message));
                }
            }
        }
        Ok(())
    }
}

fn open_vlans(uplink: &UplinkIntent) -> String {
    if uplink.vlans.is_empty() {
        return "no VLAN is open".to_owned();
    }
    let range = |(first, last): &(u16, u16)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let ranges: Vec<String> = uplink.vlans.iter().map(range).collect();
    format!("open VLANs are {}", ranges.join(", "))
}
