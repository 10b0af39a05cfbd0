//! WireGuard to other nodes: one link, with a peer for each node that has published its key.
//!
//! Routes to all other nodes are unreachable, so that nothing leaves the node unencrypted. The allowed IPs of a peer
//! are its pod ranges and its own addresses, since it sends to pods from both; no two peers share an allowed IP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use knit_model::intent::{EncryptionIntent, NodeRoutesIntent, PeerNode, TunnelEndpoint};
use knit_model::link::{Attrs, Kind, Link, LinkKind, WireGuard, WireGuardPeer};
use knit_model::provenance::Provenance;
use knit_model::report::{ItemKind, ItemReport};
use knit_model::route::{NextHop, RouteAction, RouteScope};
use knit_model::{IfName, KeyRef, NetState, PublicKey, Route, Scope, SecretKey, kernel_ids, sysctl};

use super::next_hop::pair;
use super::{add_route, add_rules_of_pods, owner, put_link, put_sysctl, sources};
use crate::cluster::{self, ClusterNetwork};
use crate::event::Unit;
use crate::resolve::{Resolved, keys, with_defaults};
use crate::state::{OriginalValueKey, State};

/// The WireGuard peers of this node.
pub(super) struct WireGuardMesh<'a> {
    cluster: ClusterNetwork<'a>,
    spec: &'a EncryptionIntent,
    origin: &'a Provenance,
    /// Sources of the node's own traffic to remote pods.
    sources: Vec<IpAddr>,
    /// The explanation if the kernel does not support WireGuard.
    unsupported: Option<&'a str>,
    /// The nodes that published each key.
    published: BTreeMap<PublicKey, BTreeSet<&'a str>>,
    /// This node's public key, once known.
    own: Option<PublicKey>,
    peers: BTreeMap<PublicKey, WireGuardPeer>,
}

impl<'a> WireGuardMesh<'a> {
    /// `None` without encryption.
    pub(super) fn new(
        state: &'a State,
        cluster: ClusterNetwork<'a>,
        node_routes: &'a NodeRoutesIntent,
        origin: &'a Provenance,
    ) -> Option<Self> {
        let spec = node_routes.encryption.as_ref()?;
        let mut published: BTreeMap<PublicKey, BTreeSet<&str>> = BTreeMap::new();
        for peer in cluster.peers.values() {
            if let Some(key) = peer.key {
                published.entry(key).or_default().insert(&peer.name);
            }
        }
        Some(Self {
            cluster,
            spec,
            origin,
            sources: sources(state, cluster),
            unsupported: state.unsupported.get(WireGuard::NAME).map(String::as_str),
            published,
            own: state.public_key(),
            peers: BTreeMap::new(),
        })
    }

    /// Adds a route to a range of a node, or an unreachable route.
    pub(super) fn add(
        &mut self,
        peer: &PeerNode,
        range: IpNet,
        resolved: &mut Resolved,
    ) -> Result<ItemReport, String> {
        let own = peer.all_addresses().filter(|address| address.is_ipv4() == range.addr().is_ipv4());
        let all = std::iter::once(range).chain(own.map(IpNet::from));
        let (key, end, to) = match self.remote_end(peer) {
            Ok(found) => found,
            Err(error) => {
                for to in all {
                    add_route(unreachable_route(to), self.origin, resolved);
                }
                return Err(error);
            }
        };
        let link = link_name();
        for to in all {
            let hop = NextHop { gateway: None, link: link.clone(), weight: 1, onlink: false };
            let source = self.sources.iter().find(|source| source.is_ipv4() == to.addr().is_ipv4()).copied();
            let mtu = Some(mtu_over(end)).filter(|mtu| *mtu < self.mtu());
            let route = Route { table: kernel_ids::HOST_TABLE, source, mtu, ..Route::through(to, hop) };
            add_route(route, self.origin, resolved);
        }
        let endpoint = SocketAddr::new(to, self.spec.port);
        let entry = self.peers.entry(key).or_insert_with(|| WireGuardPeer {
            preshared_key: Some(SecretKey::none()),
            endpoint: Some(endpoint),
            allowed_ips: Some(peer.all_addresses().map(IpNet::from).collect()),
            keepalive: Some(0),
        });
        entry.allowed_ips.get_or_insert_default().insert(range);
        let what = format!("pods of node {} in {range}: wireguard, to {endpoint} by {link}", peer.name);
        let (field, kind) = (self.origin.field.clone(), ItemKind::NodeRoute);
        Ok(ItemReport { field, kind, description: what, links: vec![link], ready: true })
    }

    /// The key and the endpoints of a node, or why it is not a peer.
    fn remote_end(&self, peer: &PeerNode) -> Result<(PublicKey, &'a TunnelEndpoint, IpAddr), String> {
        if let Some(message) = self.unsupported {
            return Err(format!("encryption is required, and {message}"));
        }
        let key = peer.key.ok_or("it has not published a WireGuard public key")?;
        let mut others = self.published.get(&key).into_iter().flatten().filter(|name| **name != peer.name);
        if let Some(other) = others.next() {
            return Err(format!("it has published the same WireGuard public key as node {other}"));
        }
        if key == PublicKey::NONE || self.own == Some(key) {
            return Err("the WireGuard public key that it has published is not its own".to_owned());
        }
        let (end, to) = pair(&self.spec.endpoints, peer)?;
        Ok((key, end, to))
    }

    /// The link has the largest MTU; routes with a smaller one carry it explicitly.
    fn mtu(&self) -> u32 {
        self.spec.endpoints.iter().map(mtu_over).max().unwrap_or_default()
    }

    /// Adds the link, even without peers, since other nodes wait for this node's key, and the rules of pods.
    pub(super) fn finish(self, resolved: &mut Resolved) {
        add_rules_of_pods(self.cluster, self.origin, resolved);
        if let Some(message) = self.unsupported {
            let warning = format!("no traffic to other nodes: encryption is required, and {message}");
            resolved.unit_state.warnings.push((cluster::key(), warning));
            return;
        }
        if self.spec.endpoints.is_empty() {
            let warning = "no traffic to other nodes: no link has an address of this node".to_owned();
            resolved.unit_state.warnings.push((cluster::key(), warning));
            return;
        }
        let mtu = self.mtu();
        let wireguard = WireGuard {
            private_key: Some(SecretKey::from_source(KeyRef::Generated { id: String::new() })),
            listen_port: Some(self.spec.port),
            fwmark: Some(0),
            peers: Some(self.peers),
        };
        let mut link = Link::new(link_name(), Kind::WireGuard(wireguard).with_defaults());
        keys::name_generated(&mut link, &owner(&link_name()), &mut resolved.observe.keys);
        link.attrs = with_defaults(&link.kind, &Attrs::default(), Some(mtu), None, "");
        put_link(link, self.origin, resolved);
        for (path, value) in WireGuard::SYSCTLS {
            put_sysctl(path, value, self.origin, resolved);
        }
    }
}

/// Stores this node's public key. A node that publishes the same key is not a peer: the kernel would reject it.
pub(in crate::resolve) fn set_public_key(resolved: &mut Resolved) {
    let host = resolved.desired.state.scope(&Scope::Host);
    let Some(Kind::WireGuard(wireguard)) = host.links.get_mut(&link_name()).map(|link| &mut link.kind) else {
        return;
    };
    let Some(own) = wireguard.private_key.as_ref().and_then(|key| key.public) else { return };
    wireguard.peers.iter_mut().for_each(|peers| drop(peers.remove(&own)));
    resolved.unit_state.public_key = Some(own);
}

/// Before the link is created, all routes through it are unreachable, so that nothing is sent unencrypted if its
/// creation fails. Returns whether this is that first change.
pub(crate) fn fail_closed(resolved: &mut Resolved, observed: &NetState) -> bool {
    let (host, name) = (Scope::Host, link_name());
    let requested = resolved.desired.state.scope(&host);
    if !requested.links.contains_key(&name) || observed.link(&host, &name).is_some() {
        return false;
    }
    let there = observed.scopes.get(&host).map(|host| &host.routes);
    let is_closed = |route: &Route| {
        let before = there.and_then(|routes| routes.get(&route.key()));
        before.is_some_and(|before| before.same_as(&unreachable_route(route.to)))
    };
    let by_link = |route: &Route| route.via.iter().any(|hop| hop.link == name);
    if requested.routes.values().filter(|route| by_link(route)).all(is_closed) {
        return false;
    }
    requested
        .routes
        .values_mut()
        .filter(|route| by_link(route))
        .for_each(|route| *route = unreachable_route(route.to));
    requested.links.remove(&name);
    let is_of_link = |path: &str| {
        WireGuard::SYSCTLS.iter().any(|(own, _)| *own == path) || sysctl::link_of(path) == Some(name.as_str())
    };
    requested.sysctls.retain(|path, _| !is_of_link(path));
    let unit_state = &mut resolved.unit_state;
    unit_state.host_links.remove(&name);
    unit_state.sysctls.retain(|path| !is_of_link(path));
    unit_state.items.clear();
    unit_state.public_key = None;
    true
}

/// Restores sysctls that were changed for the link.
pub(super) fn restore(state: &State, resolved: &mut Resolved) {
    for (key, value) in original_values(state) {
        resolved.observe.sysctls.insert(key.field.clone());
        let sysctls = &mut resolved.desired.state.scope(&Scope::Host).sysctls;
        sysctls.entry(key.field.clone()).or_insert_with(|| value.to_owned());
    }
}

/// The original values that this change restores.
pub(crate) fn restored(state: &State, resolved: &Resolved) -> Vec<OriginalValueKey> {
    let sysctls = resolved.desired.state.scopes.get(&Scope::Host).map(|host| &host.sysctls);
    let is_back =
        |field: &str, value: &str| sysctls.and_then(|all| all.get(field)).is_some_and(|now| now == value);
    original_values(state)
        .filter(|(key, value)| is_back(&key.field, value))
        .map(|(key, _)| key.clone())
        .collect()
}

fn original_values(state: &State) -> impl Iterator<Item = (&OriginalValueKey, &str)> {
    let is_of_link = |key: &OriginalValueKey| WireGuard::SYSCTLS.iter().any(|(path, _)| *path == key.field);
    let of_host =
        state.original_values.iter().filter(move |(key, _)| key.scope == Scope::Host && key.link.is_none());
    of_host.filter(move |(key, _)| is_of_link(key)).filter_map(|(key, value)| Some((key, value.as_str()?)))
}

impl State {
    /// The WireGuard public key of this node, to be published to the others.
    pub fn public_key(&self) -> Option<PublicKey> {
        self.units.get(&Unit::NodeRoutes)?.public_key
    }

    /// The name of the generated WireGuard key, from the first request until the link is removed.
    pub fn wireguard_key_name(&self) -> Option<String> {
        let is_requested = self
            .cluster()
            .and_then(|cluster| cluster.node_routes)
            .is_some_and(|node_routes| node_routes.encryption.is_some());
        let name = link_name();
        let is_there =
            self.units.get(&Unit::NodeRoutes).is_some_and(|unit_state| unit_state.host_links.contains(&name));
        (is_requested || is_there).then(|| owner(&name).0)
    }
}

/// An unreachable route.
fn unreachable_route(to: IpNet) -> Route {
    Route {
        to,
        action: RouteAction::Unreachable,
        via: Vec::new(),
        table: kernel_ids::HOST_TABLE,
        metric: 0,
        source: None,
        scope: RouteScope::Global,
        mtu: None,
        owned: true,
    }
}

fn mtu_over(end: &TunnelEndpoint) -> u32 {
    end.mtu.saturating_sub(WireGuard::overhead_over(end.address.is_ipv6()))
}

fn link_name() -> IfName {
    IfName::new(kernel_ids::WIREGUARD_LINK).expect("seven letters and digits are a name")
}
