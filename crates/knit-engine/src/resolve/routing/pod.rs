//! What a pod has and is about to have: whether it holds what a route, neighbour or sysctl needs.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::intent::{NextHopIntent, RouteIntent, RoutingEntry, RoutingIntent, SysctlIntent};
use knit_model::link::{Kind, Link, Master};
use knit_model::problem::Reason;
use knit_model::route::MAIN_TABLE;
use knit_model::{Address, IfName, Neighbour, Route, Rule, ScopeState, marks};

use super::{Placed, Refusal, route_text};

/// The metric that the kernel gives to the IPv6 route that comes with an address.
const CONNECTED_METRIC: u32 = 256;

/// A pod: what is wanted there so far, and what was seen.
pub(super) struct Pod<'a> {
    pub(super) title: &'a str,
    pub(super) desired: &'a ScopeState,
    pub(super) seen: &'a ScopeState,
}

impl Pod<'_> {
    /// What is asked for as the kernel will hold it, if nothing of others stands there and all that it needs is there.
    pub(super) fn place(&self, want: &RoutingIntent) -> Result<Placed, Refusal> {
        match &want.entry {
            RoutingEntry::Route(route) => self.route(route, want.vrf.as_ref()).map(Placed::Route),
            RoutingEntry::Rule(rule) => self.rule(rule).map(Placed::Rule),
            RoutingEntry::Neighbour(neighbour) => self.neighbour(neighbour).map(Placed::Neighbour),
            RoutingEntry::Sysctl(sysctl) => self.sysctl(sysctl),
        }
    }

    fn route(&self, want: &RouteIntent, vrf: Option<&IfName>) -> Result<Route, Refusal> {
        let table = vrf.map(|vrf| self.table_of(vrf)).transpose()?;
        let mut want = want.clone();
        if let Some(table) = table.filter(|_| want.table == MAIN_TABLE) {
            want.table = table;
        }
        for hop in &mut want.via {
            let link = self.link_of(hop, vrf)?;
            self.reaches(&link, hop)?;
            hop.link = Some(link);
        }
        if let Some(source) = want.source
            && !self.addresses().any(|address| address.address.addr() == source)
        {
            return self.waits(format!("for an interface with the source address {source}"));
        }
        // Every hop has its link by now.
        let nowhere = IfName::new("lo").expect("a valid name");
        let route = want.on(&nowhere);
        self.route_is_free(&route)?;
        Ok(route)
    }

    /// Whether no one but Knit has such a route, or will have it by an address.
    pub(super) fn route_is_free(&self, route: &Route) -> Result<(), Refusal> {
        let stays = |there: &Route| there.via.iter().all(|hop| self.link(&hop.link).is_some());
        if self.seen.routes.get(&route.key()).is_some_and(|there| !there.owned && stays(there)) {
            return self.not_owned(&route_text(route));
        }
        let connected = |address: &&Address| {
            let metric = if address.address.addr().is_ipv4() { 0 } else { CONNECTED_METRIC };
            let table = self.vrf_of(&address.link).and_then(|vrf| self.table_of(vrf).ok());
            let table = table.unwrap_or(MAIN_TABLE);
            let key = route.key();
            !address.noprefixroute
                && (key.table, key.to, key.metric) == (table, address.address.trunc(), metric)
        };
        match self.desired.addresses.values().find(connected) {
            None => Ok(()),
            Some(address) => Err((
                Reason::NotOwned,
                format!(
                    "{} of pod {} is the kernel's: it comes with the address {address}",
                    route_text(route),
                    self.title
                ),
            )),
        }
    }

    fn rule(&self, rule: &Rule) -> Result<Rule, Refusal> {
        if self.seen.foreign_rules.contains(rule) {
            return self.not_owned(&format!("rule {rule}"));
        }
        Ok(rule.clone())
    }

    fn neighbour(&self, neighbour: &Neighbour) -> Result<Neighbour, Refusal> {
        self.interface(&neighbour.link)?;
        if self.seen.neighbours.get(&neighbour.key()).is_some_and(|there| !there.owned) {
            return self.not_owned(&format!("neighbour {} on {}", neighbour.address, neighbour.link));
        }
        Ok(neighbour.clone())
    }

    fn sysctl(&self, sysctl: &SysctlIntent) -> Result<Placed, Refusal> {
        if let Some(link) = sysctl.link.as_ref().filter(|link| self.link(link).is_none()) {
            return self.waits(format!("for interface {link}, which is not there"));
        }
        let path = sysctl.path();
        if !self.seen.sysctls.contains_key(&sysctl.default_path().unwrap_or_else(|| path.clone())) {
            let name = path.replace('/', ".");
            return Err((Reason::KernelLacks, format!("this kernel has no sysctl {name}")));
        }
        Ok(Placed::Sysctl(path, sysctl.value.clone()))
    }

    /// A link that is there, or will be. One of Knit's that nobody asks for any more goes.
    pub(super) fn link(&self, name: &IfName) -> Option<&Link> {
        let wanted = self.desired.links.get(name).filter(|link| link.owner.is_some());
        let is_knits = |link: &Link| link.owner.is_some() || link.attrs.group == Some(marks::BIRTH_GROUP);
        wanted.or_else(|| self.seen.links.get(name).filter(|link| !is_knits(link)))
    }

    /// A link that is up, or will be.
    fn interface(&self, name: &IfName) -> Result<&Link, Refusal> {
        match self.link(name) {
            None => self.waits(format!("for interface {name}, which is not there")),
            Some(link) if link.attrs.up == Some(false) => {
                self.waits(format!("for interface {name}, which is down"))
            }
            Some(link) => Ok(link),
        }
    }

    /// The table of a VRF of the pod.
    fn table_of(&self, vrf: &IfName) -> Result<u32, Refusal> {
        let Ok(link) = self.interface(vrf) else {
            return self.waits(format!("for VRF {vrf}, which is not there"));
        };
        let message = || format!("interface {vrf} of pod {} is no VRF", self.title);
        link.kind.table().ok_or_else(|| (Reason::InvalidValue, message()))
    }

    /// The VRF that an interface is a port of.
    fn vrf_of(&self, name: &IfName) -> Option<&IfName> {
        let master = self.link(name)?.attrs.master.as_ref().and_then(Master::name)?;
        self.link(master).is_some_and(|link| matches!(link.kind, Kind::Vrf(_))).then_some(master)
    }

    /// The interface of a next hop: the one that is named, or the one whose network the router is on.
    fn link_of(&self, hop: &NextHopIntent, vrf: Option<&IfName>) -> Result<IfName, Refusal> {
        if let Some(link) = &hop.link {
            return Ok(link.clone());
        }
        let Some(gateway) = hop.gateway else {
            return Err((Reason::InvalidValue, "a next hop needs a router or an interface".to_owned()));
        };
        let near = self.addresses().filter(|address| address.address.contains(&gateway));
        let near = near.filter(|address| self.vrf_of(&address.link) == vrf);
        match near.max_by_key(|address| address.address.prefix_len()) {
            Some(address) => Ok(address.link.clone()),
            None => self.waits(format!("for an interface whose network has the router {gateway}")),
        }
    }

    /// Whether the kernel will find the router of a next hop on its interface.
    fn reaches(&self, link: &IfName, hop: &NextHopIntent) -> Result<(), Refusal> {
        self.interface(link)?;
        let Some(gateway) = hop.gateway.filter(|gateway| !hop.onlink && !is_link_local(gateway)) else {
            return Ok(());
        };
        let on_link = self.addresses().filter(|address| !address.noprefixroute && address.link == *link);
        let on_link = on_link.map(|address| address.address);
        let mut near = on_link.chain(self.connected(link));
        if near.any(|near: IpNet| near.contains(&gateway)) {
            return Ok(());
        }
        self.waits(format!("for an address of {link} that reaches the router {gateway}"))
    }

    /// Destinations that are directly on an interface, by a route.
    fn connected(&self, link: &IfName) -> impl Iterator<Item = IpNet> {
        let wanted = self.desired.routes.values();
        let routes = wanted.chain(self.seen.routes.values().filter(|route| !route.owned));
        let is_direct = |route: &&Route| {
            route.via.iter().all(|hop| hop.gateway.is_none())
                && route.via.iter().any(|hop| hop.link == *link)
                && route.to.prefix_len() > 0
        };
        routes.filter(is_direct).map(|route| route.to).collect::<Vec<_>>().into_iter()
    }

    /// Addresses that the pod has from others, and those that it will have from Knit.
    fn addresses(&self) -> impl Iterator<Item = &Address> {
        let foreign = self.seen.addresses.values().filter(|address| !address.owned);
        let staying = foreign.filter(|address| self.link(&address.link).is_some());
        self.desired.addresses.values().chain(staying)
    }

    fn waits<T>(&self, what: String) -> Result<T, Refusal> {
        Err((Reason::NotFound, format!("pod {} waits {what}", self.title)))
    }

    fn not_owned<T>(&self, what: &str) -> Result<T, Refusal> {
        let message = format!("{what} of pod {} exists, and Knit did not make it", self.title);
        Err((Reason::NotOwned, message))
    }
}

fn is_link_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}
