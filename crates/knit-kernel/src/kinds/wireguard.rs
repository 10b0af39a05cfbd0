//! Encodes WireGuard links. Keys, ports and peers use a generic netlink family, and only changes are sent, so that
//! tunnels to unchanged peers are not interrupted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use knit_model::link::{WireGuard, WireGuardPeer};
use knit_model::{IfName, PrivateKey, PublicKey, SecretKey};

use super::{FieldSelection, LinkContext, RelatedLinks, WireKind};
use crate::error::{Context, Error, Result};
use crate::features::Probe;
use crate::netlink::header::GenericHeader;
use crate::netlink::{Attributes, Header, Message, generic};

const FAMILY: &str = "wireguard";
const VERSION: u8 = 1;

// wireguard.h: commands and attributes.
const GET_DEVICE: u8 = 0;
const SET_DEVICE: u8 = 1;
const DEVICE_IFNAME: u16 = 2;
const DEVICE_PRIVATE_KEY: u16 = 3;
const DEVICE_PUBLIC_KEY: u16 = 4;
const DEVICE_LISTEN_PORT: u16 = 6;
const DEVICE_FWMARK: u16 = 7;
const DEVICE_PEERS: u16 = 8;
const PEER_PUBLIC_KEY: u16 = 1;
const PEER_PRESHARED_KEY: u16 = 2;
const PEER_FLAGS: u16 = 3;
const PEER_ENDPOINT: u16 = 4;
const PEER_KEEPALIVE: u16 = 5;
const PEER_ALLOWED: u16 = 9;
const PEER_REMOVE: u32 = 1;
const PEER_REPLACE_ALLOWED: u32 = 2;
const ALLOWED_FAMILY: u16 = 1;
const ALLOWED_ADDRESS: u16 = 2;
const ALLOWED_LENGTH: u16 = 3;

/// Peers per message: with the maximum number of allowed IPs they fit into netlink's length fields.
const PEERS_PER_MESSAGE: usize = 8;

/// The model's value for an unknown endpoint.
const NO_ENDPOINT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

type Peers = BTreeMap<PublicKey, WireGuardPeer>;

impl WireKind for WireGuard {
    const CONFIG: &'static str = "CONFIG_WIREGUARD";
    const PROBES: &'static [Probe] =
        &[Probe::tunnel("wireguard", "WireGuard", Self::CONFIG, |scratch| scratch.link("wireguard", |_| ()))
            .module("wireguard")
            .needed_for("encryption between nodes and pods")];
    const CONFIGURED_FIELDS: &'static [&'static str] = &["private_key", "listen_port", "fwmark", "peers"];

    fn encode(&self, _selection: FieldSelection<'_>, _related: &RelatedLinks<'_>, _data: &mut Message) {}

    fn decode(_data: Attributes<'_>, _parent: Option<IfName>) -> Self {
        Self::default()
    }

    fn parent_index(_data: Attributes<'_>, _link: Option<u32>) -> Option<u32> {
        None
    }

    fn configure(&self, selection: FieldSelection<'_>, link: &mut LinkContext<'_, '_>) -> Result<()> {
        let context: Context = format!("set wireguard {} on {}", link.name, link.scope).into();
        let socket = link.session.generic(link.scope)?;
        let family = generic::family(socket, FAMILY)?;
        let begin = || {
            let mut message = Message::new(family, 0, context.clone());
            message.header(&GenericHeader { command: SET_DEVICE, version: VERSION, reserved: 0 });
            message.put_str(DEVICE_IFNAME, link.name.as_str());
            message
        };
        let mut own = begin();
        if let Some(key) = selection.select("private_key", self.private_key.as_ref()) {
            own.put_bytes(DEVICE_PRIVATE_KEY, link.session.private_key(key, &context)?.bytes());
        }
        if let Some(port) = selection.select("listen_port", self.listen_port) {
            own.put_u16(DEVICE_LISTEN_PORT, port);
        }
        if let Some(mark) = selection.select("fwmark", self.fwmark) {
            own.put_u32(DEVICE_FWMARK, mark);
        }
        let mut messages = vec![own];
        if let Some(peers) = selection.select("peers", self.peers.as_ref()) {
            let before = peers_before(selection, &context)?;
            let mut updates = Vec::new();
            for update in peer_updates(&before, peers) {
                // Keys are requested only if they are sent.
                let preshared = update.peer.preshared_key.as_ref();
                let preshared = preshared.map(|key| link.session.private_key(key, &context)).transpose()?;
                updates.push((update, preshared));
            }
            for part in updates.chunks(PEERS_PER_MESSAGE) {
                let mut message = begin();
                message.nest(DEVICE_PEERS, |list| {
                    part.iter().for_each(|(update, preshared)| update.write(preshared.as_ref(), list));
                });
                messages.push(message);
            }
        }
        let socket = link.session.generic(link.scope)?;
        messages.into_iter().try_for_each(|message| socket.request(message))
    }

    fn read_config(&mut self, link: &mut LinkContext<'_, '_>) -> Result<()> {
        let socket = link.session.generic(link.scope)?;
        let family = generic::family(socket, FAMILY)?;
        let context = format!("get wireguard {} on {}", link.name, link.scope);
        let mut message = Message::new(family, 0, context);
        message.header(&GenericHeader { command: GET_DEVICE, version: VERSION, reserved: 0 });
        message.put_str(DEVICE_IFNAME, link.name.as_str());
        let mut keys = Vec::new();
        let parts = socket.dump(message, |_, body| {
            let (_, attributes) = GenericHeader::split(body)?;
            Some(read_device(attributes, &mut keys))
        })?;
        keys.into_iter().for_each(|key| link.session.remember_key(key));
        // A device with many peers is reported in parts; a peer with many allowed IPs may be split.
        let mut all = Peers::new();
        for mut part in parts {
            for (key, mut peer) in part.peers.take().unwrap_or_default() {
                match all.entry(key) {
                    std::collections::btree_map::Entry::Vacant(place) => {
                        place.insert(peer);
                    }
                    std::collections::btree_map::Entry::Occupied(mut first) => {
                        let more = peer.allowed_ips.take().unwrap_or_default();
                        first.get_mut().allowed_ips.get_or_insert_default().extend(more);
                    }
                }
            }
            self.private_key = part.private_key.or_else(|| self.private_key.take());
            self.listen_port = part.listen_port.or(self.listen_port);
            self.fwmark = part.fwmark.or(self.fwmark);
        }
        self.private_key.get_or_insert_with(SecretKey::none);
        self.peers = Some(all);
        Ok(())
    }
}

/// The peers before a change; empty for a new link.
fn peers_before(selection: FieldSelection<'_>, context: &Context) -> Result<Peers> {
    let Some(before) = selection.old_value("peers").filter(|before| !before.is_null()) else {
        return Ok(Peers::new());
    };
    serde_json::from_value(before.clone())
        .map_err(|error| Error::InvalidValue { context: context.clone(), reason: error.to_string() })
}

/// A change of one peer: only fields with a value are sent.
#[derive(Debug, PartialEq, Eq)]
struct PeerUpdate {
    key: PublicKey,
    flags: u32,
    peer: WireGuardPeer,
}

/// The updates from some peers to others. Unchanged peers are omitted.
fn peer_updates(before: &Peers, after: &Peers) -> Vec<PeerUpdate> {
    let remove =
        |key: &PublicKey| PeerUpdate { key: *key, flags: PEER_REMOVE, peer: WireGuardPeer::default() };
    let gone = before.keys().filter(|key| !after.contains_key(key)).map(remove);
    let mut updates: Vec<PeerUpdate> = gone.collect();
    for (key, peer) in after {
        let Some(old) = before.get(key) else {
            updates.push(PeerUpdate { key: *key, flags: PEER_REPLACE_ALLOWED, peer: peer.clone() });
            continue;
        };
        if peer.endpoint == Some(NO_ENDPOINT) && old.endpoint.is_some_and(|endpoint| endpoint != NO_ENDPOINT)
        {
            // The kernel can remove an endpoint only with the peer.
            updates.push(remove(key));
            updates.push(PeerUpdate { key: *key, flags: PEER_REPLACE_ALLOWED, peer: peer.clone() });
            continue;
        }
        let mut update = PeerUpdate { key: *key, flags: 0, peer: WireGuardPeer::default() };
        let same_secret = |old: &SecretKey, new: &SecretKey| old.public.is_some() && old.public == new.public;
        let is_new = match (&old.preshared_key, &peer.preshared_key) {
            (Some(old), Some(new)) => !same_secret(old, new),
            _ => true,
        };
        update.peer.preshared_key = peer.preshared_key.clone().filter(|_| is_new);
        update.peer.endpoint = peer.endpoint.filter(|_| old.endpoint != peer.endpoint);
        update.peer.keepalive = peer.keepalive.filter(|_| old.keepalive != peer.keepalive);
        if let Some(ranges) = peer.allowed_ips.as_ref().filter(|_| old.allowed_ips != peer.allowed_ips) {
            let nothing = BTreeSet::new();
            let had = old.allowed_ips.as_ref().unwrap_or(&nothing);
            // Additions keep the existing allowed IPs in place.
            if had.is_subset(ranges) {
                update.peer.allowed_ips = Some(ranges.difference(had).copied().collect());
            } else {
                update.flags = PEER_REPLACE_ALLOWED;
                update.peer.allowed_ips = Some(ranges.clone());
            }
        }
        if update.peer != WireGuardPeer::default() {
            updates.push(update);
        }
    }
    updates
}

impl PeerUpdate {
    fn write(&self, preshared: Option<&PrivateKey>, list: &mut Message) {
        // List entries have attribute type 0.
        list.nest(0, |entry| {
            entry.put_bytes(PEER_PUBLIC_KEY, self.key.bytes());
            if self.flags != 0 {
                entry.put_u32(PEER_FLAGS, self.flags);
            }
            if let Some(key) = preshared {
                entry.put_bytes(PEER_PRESHARED_KEY, key.bytes());
            }
            if let Some(endpoint) = self.peer.endpoint.filter(|endpoint| *endpoint != NO_ENDPOINT) {
                entry.put_bytes(PEER_ENDPOINT, &socket_address(endpoint));
            }
            if let Some(seconds) = self.peer.keepalive {
                entry.put_u16(PEER_KEEPALIVE, seconds);
            }
            if let Some(ranges) = &self.peer.allowed_ips {
                entry.nest(PEER_ALLOWED, |list| ranges.iter().for_each(|range| write_range(*range, list)));
            }
        });
    }
}

fn write_range(range: IpNet, list: &mut Message) {
    let family = if range.addr().is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    list.nest(0, |entry| {
        entry.put_u16(ALLOWED_FAMILY, family as u16).put_address(ALLOWED_ADDRESS, range.addr());
        entry.put_u8(ALLOWED_LENGTH, range.prefix_len());
    });
}

/// `struct sockaddr_in` or `struct sockaddr_in6`.
fn socket_address(address: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(28);
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    bytes.extend_from_slice(&(family as u16).to_ne_bytes());
    bytes.extend_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(address) => {
            bytes.extend_from_slice(&address.ip().octets());
            bytes.extend_from_slice(&[0; 8]);
        }
        SocketAddr::V6(address) => {
            bytes.extend_from_slice(&address.flowinfo().to_ne_bytes());
            bytes.extend_from_slice(&address.ip().octets());
            bytes.extend_from_slice(&address.scope_id().to_ne_bytes());
        }
    }
    bytes
}

fn read_socket_address(bytes: &[u8]) -> Option<SocketAddr> {
    let (family, rest) = bytes.split_first_chunk()?;
    let (port, rest) = rest.split_first_chunk()?;
    let port = u16::from_be_bytes(*port);
    match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => {
            let (octets, _) = rest.split_first_chunk::<4>()?;
            Some(SocketAddr::new(Ipv4Addr::from(*octets).into(), port))
        }
        libc::AF_INET6 => {
            let (octets, _) = rest.get(4..)?.split_first_chunk::<16>()?;
            Some(SocketAddr::new(Ipv6Addr::from(*octets).into(), port))
        }
        _ => None,
    }
}

/// Decodes one part of a device. Private keys go to `keys`; the model holds their public keys.
pub(crate) fn read_device(attributes: Attributes<'_>, keys: &mut Vec<PrivateKey>) -> WireGuard {
    let secret = |bytes: &[u8]| bytes.try_into().ok().map(PrivateKey::from_bytes);
    keys.extend(attributes.first(DEVICE_PRIVATE_KEY).and_then(|key| secret(key.value)));
    let public = attributes.first(DEVICE_PUBLIC_KEY).and_then(|key| key.value.try_into().ok());
    let entries = attributes.first(DEVICE_PEERS).into_iter().flat_map(|list| list.nested());
    let mut peers = Peers::new();
    for entry in entries.map(|entry| entry.nested()) {
        let key = entry.first(PEER_PUBLIC_KEY).and_then(|key| key.value.try_into().ok());
        let Some(key) = key.map(PublicKey::from_bytes) else { continue };
        let preshared = entry.first(PEER_PRESHARED_KEY).and_then(|key| secret(key.value));
        let endpoint = entry.first(PEER_ENDPOINT).and_then(|address| read_socket_address(address.value));
        let ranges = entry.first(PEER_ALLOWED).into_iter().flat_map(|list| list.nested());
        let peer = WireGuardPeer {
            preshared_key: Some(SecretKey::with_public_key(
                preshared.as_ref().map_or(PublicKey::NONE, PrivateKey::public),
            )),
            endpoint: Some(endpoint.unwrap_or(NO_ENDPOINT)),
            allowed_ips: Some(ranges.filter_map(|range| read_range(range.nested())).collect()),
            keepalive: Some(entry.first(PEER_KEEPALIVE).and_then(|seconds| seconds.u16()).unwrap_or(0)),
        };
        keys.extend(preshared);
        peers.insert(key, peer);
    }
    WireGuard {
        private_key: public.map(|key| SecretKey::with_public_key(PublicKey::from_bytes(key))),
        listen_port: attributes.first(DEVICE_LISTEN_PORT).and_then(|port| port.u16()),
        fwmark: attributes.first(DEVICE_FWMARK).and_then(|mark| mark.u32()),
        peers: Some(peers),
    }
}

fn read_range(range: Attributes<'_>) -> Option<IpNet> {
    let address = range.first(ALLOWED_ADDRESS)?.address()?;
    IpNet::new(address, range.first(ALLOWED_LENGTH)?.u8()?).ok()
}

#[cfg(test)]
mod tests;
