//! The fixed structures that follow a netlink header, before the attributes begin.

use super::attributes::Attributes;

/// A fixed structure at the beginning of a message's body.
pub trait Header: Sized {
    /// How many bytes it takes; always a multiple of four.
    const LENGTH: usize;

    /// Appends the structure as the kernel expects it.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads the structure; `None` when there are too few bytes.
    fn decode(bytes: &[u8]) -> Option<Self>;

    /// Reads the structure and what follows it; `None` when the body is too short.
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
    /// Of a link (`struct ifinfomsg`).
    LinkHeader {
        /// `AF_UNSPEC`, or `AF_BRIDGE` for bridge ports.
        family: u8,
        /// Zero.
        padding: u8,
        /// The hardware type (`ARPHRD_*`), in answers.
        hardware: u16,
        /// The link's number; zero when it is named by an attribute.
        index: i32,
        /// `IFF_*`.
        flags: u32,
        /// Which of the flags to change.
        change: u32,
    }
}

header! {
    /// Of the VLANs of a bridge or of a port of one (`struct br_vlan_msg`).
    VlanHeader {
        /// `AF_BRIDGE`.
        family: u8,
        /// Zero.
        reserved1: u8,
        /// Zero.
        reserved2: u16,
        /// The link's number.
        index: u32,
    }
}

header! {
    /// Of an address (`struct ifaddrmsg`).
    AddressHeader {
        /// `AF_INET` or `AF_INET6`.
        family: u8,
        /// The prefix's length.
        prefix_length: u8,
        /// The low eight `IFA_F_*` flags; the attribute `IFA_FLAGS` has all of them.
        flags: u8,
        /// `RT_SCOPE_*`.
        scope: u8,
        /// The link's number.
        index: u32,
    }
}

header! {
    /// Of a route (`struct rtmsg`).
    RouteHeader {
        /// `AF_INET` or `AF_INET6`.
        family: u8,
        /// The destination prefix's length.
        destination_length: u8,
        /// The source prefix's length.
        source_length: u8,
        /// The type of service.
        tos: u8,
        /// The table, where it is below 256; the attribute `RTA_TABLE` has all of it.
        table: u8,
        /// Who made the route (`RTPROT_*`, or Knit's number).
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
    /// Of one hop of a route with several (`struct rtnexthop`); its attributes follow.
    HopHeader {
        /// The length of this and its attributes.
        length: u16,
        /// The low eight `RTNH_F_*`.
        flags: u8,
        /// Its weight, less one.
        hops: u8,
        /// The link's number.
        index: i32,
    }
}

header! {
    /// Of a policy rule (`struct fib_rule_hdr`).
    RuleHeader {
        /// `AF_INET` or `AF_INET6`.
        family: u8,
        /// The destination prefix's length.
        destination_length: u8,
        /// The source prefix's length.
        source_length: u8,
        /// The type of service.
        tos: u8,
        /// The table, where it is below 256; the attribute `FRA_TABLE` has all of it.
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
    /// Of a neighbour or a bridge's forwarding entry (`struct ndmsg`).
    NeighbourHeader {
        /// `AF_INET`, `AF_INET6` or `AF_BRIDGE`.
        family: u8,
        /// Zero.
        padding1: u8,
        /// Zero.
        padding2: u16,
        /// The link's number.
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
    /// Of a queueing discipline, class or filter (`struct tcmsg`).
    TrafficHeader {
        /// `AF_UNSPEC`.
        family: u8,
        /// Zero.
        padding1: u8,
        /// Zero.
        padding2: u16,
        /// The link's number.
        index: i32,
        /// Its own handle.
        handle: u32,
        /// Where it hangs (`TC_H_*`).
        parent: u32,
        /// Kind-specific.
        info: u32,
    }
}

header! {
    /// Of a question about namespaces (`struct rtgenmsg`, padded).
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
    /// Of generic netlink (`struct genlmsghdr`).
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
    /// Of netfilter (`struct nfgenmsg`). The resource id is big-endian on the wire.
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
    fn lengths_are_those_of_the_kernels_structures() {
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
    fn a_header_is_read_back_and_a_short_one_is_not() {
        let header =
            RouteHeader { family: 10, destination_length: 64, table: 254, flags: 4, ..Default::default() };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        assert_eq!(RouteHeader::decode(&bytes), Some(header));
        assert_eq!(RouteHeader::decode(&bytes[..11]), None);
    }
}
