//! Interfaces of a sandbox.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::Time;
use knit_model::filter::ElementData;
use knit_model::intent::{IntentSpec, InterfaceIntent, NameRule, NetworkIntent, RateIntent};
use knit_model::link::{Attrs, Kind, Link, OwnerId, PortVlans, Veth, VethPeer};
use knit_model::plan::ItemKey;
use knit_model::problem::Reason;
use knit_model::provenance::Provenance;
use knit_model::report::InterfaceReport;
use knit_model::route::{MAIN_TABLE, NextHop};
use knit_model::sandbox::Isolation;
use knit_model::{Address, IfName, Route, Sandbox, SandboxId, Scope, sysctl};

use super::attachment;
use super::bridge::name_of;
use super::keys::{self, shown};
use super::{
    DEFAULT_MTU, Resolved, host_devices, link_change, mac_seed, nesting, routing, virtual_machine,
    with_defaults,
};
use crate::call::RangeRequest;
use crate::event::Unit;
use crate::state::{BridgeKey, ObjectKey, State, StoredObject};
use crate::{packet_filter, pod_annotations, policies};

/// The maximum number of Knit's interfaces in a pod.
pub(crate) const MAX_INTERFACES: usize = 32;

/// The bridges that the interfaces of a sandbox are to be ports of.
pub(crate) fn bridges_of(state: &State, id: &SandboxId) -> BTreeSet<BridgeKey> {
    let Some(sandbox) = state.sandboxes.get(id) else { return BTreeSet::new() };
    let objects = state.objects.of_namespace(&sandbox.namespace).filter(|_| sandbox.isolation.is_netns());
    let specs = objects.flat_map(|(object, stored)| interfaces_for(sandbox, object, stored));
    let specs = specs.map(|(_, spec)| (spec, spec.tenant(&sandbox.namespace)));
    let specs = specs.filter(|(spec, tenant)| !state.is_on_segment(tenant, spec));
    let of_objects = specs.filter_map(|(spec, tenant)| bridge_of(spec, tenant));
    of_objects.chain(state.attachments.of(id).filter_map(|there| attachment::bridge(state, there))).collect()
}

/// The desired state of a sandbox. Leases the addresses that it needs.
pub(crate) fn sandbox(state: &mut State, id: &SandboxId, now: Time) -> Resolved {
    let mut resolved = Resolved::default();
    let unit = Unit::Sandbox(id.clone());
    let (had, is_known) = (state.units.shared(&unit), state.units.contains_key(&unit));
    let moved = host_devices::moved_to(id, &had);
    resolved.observe.host_links.clone_from(&had.host_links);
    resolved.observe.vlans = had.interfaces.iter().any(|(_, interface)| interface.vlans.is_some());
    // Including those of removed interfaces: a rollback restores them.
    resolved.observe.sysctls.clone_from(&had.sysctls);
    let Some(sandbox) = state.sandboxes.get(id).cloned() else {
        resolved.observe.moved_devices = moved;
        packet_filter::add_sandbox(state, id, &mut resolved);
        return resolved;
    };
    resolved.title = sandbox.title();
    if let Isolation::VirtualMachine(tap) = &sandbox.isolation {
        virtual_machine::all(state, &sandbox, tap, &mut resolved, now);
        packet_filter::add_sandbox(state, id, &mut resolved);
        policies::interfaces::warn_of_virtual_machine(state, &sandbox, &mut resolved);
        return resolved;
    }
    resolved.observe.sandbox = Some(id.clone());
    let mut specs = requested_interfaces(state, &sandbox);
    // The underlay interface of a tunnel to a pod must get its address first.
    specs.sort_by_key(|requested| requested.spec.remote_pod.is_some());
    let names = specs
        .iter()
        .filter_map(|spec| Some((spec.rule_text(), spec.spec.name.name_in(&sandbox).ok()?)))
        .collect();
    let masters = nesting::masters(&specs);
    let mut uplinks = BTreeMap::new();
    for spec in nesting::in_order(specs, &masters) {
        resolved.requesters.insert(spec.object.clone());
        Builder {
            state,
            sandbox: &sandbox,
            names: &names,
            masters: &masters,
            uplinks: &mut uplinks,
            resolved: &mut resolved,
            now,
        }
        .interface(&spec);
    }
    link_change::all(state, &sandbox, &mut resolved);
    routing::collect(state, &sandbox, &names, &mut resolved);
    attachment::loopback(state, id, &mut resolved);
    link_change::restore(state, id, &mut resolved);
    packet_filter::add_sandbox(state, id, &mut resolved);
    policies::interfaces::add(state, id, &mut resolved);
    let requested = resolved.desired.state.scope(&Scope::Sandbox(id.clone()));
    let asks_for_links_only =
        requested.rules.is_empty() && requested.neighbours.is_empty() && resolved.routing.is_empty();
    resolved.observe.is_new = !is_known && asks_for_links_only;
    // The kernel rejects an element that exists with other data, so such elements are always observed.
    let has_no_data = resolved.unit_state.filter.values().all(|data| *data == ElementData::Key);
    resolved.observe.elements_if_owned = !is_known && has_no_data;
    resolved.observe.sysctls.extend(requested.sysctls.keys().cloned());
    resolved
}

/// One interface that an object or a call requests in a sandbox.
#[derive(Clone)]
pub(super) struct RequestedInterface {
    pub(super) object: ObjectKey,
    pub(super) origin: Provenance,
    pub(super) spec: InterfaceIntent,
    /// The namespace of its bridge and network: the pod's, unless a call attaches to the cluster network.
    pub(super) tenant: String,
    /// See [`crate::call::InterfaceRequest::sets`].
    pub(super) sets: Vec<Vec<RangeRequest>>,
    /// See [`crate::call::InterfaceRequest::sticky`].
    pub(super) sticky: String,
}

impl RequestedInterface {
    pub(super) fn bridge(&self) -> Option<BridgeKey> {
        bridge_of(&self.spec, &self.tenant)
    }

    /// The networks that policies can select it by, as `Kind/namespace/name`; none on the cluster network.
    pub(super) fn networks(&self, state: &State) -> Vec<String> {
        let bridge = self.bridge();
        if bridge.as_ref().is_some_and(|key| attachment::is_routed(state, key)) {
            return Vec::new();
        }
        let of = |kind: &str, namespace: &str, name: &str| format!("{kind}/{namespace}/{name}");
        let object = self.origin.object.as_ref().filter(|object| object.kind != pod_annotations::KIND);
        let object = object.map(|object| of(&object.kind, &object.namespace, &object.name));
        let definition = self.spec.definition.as_ref();
        let definition = definition.map(|one| of("NetworkAttachmentDefinition", &one.namespace, &one.name));
        let network = self.spec.network.as_ref().map(|name| of("VirtualNetwork", &self.tenant, name));
        let bridge = bridge.filter(|_| network.is_none() && definition.is_none());
        let bridge = bridge.map(|key| of("Bridge", &key.namespace, key.name.as_str()));
        [object, definition, network, bridge].into_iter().flatten().collect()
    }

    /// Replaces gateways outside of the interface's own subnets by gateways within them.
    fn with_local_gateways(&self, gateways: &[IpAddr], addresses: &[IpNet]) -> Cow<'_, Self> {
        let is_near = |gateway: &IpAddr| addresses.iter().any(|address| address.contains(gateway));
        let is_far = |gateway: &IpAddr| gateways.contains(gateway) && !is_near(gateway);
        let hops = self.spec.routes.iter().flat_map(|route| &route.via).filter_map(|hop| hop.gateway);
        if !hops.chain(self.spec.gateways.iter().copied()).any(|gateway| is_far(&gateway)) {
            return Cow::Borrowed(self);
        }
        let mut other = self.clone();
        other.spec.gateways.retain(|gateway| !is_far(gateway));
        for hop in other.spec.routes.iter_mut().flat_map(|route| &mut route.via) {
            let Some(gateway) = hop.gateway.filter(is_far) else { continue };
            let same_family = |near: &&IpAddr| near.is_ipv4() == gateway.is_ipv4() && is_near(near);
            hop.gateway = gateways.iter().find(same_family).copied();
        }
        Cow::Owned(other)
    }

    /// Whether a call requests it rather than an object.
    pub(super) fn is_call(&self) -> bool {
        self.origin.object.is_none()
    }

    /// The name by which other entries refer to this one.
    pub(super) fn rule_text(&self) -> String {
        match &self.spec.name {
            NameRule::Exact(name) => name.to_string(),
            NameRule::Prefix(prefix) => prefix.clone(),
        }
    }
}

/// The bridge that an interface is to be a port of.
pub(super) fn bridge_of(spec: &InterfaceIntent, namespace: &str) -> Option<BridgeKey> {
    let name = spec.master.as_ref().filter(|_| matches!(spec.kind, Kind::Veth(_)))?;
    Some(BridgeKey { namespace: namespace.to_owned(), name: IfName::new(name).ok()? })
}

/// The interfaces that one object requests in a sandbox.
pub(super) fn interfaces_for<'a>(
    sandbox: &'a Sandbox,
    object: &'a ObjectKey,
    stored: &'a StoredObject,
) -> impl Iterator<Item = (&'a Provenance, &'a InterfaceIntent)> {
    stored.intents.iter().filter_map(move |intent| match &intent.spec {
        IntentSpec::Interface(spec) if spec.pods.matches(&object.namespace, sandbox) => {
            Some((&intent.origin, &**spec))
        }
        _ => None,
    })
}

fn requested_interfaces(state: &State, sandbox: &Sandbox) -> Vec<RequestedInterface> {
    let mut requested = attachment::requested_interfaces(state, sandbox);
    for (object, stored) in state.objects.of_namespace_by_age(&sandbox.namespace) {
        for (origin, spec) in interfaces_for(sandbox, object, stored) {
            let tenant = spec.tenant(&sandbox.namespace).to_owned();
            let (object, origin, spec) = (object.clone(), origin.clone(), on_uplink(state, sandbox, spec));
            requested.push(RequestedInterface {
                object,
                origin,
                spec,
                tenant,
                sets: Vec::new(),
                sticky: String::new(),
            });
        }
    }
    requested
}

/// Resolves the NIC of the spec to an uplink that is open to the pod's namespace for this kind.
fn on_uplink(state: &State, sandbox: &Sandbox, spec: &InterfaceIntent) -> InterfaceIntent {
    let Some(nic) = spec.definition.as_ref().and_then(|defined| defined.nic.as_ref()) else {
        return spec.clone();
    };
    let parent = state.uplink_to(&sandbox.namespace, nic, spec.kind.name());
    InterfaceIntent { parent: parent.map(|uplink| uplink.name.clone()), ..spec.clone() }
}

pub(super) struct Builder<'a> {
    pub(super) state: &'a mut State,
    pub(super) sandbox: &'a Sandbox,
    /// Entry name -> interface name, of all entries of this sandbox.
    pub(super) names: &'a BTreeMap<String, IfName>,
    /// See [`nesting::masters`].
    pub(super) masters: &'a BTreeMap<String, String>,
    /// Interfaces so far that pass frames unmodified to an uplink, with the uplink's name.
    pub(super) uplinks: &'a mut BTreeMap<IfName, String>,
    pub(super) resolved: &'a mut Resolved,
    pub(super) now: Time,
}

impl Builder<'_> {
    pub(super) fn scope(&self) -> Scope {
        Scope::Sandbox(self.sandbox.id.clone())
    }

    fn interface(&mut self, requested: &RequestedInterface) {
        let outcome = self.try_interface(requested);
        if let Err((reason, message)) = outcome {
            self.resolved.problem(&requested.object, requested.origin.field.clone(), reason, message);
        }
    }

    fn try_interface(&mut self, requested: &RequestedInterface) -> Result<(), (Reason, String)> {
        let spec = &requested.spec;
        let scope = self.scope();
        let name = self.free_name(requested)?;
        let id = format!("{}/{name}", self.sandbox.id);
        let network = self.network(requested)?;
        let range_count = network.as_ref().map_or(spec.ranges.len(), |network| network.ranges.len());
        let max_addresses = self.check_quota(requested, &name, range_count + spec.fixed.len())?;
        let kind = self.with_remote_end(requested)?.with_defaults();
        self.check_kernel(&kind, &name)?;
        let mut link = Link::new(name.clone(), kind);
        let owner = OwnerId::derived(&id);
        keys::name_generated(&mut link, &owner, &mut self.resolved.observe.keys);
        link.owner = Some(owner);
        let master = self.resolve_parent(requested, &mut link)?;
        let vlans = self.port_vlans(requested)?;
        self.resolved.observe.vlans |= vlans.is_some();
        let vrf = self.vrf(requested)?;
        let pod_master = if matches!(link.kind, Kind::Veth(_)) { None } else { master.clone() };
        let pod_master = self.listing_master(requested)?.or_else(|| vrf.clone()).or(pod_master);
        let table = self.table(&link, pod_master.as_ref());
        let mtu = network.as_ref().and_then(|network| network.mtu);
        let mtu = mtu.or_else(|| self.state.overlay_mtu(&requested.bridge()?));
        // Otherwise the MTU is inherited from the parent, after the observation.
        let mtu = mtu.or_else(|| link.kind.parent().is_none().then_some(DEFAULT_MTU));
        let seed = mac_seed(self.sandbox, &name);
        let mtu = mtu.map(|mtu| mtu.saturating_sub(link.kind.overhead()));
        link.attrs = with_defaults(&link.kind, &spec.attrs, mtu, pod_master, &seed);
        self.take_from_master(&mut link);
        self.limit(requested, &mut link)?;
        self.check_uplink(requested, &link)?;
        // The interface is in only one of several ranges of a family.
        let is_on_one = !self.node_pools(requested).is_empty();
        let gateways = network.as_ref().filter(|_| is_on_one).map_or_else(Vec::new, attachment::gateways);
        let ranges = network.map_or_else(|| spec.ranges.clone(), |network| network.ranges);
        let max_addresses = if requested.is_call() { usize::MAX } else { max_addresses };
        let addresses = self.addresses(requested, &name, &ranges, max_addresses)?;
        let peer = self.add_host_end(requested, &mut link, master.clone(), vlans.clone());
        let vlans = vlans.filter(|_| spec.port.is_some());
        self.resolved.add_origin(&scope, ItemKey::Link(name.clone()), &requested.origin);
        self.resolved.unit_state.interfaces.push((
            requested.object.clone(),
            InterfaceReport {
                field: requested.origin.field.clone(),
                name: name.clone(),
                kind: link.kind.name().to_owned(),
                addresses: addresses.clone(),
                mac: link.attrs.mac,
                mtu: link.attrs.mtu,
                peer,
                master,
                details: shown(&link),
                vlans,
                vrf,
                limited: !spec.limits.is_empty(),
                networks: requested.networks(self.state),
                ready: true,
            },
        ));
        if requested.bridge().is_some_and(|key| self.state.overlay_on_bridge(&key).is_some()) {
            // Other nodes may have learned the pod's addresses at another port.
            self.resolved.desired.announced_links.insert((scope.clone(), name.clone()));
        }
        self.resolved.unit_state.used_bridges.extend(requested.bridge());
        self.resolved.unit_state.host_links.extend(link.device().cloned());
        self.add_addresses_and_routes(
            &requested.with_local_gateways(&gateways, &addresses),
            &link,
            table,
            &addresses,
        );
        self.resolved.desired.state.scope(&scope).add_link(link);
        self.check_ports(requested);
        for (key, value) in spec.kind.sysctls() {
            self.resolved.add_origin(&scope, ItemKey::Sysctl((*key).to_owned()), &requested.origin);
            let sysctls = &mut self.resolved.desired.state.scope(&scope).sysctls;
            sysctls.entry((*key).to_owned()).or_insert_with(|| (*value).to_owned());
        }
        Ok(())
    }

    /// The name of the interface, if no other has it yet.
    pub(super) fn free_name(&self, requested: &RequestedInterface) -> Result<IfName, (Reason, String)> {
        let title = self.sandbox.title();
        let name = requested.spec.name.name_in(self.sandbox);
        let name = name.map_err(|error| (Reason::InvalidValue, error.to_string()))?;
        let unit_state = &self.resolved.unit_state.interfaces;
        let first = unit_state.iter().find(|(_, interface)| interface.name == name);
        if first.is_some() || self.resolved.desired.state.link(&self.scope(), &name).is_some() {
            let owner = first.map_or_else(String::new, |(object, _)| format!(" by {object}, which is older"));
            let message = format!("interface {name} of pod {title} is already requested{owner}");
            return Err((Reason::Conflict, message));
        }
        if unit_state.len() >= MAX_INTERFACES {
            let message = format!("pod {title} has {MAX_INTERFACES} interfaces of Knit already");
            return Err((Reason::InvalidValue, message));
        }
        Ok(name)
    }

    /// The network of an interface, if it names one.
    pub(super) fn network(
        &self,
        requested: &RequestedInterface,
    ) -> Result<Option<NetworkIntent>, (Reason, String)> {
        let Some(name) = &requested.spec.network else { return Ok(None) };
        let namespace = &requested.tenant;
        let network = self.state.network(namespace, name).cloned();
        network.map(Some).ok_or_else(|| self.state.missing_network(namespace, name))
    }

    /// Rejects a kind that the kernel does not support.
    pub(super) fn check_kernel(&self, kind: &Kind, name: &IfName) -> Result<(), (Reason, String)> {
        let Some(message) = self.state.unsupported.get(kind.name()) else { return Ok(()) };
        let message =
            format!("interface {name} of pod {} cannot be created: {message}", self.sandbox.title());
        Err((Reason::KernelUnsupported, message))
    }

    /// Resolves the parent of an interface; returns its master.
    pub(super) fn resolve_parent(
        &mut self,
        requested: &RequestedInterface,
        link: &mut Link,
    ) -> Result<Option<IfName>, (Reason, String)> {
        if let Some(key) = requested.bridge() {
            if self.state.units.contains_key(&Unit::Bridge(key.clone())) {
                return Ok(Some(name_of(self.state, &key)));
            }
            let problems = self.state.problems.get(&Unit::Bridge(key.clone()));
            let problem = problems.and_then(|problems| problems.first()).map(|(_, problem)| problem);
            let error = problem.map_or("it does not exist", |problem| &problem.message);
            let reason = match problem {
                Some(problem) if problem.reason == Reason::QuotaExceeded => Reason::QuotaExceeded,
                _ => Reason::NotFound,
            };
            return Err((reason, format!("no bridge {}: {error}", key.name)));
        }
        let nic = requested.spec.definition.as_ref().and_then(|defined| defined.nic.as_ref());
        if let (None, Some(nic)) = (&requested.spec.parent, nic) {
            let (namespace, kind) = (&self.sandbox.namespace, link.kind.name());
            let message = format!(
                "NIC {nic} is not open to {kind} links of namespace {namespace}: no Uplink of it allows that"
            );
            return Err((Reason::NotAllowed, message));
        }
        let parent = requested.spec.parent.as_deref().filter(|_| !matches!(link.kind, Kind::Veth(_)));
        match (parent, link.kind.moved_device()) {
            (_, Some(_)) => self.find_device(requested, link)?,
            (Some(parent), _) => self.set_parent(parent, nic.is_some(), link)?,
            (None, _) => {}
        }
        let Some(master) = requested.spec.master.as_deref() else { return Ok(None) };
        match self.pod_interface(master, "its master")? {
            Some(interface) => Ok(Some(interface)),
            None => IfName::new(master).map(Some).map_err(|error| (Reason::InvalidValue, error.to_string())),
        }
    }

    /// A parent is another interface of the pod, a bridge of the tenant, or an uplink that is open to it: nothing else
    /// on the host. A reference to a NIC never means one of the first two.
    fn set_parent(&mut self, parent: &str, is_nic: bool, link: &mut Link) -> Result<(), (Reason, String)> {
        let namespace = &self.sandbox.namespace;
        let interface = if is_nic { None } else { self.pod_interface(parent, "its parent")? };
        if let Some(interface) = interface {
            link.kind.set_parent(interface);
            return Ok(());
        }
        if let Some(uplink) = self.state.uplink(namespace, parent) {
            let uplink = uplink.map_err(|message| (Reason::NotAllowed, message))?;
            check_host_parent(parent, link)?;
            link.kind.set_parent(uplink.link.clone());
            self.resolved.observe.lower_links.insert(uplink.link.clone());
            link.parent_scope = Some(Scope::Host);
            return Ok(());
        }
        let name = IfName::new(parent).map_err(|error| (Reason::InvalidValue, error.to_string()))?;
        let key = BridgeKey { namespace: namespace.clone(), name: name.clone() };
        if self.state.units.contains_key(&Unit::Bridge(key.clone())) {
            check_host_parent(parent, link)?;
            let bridge = name_of(self.state, &key);
            link.kind.set_parent(bridge.clone());
            self.resolved.observe.lower_links.insert(bridge);
            link.parent_scope = Some(Scope::Host);
        } else {
            // A foreign interface of the pod, such as eth0. If there is none, the plan has a problem.
            link.kind.set_parent(name);
        }
        Ok(())
    }

    /// Adds the host end of a veth as a port of its bridge.
    fn add_host_end(
        &mut self,
        requested: &RequestedInterface,
        link: &mut Link,
        master: Option<IfName>,
        vlans: Option<PortVlans>,
    ) -> Option<IfName> {
        let owner = link.owner.clone()?;
        let host_name = self.host_name(&requested.spec.name, &link.name, &owner)?;
        let Kind::Veth(veth) = &mut link.kind else { return None };
        veth.peer = Some(VethPeer { scope: Scope::Host, name: host_name.clone() });
        let back = VethPeer { scope: self.scope(), name: link.name.clone() };
        let mut host_end = Link::new(host_name.clone(), Kind::Veth(Veth { peer: Some(back) }));
        let (mtu, txqueuelen) = (link.attrs.mtu, link.attrs.txqueuelen);
        let limit = Some(RateIntent::to_rate_limit(requested.spec.limits.ingress, mtu));
        // Hairpin: a pod reaches itself through a Service, so DNATed packets return through the same port.
        let is_cluster = requested.bridge().is_some_and(|key| attachment::is_routed(self.state, &key));
        let is_requested = requested.spec.definition.as_ref().is_some_and(|defined| defined.hairpin);
        let hairpin = (is_cluster || is_requested).then_some(true);
        let attrs = Attrs { mtu, txqueuelen, vlans, hairpin, limit, ..Attrs::default() };
        let seed = format!("host/{}/{}", self.sandbox.id, link.name);
        host_end.attrs = with_defaults(&host_end.kind, &attrs, Some(DEFAULT_MTU), master, &seed);
        host_end.owner = Some(owner);
        self.resolved.add_origin(&Scope::Host, ItemKey::Link(host_name.clone()), &requested.origin);
        self.resolved.desired.state.scope(&Scope::Host).add_link(host_end);
        self.resolved.unit_state.host_links.insert(host_name.clone());
        self.resolved.observe.host_links.insert(host_name.clone());
        Some(host_name)
    }

    /// The name of an interface's host end. `pc` of sandbox 12 and `pc1` of sandbox 2 would both be `hpc12`: the
    /// second gets a derived name. An existing end keeps its name, since renaming would recreate the pair.
    pub(super) fn host_name(&self, rule: &NameRule, interface: &IfName, owner: &OwnerId) -> Option<IfName> {
        let unit = Unit::Sandbox(self.sandbox.id.clone());
        let had = self.state.units.get(&unit).into_iter().flat_map(|unit_state| &unit_state.interfaces);
        let mut had = had.map(|(_, had)| had).filter(|had| had.name == *interface && had.ready);
        if let Some(name) = had.find_map(|had| had.peer.clone()) {
            return Some(name);
        }
        let preferred = match rule {
            NameRule::Prefix(_) => IfName::new(format!("h{interface}")).ok(),
            NameRule::Exact(_) => None,
        };
        let free = preferred.filter(|name| !self.state.is_name_taken(name, &unit));
        free.or_else(|| IfName::new(format!("knit{}", owner.0)).ok())
    }

    /// Adds addresses, routes, rules and sysctls of an interface. Routes of the main table go into `table`, if there
    /// is one.
    fn add_addresses_and_routes(
        &mut self,
        requested: &RequestedInterface,
        link: &Link,
        table: Option<u32>,
        addresses: &[IpNet],
    ) {
        let (scope, name) = (self.scope(), &link.name);
        let spec = &requested.spec;
        let mut routes: Vec<Route> = spec.routes.iter().map(|route| route.to_route(name)).collect();
        for gateway in &spec.gateways {
            let all = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            let hop = NextHop { gateway: Some(*gateway), link: name.clone(), weight: 1, onlink: false };
            routes.extend(all.parse().ok().map(|all| Route::through(all, hop)));
        }
        for route in routes.iter_mut().filter(|route| route.table == MAIN_TABLE) {
            route.table = table.unwrap_or(MAIN_TABLE);
        }
        routes.extend(link.kind.routes());
        for address in addresses.iter().map(|address| Address::new(name.clone(), *address)) {
            self.resolved.add_origin(&scope, ItemKey::Address(address.key()), &requested.origin);
            self.resolved.desired.state.scope(&scope).add_address(address);
        }
        for route in routes {
            self.resolved.claim_route(&scope, &requested.object, &requested.origin, route);
        }
        for rule in spec.rules.iter().cloned().chain(link.kind.rules()) {
            self.resolved.add_origin(&scope, ItemKey::Rule(rule.clone()), &requested.origin);
            self.resolved.desired.state.scope(&scope).rules.insert(rule);
        }
        // Router advertisements must not change a pod's routes, unless an object enables them.
        let accept_ra = sysctl::link_path(name, "ipv6/accept_ra");
        self.resolved.default_sysctls.insert(accept_ra.clone());
        self.sysctl(requested, accept_ra, "0");
        for (key, value) in &spec.sysctls {
            let path = sysctl::link_path(name, key);
            self.resolved.default_sysctls.remove(&path);
            // The default of a new interface is its original value.
            self.resolved.observe.sysctls.extend(sysctl::default_path(&path));
            self.sysctl(requested, path, value);
        }
    }

    fn sysctl(&mut self, requested: &RequestedInterface, path: String, value: &str) {
        let scope = self.scope();
        self.resolved.add_origin(&scope, ItemKey::Sysctl(path.clone()), &requested.origin);
        self.resolved.unit_state.sysctls.insert(path.clone());
        self.resolved.desired.state.scope(&scope).sysctls.insert(path, value.to_owned());
    }
}

/// Rejects a parent on the node for a kind that needs a parent in the pod.
fn check_host_parent(parent: &str, link: &Link) -> Result<(), (Reason, String)> {
    if link.kind.on_uplink() {
        return Ok(());
    }
    let kind = link.kind.name();
    let message =
        format!("{parent} is on the node, but the parent of a {kind} link must be an interface of the pod");
    Err((Reason::NotAllowed, message))
}
