//! Fixed structures between the netlink header and the attributes.

use super::attributes::Attributes;

/// A fixed structure at the start of a message body.
pub trait Header: Sized {
    /// Its length in bytes, a multiple of four.
    const LENGTH: usize;

    /// Appends the encoded structure.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes the structure; `None` if there are too few bytes.
    fn decode(bytes: &[u8]) -> Option<Self>;

    /// Decodes the structure and the attributes after it; `None` if the body is too short.
    fn split(body: &[u8]) -> Option<(Self, Attributes<'_>)> {
        Some((Self::decode(body)?, Attributes::new(body.get(Self::LENGTH..)?)))
    }
}

macro_rules! header {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $kind,)*
        }

        impl Header for $name {
            const LENGTH: usize = 0 $(+ size_of::<$kind>())*;

            fn encode(&self, out: &mut Vec<u8>) {
                $(out.extend_from_slice(&self.$field.to_ne_bytes());)*
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                let mut rest = bytes;
                $(
                    let (field, after) = rest.split_first_chunk()?;
                    let $field = <$kind>::from_ne_bytes(*field);
                    rest = after;
                )*
                let _ = rest;
                Some(Self { $($field),* })
            }
        }

        const _: () = assert!($name::LENGTH % 4 == 0);
    };
}

header! {
    /// A link (`struct ifinfomsg`).
    LinkHeader {
        /// `AF_UNSPEC`, or `AF_BRIDGE` for bridge ports.
        family: u8,
        /// Zero.
        padding: u8,
        /// The hardware type (`ARPHRD_*`), in replies.
        hardware: u16,
        /// The link index; zero if an attribute names the link.
        index: i32,
        /// `IFF_*`.
        flags: u32,
        /// The mask of the flags to change.
        change: u32,
    }
}

header! {
    /// The VLANs of a bridge or bridge port (`struct br_vlan_msg`).
    VlanHeader {
        /// `AF_BRIDGE`.
        family: u8,
        /// Zero.
        reserved1: u8,
        /// Zero.
        reserved2: u16,
        /// The link index.
        index: u32,
    }
}

header! {
    /// An address (`struct ifaddrmsg`).
    AddressHeader {
        /// `AF_INET` or `AF_INET6`.
        family: u8,
        /// The prefix's length.
        prefix_length: u8,
        /// The low eight `IFA_F_*` flags; `IFA_FLAGS` has all of them.
        flags: u8,
        /// `RT_SCOPE_*`.
        scope: u8,
        /// The link index.
        index: u32,
    }
}

header! {
    /// A route (`struct rtmsg`).
    RouteHeader {
        /// `AF_INET` or `AF_INET6`.
        family: u8,
        /// The destination prefix's length.
        destination_length: u8,
        /// The source prefix's length.
        source_length: u8,
        /// The type of service.
        tos: u8,
        /// The table if it is below 256; `RTA_TABLE` has the full number.
        table: u8,
        /// The origin of the route (`RTPROT_*`, or Knit's number).
        protocol: u8,
        /// `RT_SCOPE_*`.
        scope: u8,
        /// `RTN_*`.
        kind: u8,
        /// `RTNH_F_*` and `RTM_F_*`.
        flags: u32,
    }
}

header! {
    /// One next hop of a multipath route (`struct rtnexthop`); its attributes follow.
    HopHeader {
        /// The length including its attributes.
        length: u16,
        /// The low eight `RTNH_F_*`.
        flags: u8,
        /// Its weight minus one.
        hops: u8,
        /// The link index.
        index: i32,
    }
}

header! {
    /// A policy rule (`struct fib_rule_hdr`).
    RuleHeader {
        /// `AF_INET` or `AF_INET6`.
        family: u8,
        /// The destination prefix's length.
        destination_length: u8,
        /// The source prefix's length.
        source_length: u8,
        /// The type of service.
        tos: u8,
        /// The table if it is below 256; `FRA_TABLE` has the full number.
        table: u8,
        /// Zero.
        reserved1: u8,
        /// Zero.
        reserved2: u8,
        /// `FR_ACT_*`.
        action: u8,
        /// `FIB_RULE_*`.
        flags: u32,
    }
}

header! {
    /// A neighbour or a bridge forwarding entry (`struct ndmsg`).
    NeighbourHeader {
        /// `AF_INET`, `AF_INET6` or `AF_BRIDGE`.
        family: u8,
        /// Zero.
        padding1: u8,
        /// Zero.
        padding2: u16,
        /// The link index.
        index: i32,
        /// `NUD_*`.
        state: u16,
        /// `NTF_*`.
        flags: u8,
        /// `RTN_*`.
        kind: u8,
    }
}

header! {
    /// A qdisc, class or filter (`struct tcmsg`).
    TrafficHeader {
        /// `AF_UNSPEC`.
        family: u8,
        /// Zero.
        padding1: u8,
        /// Zero.
        padding2: u16,
        /// The link index.
        index: i32,
        /// Its handle.
        handle: u32,
        /// Its parent (`TC_H_*`).
        parent: u32,
        /// Type-specific.
        info: u32,
    }
}

header! {
    /// A namespace id request (`struct rtgenmsg`, padded).
    NamespaceHeader {
        /// `AF_UNSPEC`.
        family: u8,
        /// Zero.
        padding1: u8,
        /// Zero.
        padding2: u16,
    }
}

header! {
    /// Generic netlink (`struct genlmsghdr`).
    GenericHeader {
        /// The family's command.
        command: u8,
        /// The family's version.
        version: u8,
        /// Zero.
        reserved: u16,
    }
}

header! {
    /// Netfilter (`struct nfgenmsg`).
    NetfilterHeader {
        /// `NFPROTO_*`.
        family: u8,
        /// `NFNETLINK_V0`, zero.
        version: u8,
        /// The resource id, in network byte order.
        resource: u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_match_the_kernels_structures() {
        let lengths = [
            LinkHeader::LENGTH,
            AddressHeader::LENGTH,
            RouteHeader::LENGTH,
            RuleHeader::LENGTH,
            NeighbourHeader::LENGTH,
            TrafficHeader::LENGTH,
            GenericHeader::LENGTH,
            NetfilterHeader::LENGTH,
        ];
        assert_eq!(lengths, [16, 8, 12, 12, 12, 20, 4, 4]);
    }

    #[test]
    fn a_header_round_trips_and_a_short_one_is_rejected() {
        let header =
            RouteHeader { family: 10, destination_length: 64, table: 254, flags: 4, ..Default::default() };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        assert_eq!(RouteHeader::decode(&bytes), Some(header));
        assert_eq!(RouteHeader::decode(&bytes[..11]), None);
    }
}
