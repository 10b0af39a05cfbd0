//! A kernel made of plain data. It refuses what the real one refuses: a second link of a name, a port of a bridge that
//! is not there, an address without its link, a route over a link that is down.

use knit_model::link::{DEFAULT_VLAN, Kind, Lent, Link, Master, OwnerId, Peer, PortVlans};
use knit_model::plan::{Plan, Planned, Step};
use knit_model::{IfName, NetState, Scope};

/// The kernel's state is a model state with every field of each link known.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    state: NetState,
}

impl Kernel {
    /// A kernel that already holds something.
    pub fn holding(state: NetState) -> Self {
        Self { state }
    }

    /// A namespace dies, with all that is in it and the far ends elsewhere, and another is born in its place.
    pub fn reborn(&mut self, scope: &Scope, newborn: knit_model::ScopeState) {
        let names: Vec<IfName> = self.state.scope(scope).links.keys().cloned().collect();
        for name in names {
            // What sits on a link that went is gone already.
            let _ = self.delete(scope, &name);
        }
        self.state.scopes.insert(scope.clone(), newborn);
    }

    /// A namespace dies, with all that is in it and the far ends elsewhere.
    #[allow(dead_code, reason = "not every test has namespaces that die")]
    pub fn died(&mut self, scope: &Scope) {
        self.reborn(scope, knit_model::ScopeState::default());
        self.state.scopes.remove(scope);
    }

    /// Someone deletes a link.
    #[allow(dead_code, reason = "plans' own tests delete by plan")]
    pub fn drop_link(&mut self, scope: &Scope, name: &str) {
        let name = name.parse().expect("a valid name");
        self.delete(scope, &name).expect("it is there");
    }

    /// Someone empties a routing table.
    #[allow(dead_code, reason = "plans' own tests delete by plan")]
    pub fn drop_routes(&mut self, scope: &Scope, table: u32) {
        self.state.scope(scope).routes.retain(|key, _| key.table != table);
    }

    /// What is there. As with the real kernel, a veth does not tell the name of its far end.
    pub fn observe(&self) -> NetState {
        self.observe_in(|_| true)
    }

    /// What is there in some scopes.
    pub fn observe_in(&self, is_looked_at: impl Fn(&Scope) -> bool) -> NetState {
        let scopes = self.state.scopes.iter().filter(|(scope, _)| is_looked_at(scope));
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

    /// Carries out every step; what is implied happens by itself.
    pub fn apply(&mut self, plan: &Plan) -> Result<(), String> {
        for planned in plan.steps.iter().filter(|planned| !planned.implied) {
            self.step(planned).map_err(|why| format!("{}: {}: {why}", planned.scope, planned.step))?;
        }
        Ok(())
    }

    /// Takes back a plan that was carried out up to some step. What an implied step should have lost may still be there.
    pub fn roll_back(&mut self, done: &Plan) -> Result<(), String> {
        for planned in &done.inverse().steps {
            match self.step(planned) {
                Err(why) if why == "exists" => {}
                other => other.map_err(|why| format!("{}: {}: {why}", planned.scope, planned.step))?,
            }
        }
        Ok(())
    }

    fn step(&mut self, planned: &Planned) -> Result<(), String> {
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
                    // What was never seen is not known to be so.
                    let is_known = !change.from.is_null() && !change.to.is_null();
                    if is_known && old != change.from && old != change.to {
                        return Err(format!("{} is {old}, not {}", change.field, change.from));
                    }
                    value[&change.field] = change.to.clone();
                }
                *link = serde_json::from_value(value).map_err(|why| why.to_string())?;
                let is_told = changes.iter().any(|change| change.field == "vlans" && !change.to.is_null());
                if !is_told {
                    link.attrs.vlans = had;
                }
                if moves {
                    let port = link.clone();
                    let vlans = self.vlans_at_birth(scope, &port).filter(|_| !is_told);
                    let port = self.link(scope, name)?;
                    port.attrs.vlans = match port.attrs.master {
                        Some(Master::Of(_)) => vlans.or_else(|| port.attrs.vlans.clone()),
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
                        return Err("a link goes down under its routes".to_owned());
                    }
                }
                Ok(())
            }
            Step::AddAddress(address) => {
                self.link(scope, &address.link)?;
                let old = self.state.scope(scope).addresses.insert(address.key(), address.clone());
                if old.is_some() { Err("exists".to_owned()) } else { Ok(()) }
            }
            Step::RemoveAddress(address) => there(self.state.scope(scope).addresses.remove(&address.key())),
            Step::AddRoute(route) => {
                self.route_is_possible(scope, route)?;
                let old = self.state.scope(scope).routes.insert(route.key(), route.clone());
                if old.is_some() { Err("exists".to_owned()) } else { Ok(()) }
            }
            Step::ReplaceRoute { before, after } => {
                self.route_is_possible(scope, after)?;
                let old = self.state.scope(scope).routes.insert(after.key(), after.clone());
                if old.as_ref() == Some(before) {
                    Ok(())
                } else {
                    Err("another route stood there".to_owned())
                }
            }
            Step::RemoveRoute(route) => there(self.state.scope(scope).routes.remove(&route.key())),
            Step::AddRule(rule) => {
                if self.state.scope(scope).rules.insert(rule.clone()) {
                    Ok(())
                } else {
                    Err("exists".to_owned())
                }
            }
            Step::RemoveRule(rule) => there(self.state.scope(scope).rules.take(rule)),
            Step::AddNeighbour(neighbour) => {
                self.link(scope, &neighbour.link)?;
                let old = self.state.scope(scope).neighbours.insert(neighbour.key(), neighbour.clone());
                if old.is_some() { Err("exists".to_owned()) } else { Ok(()) }
            }
            Step::ReplaceNeighbour { before, after } => {
                let old = self.state.scope(scope).neighbours.insert(after.key(), after.clone());
                if old.as_ref() == Some(before) {
                    Ok(())
                } else {
                    Err("another neighbour stood there".to_owned())
                }
            }
            Step::RemoveNeighbour(neighbour) => {
                there(self.state.scope(scope).neighbours.remove(&neighbour.key()))
            }
            Step::SetSysctl { key, to, .. } => {
                self.state.scope(scope).sysctls.insert(key.clone(), to.clone());
                Ok(())
            }
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
            self.link(&link.born_from.clone().unwrap_or(scope.clone()), parent)?;
        }
        if let Some(lent) = link.kind.lent() {
            let device = lent.device.as_ref().ok_or("a NIC has a name")?;
            let nic = self.state.scope(&Scope::Host).links.remove(device).ok_or("no such NIC")?;
            if lent.was.as_deref() != Some(&Lent::returned(&nic.attrs)) {
                return Err(format!("{device} was not as it is said"));
            }
        }
        let mut made = link.clone();
        made.attrs.up.get_or_insert(false);
        made.attrs.group.get_or_insert(0);
        made.attrs.mtu.get_or_insert(1500);
        made.attrs.master.get_or_insert(Master::Nothing);
        if let Some(vlans) = self.vlans_at_birth(scope, &made) {
            made.attrs.vlans.get_or_insert(vlans);
        }
        if let Kind::Veth(veth) = &mut made.kind {
            let (there, far) = peer.ok_or("a veth needs its far end")?;
            veth.peer = Some(Peer { scope: there.clone(), name: far.name.clone() });
        }
        self.state.scope(scope).add_link(made);
        Ok(())
    }

    /// What a bridge, or a link that becomes a port of one, has until it is told otherwise.
    fn vlans_at_birth(&self, scope: &Scope, link: &Link) -> Option<PortVlans> {
        let master = link.attrs.master.as_ref().and_then(Master::name);
        let bridge = master.map_or(Some(link), |master| self.state.link(scope, master))?;
        let Kind::Bridge(bridge) = &bridge.kind else { return None };
        Some(PortVlans::access(bridge.default_pvid.unwrap_or(DEFAULT_VLAN)))
    }

    /// Deletes a link as the kernel does: the far end, what sits on it, and all addresses and routes go too.
    fn delete(&mut self, scope: &Scope, name: &IfName) -> Result<(), String> {
        let link = self.link(scope, name)?.clone();
        let state = self.state.scope(scope);
        state.links.remove(name);
        state.addresses.retain(|_, address| address.link != *name);
        state.routes.retain(|_, route| route.via.iter().all(|hop| hop.link != *name));
        state.neighbours.retain(|_, neighbour| neighbour.link != *name);
        state.sysctls.retain(|key, _| !key.contains(&format!("/conf/{name}/")));
        for port in
            state.links.values_mut().filter(|port| port.attrs.master == Some(Master::Of(name.clone())))
        {
            (port.attrs.master, port.attrs.vlans) = (Some(Master::Nothing), None);
        }
        if let Kind::Veth(veth) = &link.kind
            && let Some(peer) = &veth.peer
            && self.state.link(&peer.scope, &peer.name).is_some()
        {
            self.delete(&peer.scope.clone(), &peer.name.clone())?;
        }
        if let Some(Lent { device: Some(device), was: Some(was) }) = link.kind.lent() {
            let kind = Kind::Other { name: String::new() };
            let nic = Link { attrs: (**was).clone(), ..Link::new(device.clone(), kind) };
            self.state.scope(&Scope::Host).add_link(nic);
        }
        let on_it: Vec<(Scope, IfName)> = self.all_on(scope, name);
        on_it.into_iter().try_for_each(|(scope, name)| self.delete(&scope, &name))
    }

    fn all_on(&self, scope: &Scope, name: &IfName) -> Vec<(Scope, IfName)> {
        let links = self
            .state
            .scopes
            .iter()
            .flat_map(|(place, state)| state.links.values().map(move |link| (place, link)));
        let sits = |place: &Scope, link: &Link| {
            link.born_from.as_ref().unwrap_or(place) == scope && link.kind.parent() == Some(name)
        };
        links
            .filter(|(place, link)| sits(place, link))
            .map(|(place, link)| (place.clone(), link.name.clone()))
            .collect()
    }

    fn route_is_possible(&mut self, scope: &Scope, route: &knit_model::Route) -> Result<(), String> {
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

fn there<T>(found: Option<T>) -> Result<(), String> {
    found.map(|_| ()).ok_or_else(|| "not there".to_owned())
}

/// An owner, for generated links.
pub fn owner(of: &str) -> Option<OwnerId> {
    Some(OwnerId::derived(of))
}
