//! Interfaces of a sandbox.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::Time;
use knit_model::intent::{IntentSpec, InterfaceIntent, NameRule, NetworkIntent, RateIntent, default_of};
use knit_model::link::{Attrs, Kind, Link, OwnerId, Peer, PortVlans, Veth};
use knit_model::plan::Item;
use knit_model::problem::Reason;
use knit_model::provenance::Provenance;
use knit_model::report::InterfaceReport;
use knit_model::route::{MAIN_TABLE, NextHop};
use knit_model::sandbox::Isolation;
use knit_model::{Address, IfName, Route, Sandbox, SandboxId, Scope};

use super::attachment;
use super::bridge::name_of;
use super::keys::{self, shown};
use super::{DEFAULT_MTU, Resolved, change, devices, machine, nesting, routing, with_defaults};
use crate::call::RangeWish;
use crate::event::Unit;
use crate::state::{BridgeKey, ObjectKey, State, StoredObject};

/// A pod has at most this many interfaces of Knit's.
pub(crate) const MAX_INTERFACES: usize = 32;

/// The bridges that a sandbox's interfaces are to be ports of.
pub(crate) fn bridges_of(state: &State, id: &SandboxId) -> BTreeSet<BridgeKey> {
    let Some(sandbox) = state.sandboxes.get(id) else { return BTreeSet::new() };
    let objects = state.objects.iter().filter(|_| sandbox.isolation.is_netns());
    let wants = objects.flat_map(|(object, stored)| interfaces_for(sandbox, object, stored));
    let of_objects = wants.filter_map(|(_, want)| bridge_of(want, want.tenant(&sandbox.namespace)));
    of_objects.chain(state.called.of(id).filter_map(|there| attachment::bridge(state, there))).collect()
}

/// What a sandbox should have. Takes the addresses it needs from the state's leases.
pub(crate) fn sandbox(state: &mut State, id: &SandboxId, now: Time) -> Resolved {
    let mut resolved = Resolved::default();
    let had = state.made.get(&Unit::Sandbox(id.clone())).cloned();
    let is_known = had.is_some();
    let had = had.unwrap_or_default();
    let lent = devices::lent_to(id, &had);
    resolved.look.host_links = had.host_links;
    resolved.look.vlans = had.interfaces.iter().any(|(_, interface)| interface.vlans.is_some());
    // Also those of interfaces that go: if that fails, they come back with them.
    resolved.look.sysctls = had.sysctls;
    let Some(sandbox) = state.sandboxes.get(id).cloned() else {
        resolved.look.lent = lent;
        return resolved;
    };
    resolved.title = sandbox.title();
    if let Isolation::Machine(tap) = &sandbox.isolation {
        machine::all(state, &sandbox, tap, &mut resolved, now);
        return resolved;
    }
    resolved.look.sandbox = Some(id.clone());
    let mut wants = wants_of(state, &sandbox);
    // What a tunnel to a pod goes over must have its address before the tunnel.
    wants.sort_by_key(|wanted| wanted.want.remote_pod.is_some());
    let names = wants
        .iter()
        .filter_map(|want| Some((want.rule_text(), want.want.name.name_in(&sandbox).ok()?)))
        .collect();
    let mut uplinks = BTreeMap::new();
    for want in nesting::in_order(wants) {
        resolved.askers.insert(want.object.clone());
        Builder {
            state,
            sandbox: &sandbox,
            names: &names,
            uplinks: &mut uplinks,
            resolved: &mut resolved,
            now,
        }
        .interface(&want);
    }
    change::all(state, &sandbox, &mut resolved);
    routing::collect(state, &sandbox, &names, &mut resolved);
    attachment::loopback(state, id, &mut resolved);
    change::give_back(state, id, &mut resolved);
    let wanted = resolved.desired.state.scope(&Scope::Sandbox(id.clone()));
    let asks_for_links_only =
        wanted.rules.is_empty() && wanted.neighbours.is_empty() && resolved.routing.is_empty();
    resolved.look.is_new = !is_known && asks_for_links_only;
    resolved.look.sysctls.extend(wanted.sysctls.keys().cloned());
    resolved
}

/// One interface that one object wants in a sandbox.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) object: ObjectKey,
    pub(super) why: Provenance,
    pub(super) want: InterfaceIntent,
    /// Whose its bridge and its network are: the pod's namespace, unless a call attaches to the cluster's.
    pub(super) tenant: String,
    /// Parts of the network's ranges that addresses are looked for in; see [`crate::call::Asked::sets`].
    pub(super) sets: Vec<Vec<RangeWish>>,
    /// See [`crate::call::Asked::sticky`].
    pub(super) sticky: String,
}

impl Wanted {
    pub(super) fn bridge(&self) -> Option<BridgeKey> {
        bridge_of(&self.want, &self.tenant)
    }

    /// The same, but of all the bridge's addresses those are the way out that lie in the ranges of its own addresses.
    fn through(&self, gateways: &[IpAddr], addresses: &[IpNet]) -> Cow<'_, Self> {
        let is_near = |gateway: &IpAddr| addresses.iter().any(|address| address.contains(gateway));
        let is_far = |gateway: &IpAddr| gateways.contains(gateway) && !is_near(gateway);
        let hops = self.want.routes.iter().flat_map(|route| &route.via).filter_map(|hop| hop.gateway);
        if !hops.chain(self.want.gateways.iter().copied()).any(|gateway| is_far(&gateway)) {
            return Cow::Borrowed(self);
        }
        let mut other = self.clone();
        other.want.gateways.retain(|gateway| !is_far(gateway));
        for hop in other.want.routes.iter_mut().flat_map(|route| &mut route.via) {
            let Some(gateway) = hop.gateway.filter(is_far) else { continue };
            let same_family = |near: &&IpAddr| near.is_ipv4() == gateway.is_ipv4() && is_near(near);
            hop.gateway = gateways.iter().find(same_family).copied();
        }
        Cow::Owned(other)
    }

    /// Whether a call asks for it, and no object.
    pub(super) fn is_call(&self) -> bool {
        self.why.object.is_none()
    }

    /// The text by which other entries may name this one.
    pub(super) fn rule_text(&self) -> String {
        match &self.want.name {
            NameRule::Exact(name) => name.to_string(),
            NameRule::Prefix(prefix) => prefix.clone(),
        }
    }
}

/// The bridge that an interface is to be a port of.
pub(super) fn bridge_of(want: &InterfaceIntent, namespace: &str) -> Option<BridgeKey> {
    let name = want.master.as_ref().filter(|_| matches!(want.kind, Kind::Veth(_)))?;
    Some(BridgeKey { namespace: namespace.to_owned(), name: IfName::new(name).ok()? })
}

/// The interfaces that one object wants in a sandbox.
pub(super) fn interfaces_for<'a>(
    sandbox: &'a Sandbox,
    object: &'a ObjectKey,
    stored: &'a StoredObject,
) -> impl Iterator<Item = (&'a Provenance, &'a InterfaceIntent)> {
    stored.intents.iter().filter_map(move |intent| match &intent.spec {
        IntentSpec::Interface(want) if want.pods.matches(&object.namespace, sandbox) => {
            Some((&intent.origin, &**want))
        }
        _ => None,
    })
}

fn wants_of(state: &State, sandbox: &Sandbox) -> Vec<Wanted> {
    let mut wanted = attachment::wants_of(state, sandbox);
    for (object, stored) in state.in_order() {
        for (why, want) in interfaces_for(sandbox, object, stored) {
            let tenant = want.tenant(&sandbox.namespace).to_owned();
            let (object, why, want) = (object.clone(), why.clone(), on_uplink(state, sandbox, want));
            wanted.push(Wanted { object, why, want, tenant, sets: Vec::new(), sticky: String::new() });
        }
    }
    wanted
}

/// What is wanted, with the uplink of the NIC that it names: one that is open to the pod's namespace for its kind goes before one
/// that is not, so that of several the one that can be used is.
fn on_uplink(state: &State, sandbox: &Sandbox, want: &InterfaceIntent) -> InterfaceIntent {
    let Some(nic) = want.defined.as_ref().and_then(|defined| defined.nic.as_ref()) else {
        return want.clone();
    };
    let parent = state.uplink_to(&sandbox.namespace, nic, want.kind.name());
    InterfaceIntent { parent: parent.map(|uplink| uplink.name.clone()), ..want.clone() }
}

pub(super) struct Builder<'a> {
    pub(super) state: &'a mut State,
    pub(super) sandbox: &'a Sandbox,
    /// Entry name -> interface name, of all entries of this sandbox.
    pub(super) names: &'a BTreeMap<String, IfName>,
    /// Interfaces so far whose packets leave by an uplink as they are, and the uplink's name.
    pub(super) uplinks: &'a mut BTreeMap<IfName, String>,
    pub(super) resolved: &'a mut Resolved,
    pub(super) now: Time,
}

impl Builder<'_> {
    pub(super) fn scope(&self) -> Scope {
        Scope::Sandbox(self.sandbox.id.clone())
    }

    fn interface(&mut self, wanted: &Wanted) {
        let outcome = self.try_interface(wanted);
        if let Err((reason, message)) = outcome {
            self.resolved.problem(&wanted.object, wanted.why.field.clone(), reason, message);
        }
    }

    fn try_interface(&mut self, wanted: &Wanted) -> Result<(), (Reason, String)> {
        let want = &wanted.want;
        let scope = self.scope();
        let name = self.free_name(wanted)?;
        let id = format!("{}/{name}", self.sandbox.id);
        let network = self.network(wanted)?;
        let asked = network.as_ref().map_or(want.ranges.len(), |network| network.ranges.len());
        let most = self.check_quota(wanted, &name, asked + want.fixed.len())?;
        let kind = self.with_far_end(wanted)?.with_defaults();
        self.check_kernel(&kind, &name)?;
        let mut link = Link::new(name.clone(), kind);
        let owner = OwnerId::derived(&id);
        keys::name_made(&mut link, &owner, &mut self.resolved.look.keys);
        link.owner = Some(owner);
        let master = self.place(wanted, &mut link)?;
        let vlans = self.port_vlans(wanted)?;
        self.resolved.look.vlans |= vlans.is_some();
        let vrf = self.vrf(wanted)?;
        let pod_master = if matches!(link.kind, Kind::Veth(_)) { None } else { master.clone() };
        let pod_master = vrf.clone().or(pod_master);
        let table = self.table(&link, pod_master.as_ref());
        let mtu = network.as_ref().and_then(|network| network.mtu);
        let mtu = mtu.or_else(|| self.state.spanning_mtu(&wanted.bridge()?));
        // What sits on another link follows it; how large that one is shows when the kernel is looked at.
        let mtu = mtu.or_else(|| link.kind.parent().is_none().then_some(DEFAULT_MTU));
        let seed = format!("{}/{}/{name}", self.sandbox.namespace, self.sandbox.pod);
        let mtu = mtu.map(|mtu| mtu.saturating_sub(link.kind.overhead()));
        link.attrs = with_defaults(&link.kind, &want.attrs, mtu, pod_master, &seed);
        self.limit(wanted, &mut link)?;
        self.check_uplink(wanted, &link)?;
        // Of a network with several ranges of a family, this is on one of them.
        let is_on_one = !self.node_pools(wanted).is_empty();
        let gateways = network.as_ref().filter(|_| is_on_one).map_or_else(Vec::new, attachment::gateways);
        let ranges = network.map_or_else(|| want.ranges.clone(), |network| network.ranges);
        let most = if wanted.is_call() { usize::MAX } else { most };
        let addresses = self.addresses(wanted, &name, &ranges, most)?;
        let peer = self.far_end(wanted, &mut link, master.clone(), vlans.clone());
        let vlans = vlans.filter(|_| want.port.is_some());
        self.resolved.because(&scope, Item::Link(name.clone()), &wanted.why);
        self.resolved.made.interfaces.push((
            wanted.object.clone(),
            InterfaceReport {
                field: wanted.why.field.clone(),
                name: name.clone(),
                kind: link.kind.name().to_owned(),
                addresses: addresses.clone(),
                mac: link.attrs.mac,
                mtu: link.attrs.mtu,
                peer,
                master,
                shown: shown(&link),
                vlans,
                vrf,
                limited: !want.limits.is_empty(),
                ready: true,
            },
        ));
        if wanted.bridge().is_some_and(|key| self.state.spanning_on(&key).is_some()) {
            // Other nodes may know the pod's addresses elsewhere.
            self.resolved.desired.announced.insert((scope.clone(), name.clone()));
        }
        self.resolved.made.uses.extend(wanted.bridge());
        self.resolved.made.host_links.extend(link.device().cloned());
        self.fill(&wanted.through(&gateways, &addresses), &link, table, &addresses);
        self.resolved.desired.state.scope(&scope).add_link(link);
        for (key, value) in want.kind.sysctls() {
            self.resolved.because(&scope, Item::Sysctl((*key).to_owned()), &wanted.why);
            let sysctls = &mut self.resolved.desired.state.scope(&scope).sysctls;
            sysctls.entry((*key).to_owned()).or_insert_with(|| (*value).to_owned());
        }
        Ok(())
    }

    /// The name of an interface that nobody has asked for yet.
    pub(super) fn free_name(&self, wanted: &Wanted) -> Result<IfName, (Reason, String)> {
        let title = self.sandbox.title();
        let name = wanted.want.name.name_in(self.sandbox);
        let name = name.map_err(|why| (Reason::InvalidValue, why.to_string()))?;
        let made = &self.resolved.made.interfaces;
        let first = made.iter().find(|(_, interface)| interface.name == name);
        if first.is_some() || self.resolved.desired.state.link(&self.scope(), &name).is_some() {
            let who = first.map_or_else(String::new, |(object, _)| format!(" by {object}, which was first"));
            let message = format!("interface {name} of pod {title} is asked for already{who}");
            return Err((Reason::Conflict, message));
        }
        if made.len() >= MAX_INTERFACES {
            let message = format!("pod {title} has {MAX_INTERFACES} interfaces of Knit's already");
            return Err((Reason::InvalidValue, message));
        }
        Ok(name)
    }

    /// The network that an interface is on, if it names one.
    pub(super) fn network(&self, wanted: &Wanted) -> Result<Option<NetworkIntent>, (Reason, String)> {
        let Some(name) = &wanted.want.network else { return Ok(None) };
        let namespace = &wanted.tenant;
        let network = self.state.network(namespace, name).cloned();
        let message = || format!("there is no VirtualNetwork {name} in namespace {namespace}");
        network.map(Some).ok_or_else(|| (Reason::NotFound, message()))
    }

    /// Refuses a kind that the kernel was found to lack.
    pub(super) fn check_kernel(&self, kind: &Kind, name: &IfName) -> Result<(), (Reason, String)> {
        let Some(words) = self.state.lacking.get(kind.name()) else { return Ok(()) };
        let message = format!("interface {name} of pod {} cannot be made: {words}", self.sandbox.title());
        Err((Reason::KernelLacks, message))
    }

    /// Finds what the interface sits on or is a port of; returns its master.
    pub(super) fn place(
        &mut self,
        wanted: &Wanted,
        link: &mut Link,
    ) -> Result<Option<IfName>, (Reason, String)> {
        if let Some(key) = wanted.bridge() {
            if self.state.made.contains_key(&Unit::Bridge(key.clone())) {
                return Ok(Some(name_of(self.state, &key)));
            }
            let problems = self.state.problems.get(&Unit::Bridge(key.clone()));
            let problem = problems.and_then(|problems| problems.first()).map(|(_, problem)| problem);
            let why = problem.map_or("it is not there", |problem| &problem.message);
            let reason = match problem {
                Some(problem) if problem.reason == Reason::QuotaExceeded => Reason::QuotaExceeded,
                _ => Reason::NotFound,
            };
            return Err((reason, format!("no bridge {}: {why}", key.name)));
        }
        let nic = wanted.want.defined.as_ref().and_then(|defined| defined.nic.as_ref());
        if let (None, Some(nic)) = (&wanted.want.parent, nic) {
            let (namespace, kind) = (&self.sandbox.namespace, link.kind.name());
            let message = format!(
                "NIC {nic} is not open to {kind} links of namespace {namespace}: no Uplink of it says so"
            );
            return Err((Reason::NotAllowed, message));
        }
        let parent = wanted.want.parent.as_deref().filter(|_| !matches!(link.kind, Kind::Veth(_)));
        match (parent, link.kind.lent()) {
            (_, Some(_)) => self.find_device(wanted, link)?,
            (Some(parent), _) => self.set_parent(parent, nic.is_some(), link)?,
            (None, _) => {}
        }
        let Some(master) = wanted.want.master.as_deref() else { return Ok(None) };
        match self.inside(master, "it is to be a port of")? {
            Some(inside) => Ok(Some(inside)),
            None => IfName::new(master).map(Some).map_err(|why| (Reason::InvalidValue, why.to_string())),
        }
    }

    /// A parent is another interface of the pod, a bridge of the tenant, or an uplink that is open to it: nothing else of the host.
    /// What names a NIC never means one of the first two.
    fn set_parent(&mut self, parent: &str, is_nic: bool, link: &mut Link) -> Result<(), (Reason, String)> {
        let namespace = &self.sandbox.namespace;
        let inside = if is_nic { None } else { self.inside(parent, "it sits on")? };
        if let Some(inside) = inside {
            link.kind.set_parent(inside);
            return Ok(());
        }
        if let Some(uplink) = self.state.uplink(namespace, parent) {
            let uplink = uplink.map_err(|message| (Reason::NotAllowed, message))?;
            on_the_node(parent, link)?;
            link.kind.set_parent(uplink.link.clone());
            self.resolved.look.host_parents.insert(uplink.link.clone());
            link.born_from = Some(Scope::Host);
            return Ok(());
        }
        let name = IfName::new(parent).map_err(|why| (Reason::InvalidValue, why.to_string()))?;
        let key = BridgeKey { namespace: namespace.clone(), name: name.clone() };
        if self.state.made.contains_key(&Unit::Bridge(key.clone())) {
            on_the_node(parent, link)?;
            let bridge = name_of(self.state, &key);
            link.kind.set_parent(bridge.clone());
            self.resolved.look.host_parents.insert(bridge);
            link.born_from = Some(Scope::Host);
        } else {
            // An interface that the pod has from others, such as eth0. If it has none of that name, the plan says so.
            link.kind.set_parent(name);
        }
        Ok(())
    }

    /// The end of a veth on the host, as a port of its bridge.
    fn far_end(
        &mut self,
        wanted: &Wanted,
        link: &mut Link,
        master: Option<IfName>,
        vlans: Option<PortVlans>,
    ) -> Option<IfName> {
        let owner = link.owner.clone()?;
        let far = self.host_name(&wanted.want.name, &link.name, &owner)?;
        let Kind::Veth(veth) = &mut link.kind else { return None };
        veth.peer = Some(Peer { scope: Scope::Host, name: far.clone() });
        let back = Peer { scope: self.scope(), name: link.name.clone() };
        let mut host_end = Link::new(far.clone(), Kind::Veth(Veth { peer: Some(back) }));
        let (mtu, txqueuelen) = (link.attrs.mtu, link.attrs.txqueuelen);
        let limit = Some(RateIntent::on(wanted.want.limits.ingress, mtu));
        // A pod reaches itself through a Service of the cluster: what is translated goes back by the port that it came by.
        let is_cluster = wanted.bridge().is_some_and(|key| attachment::is_routed(self.state, &key));
        let is_asked = wanted.want.defined.as_ref().is_some_and(|defined| defined.hairpin);
        let hairpin = (is_cluster || is_asked).then_some(true);
        let asked = Attrs { mtu, txqueuelen, vlans, hairpin, limit, ..Attrs::default() };
        let seed = format!("host/{}/{}", self.sandbox.id, link.name);
        host_end.attrs = with_defaults(&host_end.kind, &asked, Some(DEFAULT_MTU), master, &seed);
        host_end.owner = Some(owner);
        self.resolved.because(&Scope::Host, Item::Link(far.clone()), &wanted.why);
        self.resolved.desired.state.scope(&Scope::Host).add_link(host_end);
        self.resolved.made.host_links.insert(far.clone());
        self.resolved.look.host_links.insert(far.clone());
        Some(far)
    }

    /// The name of an interface's end on the host. `pc` of sandbox 12 and `pc1` of sandbox 2 would both be `hpc12`: the
    /// second gets a derived name. An end that is there keeps its name, because a new one would be a new pair.
    pub(super) fn host_name(&self, rule: &NameRule, interface: &IfName, owner: &OwnerId) -> Option<IfName> {
        let unit = Unit::Sandbox(self.sandbox.id.clone());
        let had = self.state.made.get(&unit).into_iter().flat_map(|made| &made.interfaces);
        let mut had = had.map(|(_, had)| had).filter(|had| had.name == *interface && had.ready);
        if let Some(name) = had.find_map(|had| had.peer.clone()) {
            return Some(name);
        }
        let asked = match rule {
            NameRule::Prefix(_) => IfName::new(format!("h{interface}")).ok(),
            NameRule::Exact(_) => None,
        };
        let free = asked.filter(|name| !self.state.is_taken(name, &unit));
        free.or_else(|| IfName::new(format!("knit{}", owner.0)).ok())
    }

    /// Addresses, routes, rules and sysctls of an interface. Routes of the main table go into `table`, if there is one.
    fn fill(&mut self, wanted: &Wanted, link: &Link, table: Option<u32>, addresses: &[IpNet]) {
        let (scope, name) = (self.scope(), &link.name);
        let want = &wanted.want;
        let mut routes: Vec<Route> = want.routes.iter().map(|route| route.on(name)).collect();
        for gateway in &want.gateways {
            let all = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            let hop = NextHop { gateway: Some(*gateway), link: name.clone(), weight: 1, onlink: false };
            routes.extend(all.parse().ok().map(|all| Route::through(all, hop)));
        }
        for route in routes.iter_mut().filter(|route| route.table == MAIN_TABLE) {
            route.table = table.unwrap_or(MAIN_TABLE);
        }
        routes.extend(link.kind.routes());
        for address in addresses.iter().map(|address| Address::new(name.clone(), *address)) {
            self.resolved.because(&scope, Item::Address(address.key()), &wanted.why);
            self.resolved.desired.state.scope(&scope).add_address(address);
        }
        for route in routes {
            self.resolved.claim_route(&scope, &wanted.object, &wanted.why, route);
        }
        for rule in want.rules.iter().cloned().chain(link.kind.rules()) {
            self.resolved.because(&scope, Item::Rule(rule.clone()), &wanted.why);
            self.resolved.desired.state.scope(&scope).rules.insert(rule);
        }
        // No router advertisement may change a pod's routes. Whoever wants them asks for them.
        let accept_ra = sysctl_path("ipv6/accept_ra", name);
        self.resolved.habits.insert(accept_ra.clone());
        self.sysctl(wanted, accept_ra, "0");
        for (key, value) in &want.sysctls {
            let path = sysctl_path(key, name);
            self.resolved.habits.remove(&path);
            // What a new interface begins with is what it gets back.
            self.resolved.look.sysctls.extend(default_of(&path));
            self.sysctl(wanted, path, value);
        }
    }

    fn sysctl(&mut self, wanted: &Wanted, path: String, value: &str) {
        let scope = self.scope();
        self.resolved.because(&scope, Item::Sysctl(path.clone()), &wanted.why);
        self.resolved.made.sysctls.insert(path.clone());
        self.resolved.desired.state.scope(&scope).sysctls.insert(path, value.to_owned());
    }
}

/// Refuses a parent on the node for a link that can only sit on one of the pod.
fn on_the_node(parent: &str, link: &Link) -> Result<(), (Reason, String)> {
    if link.kind.on_uplink() {
        return Ok(());
    }
    let kind = link.kind.name();
    let message =
        format!("{parent} is on the node, but a link of kind {kind} sits on an interface of its own pod");
    Err((Reason::NotAllowed, message))
}

/// `ipv6/accept_ra` of `net1` is `net/ipv6/conf/net1/accept_ra`.
pub(super) fn sysctl_path(key: &str, link: &IfName) -> String {
    match key.split_once('/') {
        Some((family, rest)) => format!("net/{family}/conf/{link}/{rest}"),
        None => format!("net/ipv4/conf/{link}/{key}"),
    }
}
