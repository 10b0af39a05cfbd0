//! The desired and observed state of a pod: whether it has what a route, neighbour or sysctl depends on.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::intent::{NextHopIntent, RouteIntent, RoutingEntry, RoutingIntent, SysctlIntent};
use knit_model::link::{Kind, Link, Master};
use knit_model::problem::Reason;
use knit_model::route::MAIN_TABLE;
use knit_model::{Address, IfName, Neighbour, Route, Rule, ScopeState, kernel_ids};

use super::{PlacedEntry, Rejection, route_text};

/// The metric of the kernel's IPv6 prefix routes.
const CONNECTED_METRIC: u32 = 256;

/// A pod's desired state so far, and its observed state.
pub(super) struct Pod<'a> {
    pub(super) title: &'a str,
    pub(super) desired: &'a ScopeState,
    pub(super) observed: &'a ScopeState,
}

impl Pod<'_> {
    /// The entry as the kernel will hold it, if no foreign entry conflicts and all dependencies exist.
    pub(super) fn place(&self, spec: &RoutingIntent) -> Result<PlacedEntry, Rejection> {
        match &spec.entry {
            RoutingEntry::Route(route) => self.route(route, spec.vrf.as_ref()).map(PlacedEntry::Route),
            RoutingEntry::Rule(rule) => self.rule(rule).map(PlacedEntry::Rule),
            RoutingEntry::Neighbour(neighbour) => self.neighbour(neighbour).map(PlacedEntry::Neighbour),
            RoutingEntry::Sysctl(sysctl) => self.sysctl(sysctl),
        }
    }

    fn route(&self, spec: &RouteIntent, vrf: Option<&IfName>) -> Result<Route, Rejection> {
        let table = vrf.map(|vrf| self.table_of(vrf)).transpose()?;
        let mut spec = spec.clone();
        if let Some(table) = table.filter(|_| spec.table == MAIN_TABLE) {
            spec.table = table;
        }
        for hop in &mut spec.via {
            let link = self.link_of(hop, vrf)?;
            self.reaches(&link, hop)?;
            hop.link = Some(link);
        }
        if let Some(source) = spec.source
            && !self.addresses().any(|address| address.address.addr() == source)
        {
            return self.waits(format!("for an interface with the source address {source}"));
        }
        // Every hop has its link by now.
        let nowhere = IfName::new("lo").expect("a valid name");
        let route = spec.to_route(&nowhere);
        self.route_is_free(&route)?;
        Ok(route)
    }

    /// Whether the route is neither foreign nor the prefix route of an address.
    pub(super) fn route_is_free(&self, route: &Route) -> Result<(), Rejection> {
        let stays = |existing: &Route| existing.via.iter().all(|hop| self.link(&hop.link).is_some());
        if self.observed.routes.get(&route.key()).is_some_and(|existing| !existing.owned && stays(existing)) {
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
                    "{} of pod {} is the kernel's prefix route of the address {address}",
                    route_text(route),
                    self.title
                ),
            )),
        }
    }

    fn rule(&self, rule: &Rule) -> Result<Rule, Rejection> {
        if self.observed.foreign_rules.contains(rule) {
            return self.not_owned(&format!("rule {rule}"));
        }
        Ok(rule.clone())
    }

    fn neighbour(&self, neighbour: &Neighbour) -> Result<Neighbour, Rejection> {
        self.interface(&neighbour.link)?;
        if self.observed.neighbours.get(&neighbour.key()).is_some_and(|existing| !existing.owned) {
            return self.not_owned(&format!("neighbour {} on {}", neighbour.address, neighbour.link));
        }
        Ok(neighbour.clone())
    }

    fn sysctl(&self, sysctl: &SysctlIntent) -> Result<PlacedEntry, Rejection> {
        if let Some(link) = sysctl.link.as_ref().filter(|link| self.link(link).is_none()) {
            return self.waits(format!("for interface {link}, which does not exist"));
        }
        let path = sysctl.path();
        if !self.observed.sysctls.contains_key(&sysctl.default_path().unwrap_or_else(|| path.clone())) {
            let name = path.replace('/', ".");
            return Err((Reason::KernelUnsupported, format!("this kernel has no sysctl {name}")));
        }
        Ok(PlacedEntry::Sysctl(path, sysctl.value.clone()))
    }

    /// A link that exists, or will exist. Knit's own links that are no longer desired do not count.
    pub(super) fn link(&self, name: &IfName) -> Option<&Link> {
        let requested = self.desired.links.get(name).filter(|link| link.owner.is_some());
        let is_knits =
            |link: &Link| link.owner.is_some() || link.attrs.group == Some(kernel_ids::NEW_LINK_GROUP);
        requested.or_else(|| self.observed.links.get(name).filter(|link| !is_knits(link)))
    }

    /// A link that is up, or will be.
    fn interface(&self, name: &IfName) -> Result<&Link, Rejection> {
        match self.link(name) {
            None => self.waits(format!("for interface {name}, which does not exist")),
            Some(link) if link.attrs.up == Some(false) => {
                self.waits(format!("for interface {name}, which is down"))
            }
            Some(link) => Ok(link),
        }
    }

    /// The routing table of a VRF of the pod.
    fn table_of(&self, vrf: &IfName) -> Result<u32, Rejection> {
        let Ok(link) = self.interface(vrf) else {
            return self.waits(format!("for VRF {vrf}, which does not exist"));
        };
        let message = || format!("interface {vrf} of pod {} is not a VRF", self.title);
        link.kind.table().ok_or_else(|| (Reason::InvalidValue, message()))
    }

    /// The VRF that an interface is a port of.
    fn vrf_of(&self, name: &IfName) -> Option<&IfName> {
        let master = self.link(name)?.attrs.master.as_ref().and_then(Master::name)?;
        self.link(master).is_some_and(|link| matches!(link.kind, Kind::Vrf(_))).then_some(master)
    }

    /// The interface of a next hop: explicit, or the one whose subnet contains the gateway.
    fn link_of(&self, hop: &NextHopIntent, vrf: Option<&IfName>) -> Result<IfName, Rejection> {
        if let Some(link) = &hop.link {
            return Ok(link.clone());
        }
        let Some(gateway) = hop.gateway else {
            return Err((Reason::InvalidValue, "a next hop needs a gateway or an interface".to_owned()));
        };
        let near = self.addresses().filter(|address| address.address.contains(&gateway));
        let near = near.filter(|address| self.vrf_of(&address.link) == vrf);
        match near.max_by_key(|address| address.address.prefix_len()) {
            Some(address) => Ok(address.link.clone()),
            None => self.waits(format!("for an interface whose subnet contains the gateway {gateway}")),
        }
    }

    /// Whether the gateway of a next hop is reachable on its interface.
    fn reaches(&self, link: &IfName, hop: &NextHopIntent) -> Result<(), Rejection> {
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
        self.waits(format!("for an address of {link} that reaches the gateway {gateway}"))
    }

    /// Destinations with a direct route on an interface.
    fn connected(&self, link: &IfName) -> impl Iterator<Item = IpNet> {
        let requested = self.desired.routes.values();
        let routes = requested.chain(self.observed.routes.values().filter(|route| !route.owned));
        let is_direct = |route: &&Route| {
            route.via.iter().all(|hop| hop.gateway.is_none())
                && route.via.iter().any(|hop| hop.link == *link)
                && route.to.prefix_len() > 0
        };
        routes.filter(is_direct).map(|route| route.to).collect::<Vec<_>>().into_iter()
    }

    /// Foreign addresses of the pod, and its desired ones.
    fn addresses(&self) -> impl Iterator<Item = &Address> {
        let foreign = self.observed.addresses.values().filter(|address| !address.owned);
        let staying = foreign.filter(|address| self.link(&address.link).is_some());
        self.desired.addresses.values().chain(staying)
    }

    fn waits<T>(&self, what: String) -> Result<T, Rejection> {
        Err((Reason::NotFound, format!("pod {} waits {what}", self.title)))
    }

    fn not_owned<T>(&self, what: &str) -> Result<T, Rejection> {
        let message = format!("{what} of pod {} exists and is not owned by Knit", self.title);
        Err((Reason::NotOwned, message))
    }
}

fn is_link_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}
