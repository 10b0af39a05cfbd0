//! Connection tracking entries. Netfilter evaluates NAT for the first packet of a connection only; after its entry is
//! deleted, the next packet is evaluated again.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::netlink::constants::*;
use crate::netlink::header::NetfilterHeader;
use crate::netlink::{Header, Message, Socket};

const UDP: u8 = 17;

/// A conntrack entry.
pub(crate) struct ConntrackEntry {
    family: u8,
    from: IpAddr,
    to: IpAddr,
    /// Its destination is translated (DNAT).
    has_dnat: bool,
    protocol: u8,
    to_port: u16,
    /// The end that answers, after DNAT.
    backend: Option<SocketAddr>,
    /// The attributes that identify it, as encoded.
    key: Vec<(u16, Vec<u8>)>,
}

impl Kernel {
    /// Deletes the conntrack entries of connections that originate from these addresses, except those whose
    /// destination is kept and those with DNAT, such as connections to Services. Returns the number of deleted
    /// entries.
    pub fn delete_conntrack_entries(
        &mut self,
        from: &BTreeSet<IpAddr>,
        is_kept: impl Fn(IpAddr) -> bool,
    ) -> Result<usize> {
        let mut count = 0;
        self.with_netfilter(|socket| {
            for connection in all(socket)? {
                let is_selected = from.contains(&connection.from) && !connection.has_dnat;
                if is_selected && !is_kept(connection.to) && delete(socket, &connection)? {
                    count += 1;
                }
            }
            Ok(())
        })?;
        Ok(count)
    }
}

impl Kernel {
    /// Deletes the conntrack entries of UDP connections that the caller selects by their original destination, whether it is
    /// translated, and the end that answers. Returns the number of deleted entries.
    pub fn delete_udp_entries(
        &mut self,
        is_stale: impl Fn(SocketAddr, bool, SocketAddr) -> bool,
    ) -> Result<usize> {
        let mut count = 0;
        self.with_netfilter(|socket| {
            for connection in all(socket)?.iter().filter(|connection| connection.protocol == UDP) {
                let Some(backend) = connection.backend else { continue };
                let to = SocketAddr::new(connection.to, connection.to_port);
                if is_stale(to, connection.has_dnat, backend) && delete(socket, connection)? {
                    count += 1;
                }
            }
            Ok(())
        })?;
        Ok(count)
    }
}

fn all(socket: &mut Socket) -> Result<Vec<ConntrackEntry>> {
    let kind = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET;
    let mut message = Message::new(kind, 0, "list conntrack entries");
    message.header(&NetfilterHeader { family: AF_UNSPEC, ..Default::default() });
    socket.dump(message, |_, body| decode(body))
}

pub(crate) fn decode(body: &[u8]) -> Option<ConntrackEntry> {
    let (header, attributes) = NetfilterHeader::split(body)?;
    let original = attributes.first(CTA_TUPLE_ORIG)?.nested();
    let addresses = original.first(CTA_TUPLE_IP)?.nested();
    let either = |four, six| addresses.first(four).or_else(|| addresses.first(six))?.address();
    let ports = original.first(CTA_TUPLE_PROTO).map(|ports| ports.nested());
    let number = ports.as_ref().and_then(|ports| ports.first(CTA_PROTO_NUM)?.u8());
    let to_port = ports.as_ref().and_then(|ports| ports.first(CTA_PROTO_DST_PORT)?.be16());
    let backend = attributes.first(CTA_TUPLE_REPLY).and_then(|reply| {
        let reply = reply.nested();
        let addresses = reply.first(CTA_TUPLE_IP)?.nested();
        let address = addresses.first(CTA_IP_V4_SRC).or_else(|| addresses.first(CTA_IP_V6_SRC))?.address()?;
        let port = reply.first(CTA_TUPLE_PROTO)?.nested().first(CTA_PROTO_SRC_PORT)?.be16()?;
        Some(SocketAddr::new(address, port))
    });
    let status = attributes.first(CTA_STATUS).and_then(|status| status.be32()).unwrap_or_default();
    let part = |kind: u16, flag: u16| Some((kind | flag, attributes.first(kind)?.value.to_vec()));
    Some(ConntrackEntry {
        family: header.family,
        from: either(CTA_IP_V4_SRC, CTA_IP_V6_SRC)?,
        to: either(CTA_IP_V4_DST, CTA_IP_V6_DST)?,
        has_dnat: status & IPS_DST_NAT != 0,
        protocol: number.unwrap_or_default(),
        to_port: to_port.unwrap_or_default(),
        backend,
        // Including its id, so that a later connection with the same tuple is not deleted.
        key: [part(CTA_TUPLE_ORIG, NLA_F_NESTED), part(CTA_ZONE, 0), part(CTA_ID, 0)]
            .into_iter()
            .flatten()
            .collect(),
    })
}

/// Returns whether the entry existed.
fn delete(socket: &mut Socket, connection: &ConntrackEntry) -> Result<bool> {
    let kind = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE;
    let context = format!("delete the conntrack entry from {} to {}", connection.from, connection.to);
    let mut message = Message::new(kind, 0, context);
    message.header(&NetfilterHeader { family: connection.family, ..Default::default() });
    for (kind, value) in &connection.key {
        message.put_bytes(*kind, value);
    }
    match socket.request(message) {
        Ok(()) => Ok(true),
        Err(Error::Rejected { errno: Errno::ENOENT, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_messages_are_not_decoded() {
        let mut message = Message::new(IPCTNL_MSG_CT_GET, 0, "test");
        message.header(&NetfilterHeader { family: AF_INET, ..Default::default() });
        message.put_be32(CTA_STATUS, IPS_DST_NAT);
        assert!(decode(&message.as_bytes()[16..]).is_none());
        message.nest(CTA_TUPLE_ORIG, |tuple| {
            tuple.nest(CTA_TUPLE_IP, |ip| {
                ip.put_address(CTA_IP_V4_SRC, "10.1.1.2".parse().unwrap());
                ip.put_address(CTA_IP_V4_DST, "192.0.2.9".parse().unwrap());
            });
        });
        let bytes = &message.as_bytes()[16..];
        let connection = decode(bytes).unwrap();
        assert_eq!(
            (connection.from.to_string(), connection.to.to_string()),
            ("10.1.1.2".into(), "192.0.2.9".into())
        );
        assert!(connection.has_dnat);
        assert_eq!(connection.key.len(), 1);
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_none(), "{length}");
        }
    }
}
