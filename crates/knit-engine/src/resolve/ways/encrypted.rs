//! Encrypted ways to other nodes: one WireGuard link, with a peer for each node that has told its key.
//!
//! What pods say to any other node, and what this node says to pods there, is answered with "unreachable": nothing of
//! theirs leaves the node in clear. A peer is allowed its pods' addresses and its own, because it speaks to pods from
//! either; no two peers are allowed the same.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use knit_model::intent::{EncryptionIntent, NodeRoutesIntent, PeerNode, TunnelEndpoint};
use knit_model::link::{Attrs, Kind, Link, LinkKind, WgPeer, WireGuard};
use knit_model::provenance::Provenance;
use knit_model::report::ItemReport;
use knit_model::route::{Action, NextHop, RouteScope};
use knit_model::{IfName, KeyRef, NetState, PublicKey, Route, Scope, SecretKey, marks};

use super::choice::pair;
use super::{add_route, add_rule, add_rules_of_pods, owner, put_link, put_sysctl, sources};
use crate::cluster::{self, ClusterNetwork};
use crate::event::Unit;
use crate::resolve::{Resolved, keys, with_defaults};
use crate::state::{HeldKey, State};

/// The encrypted ways of this node.
pub(super) struct Encrypted<'a> {
    cluster: ClusterNetwork<'a>,
    want: &'a EncryptionIntent,
    why: &'a Provenance,
    /// What the node itself says to pods of others comes from these.
    sources: Vec<IpAddr>,
    /// What the kernel says if it has none.
    lacking: Option<&'a str>,
    /// Who told each key.
    told: BTreeMap<PublicKey, BTreeSet<&'a str>>,
    /// This node's own key, once it is known.
    own: Option<PublicKey>,
    peers: BTreeMap<PublicKey, WgPeer>,
}

impl<'a> Encrypted<'a> {
    /// `None` if nothing is to be encrypted.
    pub(super) fn new(
        state: &'a State,
        cluster: ClusterNetwork<'a>,
        ways: &'a NodeRoutesIntent,
        why: &'a Provenance,
    ) -> Option<Self> {
        let want = ways.encryption.as_ref()?;
        let mut told: BTreeMap<PublicKey, BTreeSet<&str>> = BTreeMap::new();
        for peer in &ways.nodes {
            if let Some(key) = peer.key {
                told.entry(key).or_default().insert(&peer.name);
            }
        }
        Some(Self {
            cluster,
            want,
            why,
            sources: sources(state, cluster),
            lacking: state.lacking.get(WireGuard::NAME).map(String::as_str),
            told,
            own: state.public_key(),
            peers: BTreeMap::new(),
        })
    }

    /// Reaches a range of a node, or lets nobody reach it.
    pub(super) fn add(
        &mut self,
        peer: &PeerNode,
        range: IpNet,
        resolved: &mut Resolved,
    ) -> Result<ItemReport, String> {
        add_rule(range, self.why, resolved);
        let own = peer.own().filter(|address| address.is_ipv4() == range.addr().is_ipv4());
        let all = std::iter::once(range).chain(own.map(IpNet::from));
        let (key, end, to) = match self.far_end(peer) {
            Ok(found) => found,
            Err(why) => {
                for to in all {
                    add_route(dead_end(to), self.why, resolved);
                }
                return Err(why);
            }
        };
        let link = link_name();
        for to in all {
            let hop = NextHop { gateway: None, link: link.clone(), weight: 1, onlink: false };
            let source = self.sources.iter().find(|source| source.is_ipv4() == to.addr().is_ipv4()).copied();
            let mtu = Some(mtu_over(end)).filter(|mtu| *mtu < self.mtu());
            let route = Route { table: marks::HOST_TABLE, source, mtu, ..Route::through(to, hop) };
            add_route(route, self.why, resolved);
        }
        let endpoint = SocketAddr::new(to, self.want.port);
        let entry = self.peers.entry(key).or_insert_with(|| WgPeer {
            preshared_key: Some(SecretKey::none()),
            endpoint: Some(endpoint),
            allowed: Some(peer.own().map(IpNet::from).collect()),
            keepalive: Some(0),
        });
        entry.allowed.get_or_insert_default().insert(range);
        let what = format!("pods of node {} in {range}: wireguard, to {endpoint} by {link}", peer.name);
        Ok(ItemReport { field: self.why.field.clone(), what, links: vec![link], ready: true })
    }

    /// A node's key, and the addresses that it is reached between; or why it is not.
    fn far_end(&self, peer: &PeerNode) -> Result<(PublicKey, &'a TunnelEndpoint, IpAddr), String> {
        if let Some(words) = self.lacking {
            return Err(format!("what goes there is to be encrypted, and {words}"));
        }
        let key = peer.key.ok_or("it has told no WireGuard key")?;
        let mut others = self.told.get(&key).into_iter().flatten().filter(|name| **name != peer.name);
        if let Some(other) = others.next() {
            return Err(format!("it has told the same WireGuard key as node {other}"));
        }
        if key == PublicKey::NONE || self.own == Some(key) {
            return Err("the WireGuard key that it has told is not its own".to_owned());
        }
        let (end, to) = pair(&self.want.ends, peer)?;
        Ok((key, end, to))
    }

    /// The link has room for the largest way; the routes of others say what they have room for.
    fn mtu(&self) -> u32 {
        self.want.ends.iter().map(mtu_over).max().unwrap_or_default()
    }

    /// Adds the link, also while there is no peer: the others wait for this node's key. Has pods find the ways to nodes.
    pub(super) fn finish(self, resolved: &mut Resolved) {
        add_rules_of_pods(self.cluster, self.why, resolved);
        if let Some(words) = self.lacking {
            let warning = format!("nothing goes to other nodes: it is to be encrypted, and {words}");
            resolved.made.warnings.push((cluster::key(), warning));
            return;
        }
        if self.want.ends.is_empty() {
            let warning = "nothing goes to other nodes: no link has an address of this one".to_owned();
            resolved.made.warnings.push((cluster::key(), warning));
            return;
        }
        let mtu = self.mtu();
        let wireguard = WireGuard {
            private_key: Some(SecretKey::from(KeyRef::Made { id: String::new() })),
            listen_port: Some(self.want.port),
            fwmark: Some(0),
            peers: Some(self.peers),
        };
        let mut link = Link::new(link_name(), Kind::WireGuard(wireguard).with_defaults());
        keys::name_made(&mut link, &owner(&link_name()), &mut resolved.look.keys);
        link.attrs = with_defaults(&link.kind, &Attrs::default(), Some(mtu), None, "");
        put_link(link, self.why, resolved);
        for (path, value) in WireGuard::SYSCTLS {
            put_sysctl(path, value, self.why, resolved);
        }
    }
}

/// This node's own key is known by now. A node that tells it as its own is no peer: the kernel would not take it.
pub(in crate::resolve) fn know(resolved: &mut Resolved) {
    let host = resolved.desired.state.scope(&Scope::Host);
    let Some(Kind::WireGuard(wireguard)) = host.links.get_mut(&link_name()).map(|link| &mut link.kind) else {
        return;
    };
    let Some(own) = wireguard.private_key.as_ref().and_then(|key| key.public) else { return };
    wireguard.peers.iter_mut().for_each(|peers| drop(peers.remove(&own)));
    resolved.made.public_key = Some(own);
}

/// While the link is not there, everything that is to go by it leads nowhere, and only then the link is made: if the kernel
/// refuses it, nothing has gone in clear. Says whether this is that first part.
pub(crate) fn close_first(resolved: &mut Resolved, seen: &NetState) -> bool {
    let (host, name) = (Scope::Host, link_name());
    let wanted = resolved.desired.state.scope(&host);
    if !wanted.links.contains_key(&name) || seen.link(&host, &name).is_some() {
        return false;
    }
    let there = seen.scopes.get(&host).map(|host| &host.routes);
    let is_closed = |route: &Route| {
        let before = there.and_then(|routes| routes.get(&route.key()));
        before.is_some_and(|before| before.same_as(&dead_end(route.to)))
    };
    let by_link = |route: &Route| route.via.iter().any(|hop| hop.link == name);
    if wanted.routes.values().filter(|route| by_link(route)).all(is_closed) {
        return false;
    }
    wanted.routes.values_mut().filter(|route| by_link(route)).for_each(|route| *route = dead_end(route.to));
    wanted.links.remove(&name);
    let is_of_link = |path: &str| {
        WireGuard::SYSCTLS.iter().any(|(own, _)| *own == path) || path.contains(&format!("/conf/{name}/"))
    };
    wanted.sysctls.retain(|path, _| !is_of_link(path));
    let made = &mut resolved.made;
    made.host_links.remove(&name);
    made.sysctls.retain(|path| !is_of_link(path));
    made.items.clear();
    made.public_key = None;
    true
}

/// What the kernel changed beside the link has its old value again without it.
pub(super) fn give_back(state: &State, resolved: &mut Resolved) {
    for (key, value) in held(state) {
        resolved.look.sysctls.insert(key.field.clone());
        let sysctls = &mut resolved.desired.state.scope(&Scope::Host).sysctls;
        sysctls.entry(key.field.clone()).or_insert_with(|| value.to_owned());
    }
}

/// The old values that are there again with this.
pub(crate) fn given_back(state: &State, resolved: &Resolved) -> Vec<HeldKey> {
    let sysctls = resolved.desired.state.scopes.get(&Scope::Host).map(|host| &host.sysctls);
    let is_back =
        |field: &str, value: &str| sysctls.and_then(|all| all.get(field)).is_some_and(|now| now == value);
    held(state).filter(|(key, value)| is_back(&key.field, value)).map(|(key, _)| key.clone()).collect()
}

fn held(state: &State) -> impl Iterator<Item = (&HeldKey, &str)> {
    let is_of_link = |key: &HeldKey| WireGuard::SYSCTLS.iter().any(|(path, _)| *path == key.field);
    let of_host = state.held.iter().filter(move |(key, _)| key.scope == Scope::Host && key.link.is_none());
    of_host.filter(move |(key, _)| is_of_link(key)).filter_map(|(key, value)| Some((key, value.as_str()?)))
}

impl State {
    /// The public key of this node's encrypted ways, if there are any: what other nodes have to know.
    pub fn public_key(&self) -> Option<PublicKey> {
        self.made.get(&Unit::NodeRoutes)?.public_key
    }

    /// The name of the key that Knit made on the node for them, from the moment on that they are asked for until they are gone.
    pub fn key_of_ways(&self) -> Option<String> {
        let is_wanted =
            self.cluster().and_then(|cluster| cluster.ways).is_some_and(|ways| ways.encryption.is_some());
        let name = link_name();
        let is_there = self.made.get(&Unit::NodeRoutes).is_some_and(|made| made.host_links.contains(&name));
        (is_wanted || is_there).then(|| owner(&name).0)
    }
}

/// A route that answers for nobody.
fn dead_end(to: IpNet) -> Route {
    Route {
        to,
        action: Action::Unreachable,
        via: Vec::new(),
        table: marks::HOST_TABLE,
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
    IfName::new(marks::TUNNEL_WIREGUARD).expect("seven letters and digits are a name")
}
