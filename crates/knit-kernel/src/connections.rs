//! Connections that the kernel keeps track of. What it decided for the first packet of one, it does for all that follow; a
//! connection that is forgotten is decided anew with its next packet.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::netlink::constants::*;
use crate::netlink::header::NetfilterHeader;
use crate::netlink::{Header, Message, Socket};

/// A connection, as far as it is needed to find and to forget it.
struct Connection {
    family: u8,
    from: IpAddr,
    to: IpAddr,
    /// It has another destination than its first packet asked for.
    is_redirected: bool,
    /// What says which it is, as it is on the wire.
    parts: Vec<(u16, Vec<u8>)>,
}

impl Kernel {
    /// Has the kernel forget the connections that began at these addresses, other than those whose destination is kept, and
    /// those of Services. Says how many.
    pub fn forget_connections(
        &mut self,
        from: &BTreeSet<IpAddr>,
        is_kept: impl Fn(IpAddr) -> bool,
    ) -> Result<usize> {
        let mut count = 0;
        self.with_netfilter(|socket| {
            for connection in all(socket)? {
                let is_meant = from.contains(&connection.from) && !connection.is_redirected;
                if is_meant && !is_kept(connection.to) && forget(socket, &connection)? {
                    count += 1;
                }
            }
            Ok(())
        })?;
        Ok(count)
    }
}

fn all(socket: &mut Socket) -> Result<Vec<Connection>> {
    let kind = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET;
    let mut message = Message::new(kind, 0, "list connections");
    message.header(&NetfilterHeader { family: AF_UNSPEC, ..Default::default() });
    socket.dump(message, |_, body| decode(body))
}

fn decode(body: &[u8]) -> Option<Connection> {
    let (header, attributes) = NetfilterHeader::split(body)?;
    let addresses = attributes.first(CTA_TUPLE_ORIG)?.nested().first(CTA_TUPLE_IP)?.nested();
    let either = |four, six| addresses.first(four).or_else(|| addresses.first(six))?.address();
    let status = attributes.first(CTA_STATUS).and_then(|status| status.be32()).unwrap_or_default();
    let part = |kind: u16, flag: u16| Some((kind | flag, attributes.first(kind)?.value.to_vec()));
    Some(Connection {
        family: header.family,
        from: either(CTA_IP_V4_SRC, CTA_IP_V6_SRC)?,
        to: either(CTA_IP_V4_DST, CTA_IP_V6_DST)?,
        is_redirected: status & IPS_DST_NAT != 0,
        // With its number, so that a later one of the same ends is not meant.
        parts: [part(CTA_TUPLE_ORIG, NLA_F_NESTED), part(CTA_ZONE, 0), part(CTA_ID, 0)]
            .into_iter()
            .flatten()
            .collect(),
    })
}

/// Whether it was there to be forgotten.
fn forget(socket: &mut Socket, connection: &Connection) -> Result<bool> {
    let kind = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE;
    let context = format!("forget a connection from {} to {}", connection.from, connection.to);
    let mut message = Message::new(kind, 0, context);
    message.header(&NetfilterHeader { family: connection.family, ..Default::default() });
    for (kind, value) in &connection.parts {
        message.put_bytes(*kind, value);
    }
    match socket.request(message) {
        Ok(()) => Ok(true),
        Err(Error::Refused { errno: Errno::ENOENT, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_short_or_of_another_kind_is_no_connection() {
        let mut message = Message::new(IPCTNL_MSG_CT_GET, 0, "a connection");
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
        assert!(connection.is_redirected);
        assert_eq!(connection.parts.len(), 1);
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_none(), "{length}");
        }
    }
}
