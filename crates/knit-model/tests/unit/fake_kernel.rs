//! A fake kernel made of plain data. It rejects what the real one rejects: a duplicate link name, a port of a missing
//! bridge, an address on a missing link, a route over a link that is down.

#[path = "fake_filter.rs"]
pub mod filter;

use std::collections::BTreeMap;

use knit_model::filter::Filter;
use knit_model::link::{DEFAULT_VLAN, Kind, Link, Master, MovedDevice, OwnerId, PortVlans, VethPeer};
use knit_model::plan::{Plan, PlannedStep, Step};
use knit_model::{IfName, NetState, Scope};

/// The state is a model state in which every field of each link is set.
#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    state: NetState,
}

impl FakeKernel {
    /// A kernel with this state.
    pub fn with_state(state: NetState) -> Self {
        Self { state }
    }

    /// Replaces a network namespace: everything in it is deleted, with peers in other namespaces.
    pub fn replace_namespace(&mut self, scope: &Scope, state: knit_model::ScopeState) {
        let names: Vec<IfName> = self.state.scope(scope).links.keys().cloned().collect();
        for name in names {
            // Children of a deleted link are deleted already.
            let _ = self.delete(scope, &name);
        }
        self.state.scopes.insert(scope.clone(), state);
    }

    /// Deletes a network namespace with everything in it, and peers in other namespaces.
    pub fn delete_namespace(&mut self, scope: &Scope) {
        self.replace_namespace(scope, knit_model::ScopeState::default());
        self.state.scopes.remove(scope);
    }

    /// Deletes a link, as another program would.
    pub fn delete_link(&mut self, scope: &Scope, name: &str) {
        let name = name.parse().expect("a valid name");
        self.delete(scope, &name).expect("the link exists");
    }

    /// Flushes a routing table, as another program would.
    pub fn flush_table(&mut self, scope: &Scope, table: u32) {
        self.state.scope(scope).routes.retain(|key, _| key.table != table);
    }

    /// Deletes all tables of the packet filter, as `nft flush ruleset` would.
    pub fn flush_ruleset(&mut self, scope: &Scope) {
        self.state.scope(scope).filter = Default::default();
    }

    /// The packet filter of a scope.
    pub fn filter(&self, scope: &Scope) -> &Filter {
        static NONE: Filter = Filter { tables: BTreeMap::new(), elements: BTreeMap::new() };
        self.state.scopes.get(scope).map_or(&NONE, |state| &state.filter)
    }

    /// Observed state. Like the real kernel, it does not report the peer of a veth.
    pub fn observe(&self) -> NetState {
        self.observe_in(|_| true)
    }

    /// Observed state of some scopes.
    pub fn observe_in(&self, is_observed: impl Fn(&Scope) -> bool) -> NetState {
        let scopes = self.state.scopes.iter().filter(|(scope, _)| is_observed(scope));
        let filled = scopes.filter(|(_, state)| **state != knit_model::ScopeState::default());
        let mut seen =
            NetState { scopes: filled.map(|(scope, state)| (scope.clone(), state.clone())).collect() };
        for link in seen.scopes.values_mut().flat_map(|scope| scope.links.values_mut()) {
            if let Kind::Veth(veth) = &mut link.kind {
                veth.peer = None;
            }
        }
        seen
    }

    /// Executes every step that is not implied.
    pub fn apply(&mut self, plan: &Plan) -> Result<(), String> {
        for planned in plan.steps.iter().filter(|planned| !planned.implied) {
            self.step(planned).map_err(|why| format!("{}: {}: {why}", planned.scope, planned.step))?;
        }
        Ok(())
    }

    /// Rolls back a partially applied plan. Items of implied steps may still exist.
    pub fn roll_back(&mut self, done: &Plan) -> Result<(), String> {
        for planned in &done.inverse().steps {
            match self.step(planned) {
                Err(why) if why == "exists" => {}
                other => other.map_err(|why| format!("{}: {}: {why}", planned.scope, planned.step))?,
            }
        }
        Ok(())
    }

    fn step(&mut self, planned: &PlannedStep) -> Result<(), String> {
        let scope = &planned.scope;
        match &planned.step {
            Step::CreateLink { link, peer } => {
                self.create(scope, link, peer.as_ref())?;
                if let Some((there, far)) = peer {
                    self.create(there, far, Some(&(scope.clone(), link.clone())))?;
                }
                Ok(())
            }
            Step::DeleteLink { link, .. } => self.delete(scope, &link.name),
            Step::ChangeLink { name, changes, .. } => {
                if let Some(master) = changes
                    .iter()
                    .find(|change| change.field == "master")
                    .and_then(|change| change.to.as_str())
                    && !master.is_empty()
                {
                    self.link(scope, &IfName::new(master).map_err(|why| why.to_string())?)?;
                }
                let moves = changes.iter().any(|change| change.field == "master");
                let link = self.link(scope, name)?;
                let had = link.attrs.vlans.clone();
                let mut value = serde_json::to_value(&*link).map_err(|why| why.to_string())?;
                for change in changes {
                    let old = value.get(&change.field).cloned().unwrap_or_default();
                    // Unset values are not compared.
                    let is_known = !change.from.is_null() && !change.to.is_null();
                    if is_known && !change.entries && old != change.from && old != change.to {
                        return Err(format!("{} is {old}, not {}", change.field, change.from));
                    }
                    change.apply_to(&mut value[&change.field]);
                }
                *link = serde_json::from_value(value).map_err(|why| why.to_string())?;
                let sets_vlans = changes.iter().any(|change| change.field == "vlans" && !change.to.is_null());
                if !sets_vlans {
                    link.attrs.vlans = had;
                }
                if moves {
                    let port = link.clone();
                    let vlans = self.default_vlans(scope, &port).filter(|_| !sets_vlans);
                    let port = self.link(scope, name)?;
                    port.attrs.vlans = match port.attrs.master {
                        Some(Master::Link(_)) => vlans.or_else(|| port.attrs.vlans.clone()),
                        _ => None,
                    };
                }
                let link = self.link(scope, name)?;
                if link.attrs.up == Some(false) {
                    let name = name.clone();
                    let state = self.state.scope(scope);
                    if state
                        .routes
                        .values()
                        .any(|route| route.owned && route.via.iter().any(|hop| hop.link == name))
                    {
                        return Err("a link is set down while it has routes".to_owned());
                    }
                }
                Ok(())
            }
            Step::AddAddress(address) => {
                self.link(scope, &address.link)?;
                let old = self.state.scope(scope).addresses.insert(address.key(), address.clone());
                if old.is_some() { Err("exists".to_owned()) } else { Ok(()) }
            }
            Step::RemoveAddress(address) => {
                existing(self.state.scope(scope).addresses.remove(&address.key()))
            }
            Step::AddRoute(route) => {
                self.check_route(scope, route)?;
                let old = self.state.scope(scope).routes.insert(route.key(), route.clone());
                if old.is_some() { Err("exists".to_owned()) } else { Ok(()) }
            }
            Step::ReplaceRoute { before, after } => {
                self.check_route(scope, after)?;
                let old = self.state.scope(scope).routes.insert(after.key(), after.clone());
                if old.as_ref() == Some(before) { Ok(()) } else { Err("another route exists".to_owned()) }
            }
            Step::RemoveRoute(route) => existing(self.state.scope(scope).routes.remove(&route.key())),
            Step::AddRule(rule) => {
                if self.state.scope(scope).rules.insert(rule.clone()) {
                    Ok(())
                } else {
                    Err("exists".to_owned())
                }
            }
            Step::RemoveRule(rule) => existing(self.state.scope(scope).rules.take(rule)),
            Step::AddNeighbour(neighbour) => {
                self.link(scope, &neighbour.link)?;
                let old = self.state.scope(scope).neighbours.insert(neighbour.key(), neighbour.clone());
                if old.is_some() { Err("exists".to_owned()) } else { Ok(()) }
            }
            Step::ReplaceNeighbour { before, after } => {
                let old = self.state.scope(scope).neighbours.insert(after.key(), after.clone());
                if old.as_ref() == Some(before) { Ok(()) } else { Err("another neighbour exists".to_owned()) }
            }
            Step::RemoveNeighbour(neighbour) => {
                existing(self.state.scope(scope).neighbours.remove(&neighbour.key()))
            }
            Step::SetSysctl { key, to, .. } => {
                self.state.scope(scope).sysctls.insert(key.clone(), to.clone());
                Ok(())
            }
            Step::Filter(step) => filter::apply(&mut self.state.scope(scope).filter, step),
        }
    }

    fn create(&mut self, scope: &Scope, link: &Link, peer: Option<&(Scope, Link)>) -> Result<(), String> {
        if self.state.link(scope, &link.name).is_some() {
            return Err("exists".to_owned());
        }
        if let Some(master) = link.attrs.master.as_ref().and_then(Master::name) {
            self.link(scope, master)?;
        }
        if let Some(parent) = link.kind.parent() {
            self.link(&link.parent_scope.clone().unwrap_or(scope.clone()), parent)?;
        }
        if let Some(moved) = link.kind.moved_device() {
            let device = moved.device.as_ref().ok_or("a NIC has a name")?;
            let nic = self.state.scope(&Scope::Host).links.remove(device).ok_or("no such NIC")?;
            if moved.original.as_deref() != Some(&MovedDevice::saved_attrs(&nic.attrs)) {
                return Err(format!("{device} has other original attributes"));
            }
        }
        let mut made = link.clone();
        made.attrs.up.get_or_insert(false);
        made.attrs.group.get_or_insert(0);
        made.attrs.mtu.get_or_insert(1500);
        made.attrs.master.get_or_insert(Master::None);
        if let Some(vlans) = self.default_vlans(scope, &made) {
            made.attrs.vlans.get_or_insert(vlans);
        }
        if let Kind::Veth(veth) = &mut made.kind {
            let (peer_scope, far) = peer.ok_or("a veth needs its peer")?;
            veth.peer = Some(VethPeer { scope: peer_scope.clone(), name: far.name.clone() });
        }
        self.state.scope(scope).add_link(made);
        Ok(())
    }

    /// Default VLANs of a bridge or of a new bridge port.
    fn default_vlans(&self, scope: &Scope, link: &Link) -> Option<PortVlans> {
        let master = link.attrs.master.as_ref().and_then(Master::name);
        let bridge = master.map_or(Some(link), |master| self.state.link(scope, master))?;
        let Kind::Bridge(bridge) = &bridge.kind else { return None };
        Some(PortVlans::access(bridge.default_pvid.unwrap_or(DEFAULT_VLAN)))
    }

    /// Deletes a link like the kernel: with its peer, its children, and all addresses and routes.
    fn delete(&mut self, scope: &Scope, name: &IfName) -> Result<(), String> {
        let link = self.link(scope, name)?.clone();
        let state = self.state.scope(scope);
        state.links.remove(name);
        state.addresses.retain(|_, address| address.link != *name);
        state.routes.retain(|_, route| route.via.iter().all(|hop| hop.link != *name));
        state.neighbours.retain(|_, neighbour| neighbour.link != *name);
        state.sysctls.retain(|key, _| !key.contains(&format!("/conf/{name}/")));
        for port in
            state.links.values_mut().filter(|port| port.attrs.master == Some(Master::Link(name.clone())))
        {
            (port.attrs.master, port.attrs.vlans) = (Some(Master::None), None);
        }
        if let Kind::Veth(veth) = &link.kind
            && let Some(peer) = &veth.peer
            && self.state.link(&peer.scope, &peer.name).is_some()
        {
            self.delete(&peer.scope.clone(), &peer.name.clone())?;
        }
        if let Some(MovedDevice { device: Some(device), original: Some(original) }) = link.kind.moved_device()
        {
            let kind = Kind::Other { name: String::new() };
            let nic = Link { attrs: (**original).clone(), ..Link::new(device.clone(), kind) };
            self.state.scope(&Scope::Host).add_link(nic);
        }
        let children: Vec<(Scope, IfName)> = self.children_of(scope, name);
        children.into_iter().try_for_each(|(scope, name)| self.delete(&scope, &name))
    }

    fn children_of(&self, scope: &Scope, name: &IfName) -> Vec<(Scope, IfName)> {
        let links = self
            .state
            .scopes
            .iter()
            .flat_map(|(place, state)| state.links.values().map(move |link| (place, link)));
        let is_child = |place: &Scope, link: &Link| {
            link.parent_scope.as_ref().unwrap_or(place) == scope && link.kind.parent() == Some(name)
        };
        links
            .filter(|(place, link)| is_child(place, link))
            .map(|(place, link)| (place.clone(), link.name.clone()))
            .collect()
    }

    fn check_route(&mut self, scope: &Scope, route: &knit_model::Route) -> Result<(), String> {
        for hop in &route.via {
            if self.link(scope, &hop.link)?.attrs.up != Some(true) {
                return Err(format!("{} is down", hop.link));
            }
            let on_link = |gateway| {
                let mut addresses = self.state.scopes[scope].addresses.values();
                addresses.any(|address| address.link == hop.link && address.address.contains(&gateway))
            };
            if let Some(gateway) = hop.gateway
                && !hop.onlink
                && !on_link(gateway)
            {
                return Err(format!("{gateway} cannot be reached"));
            }
        }
        Ok(())
    }

    fn link(&mut self, scope: &Scope, name: &IfName) -> Result<&mut Link, String> {
        self.state.scope(scope).links.get_mut(name).ok_or_else(|| format!("no link {name} in {scope}"))
    }
}

fn existing<T>(found: Option<T>) -> Result<(), String> {
    found.map(|_| ()).ok_or_else(|| "missing".to_owned())
}

/// A stable owner id.
pub fn owner(of: &str) -> Option<OwnerId> {
    Some(OwnerId::derived(of))
}
