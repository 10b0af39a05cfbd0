//! Golden bytes: encoded messages compared with the kernel's headers.

use super::*;
use crate::netlink::constants::*;
use crate::netlink::header::LinkHeader;

/// A veth pair whose peer is created in another namespace, with the group on both ends: what Knit creates for every
/// pod.
fn veth() -> Message {
    let mut message = Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, "add link h0");
    message.header(&LinkHeader::default()).put_str(IFLA_IFNAME, "h0").put_u32(IFLA_GROUP, 7);
    message.nest(IFLA_LINKINFO, |info| {
        info.put_str(IFLA_INFO_KIND, "veth").nest(IFLA_INFO_DATA, |data| {
            data.nest(VETH_INFO_PEER, |peer| {
                peer.header(&LinkHeader::default()).put_str(IFLA_IFNAME, "eth0").put_u32(IFLA_NET_NS_FD, 5);
                peer.put_u32(IFLA_GROUP, 7);
            });
        });
    });
    message
}

#[test]
#[cfg(target_endian = "little")]
fn a_veth_with_a_nested_peer_is_encoded() {
    #[rustfmt::skip]
    let golden: &[u8] = &[
        // nlmsghdr: length 116, RTM_NEWLINK, REQUEST|EXCL|CREATE, sequence 0, port 0
        116, 0, 0, 0, 16, 0, 0x01, 0x06, 0, 0, 0, 0, 0, 0, 0, 0,
        // ifinfomsg
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        // IFLA_IFNAME "h0", one byte of padding
        7, 0, 3, 0, b'h', b'0', 0, 0,
        // IFLA_GROUP 7
        8, 0, 27, 0, 7, 0, 0, 0,
        // IFLA_LINKINFO, nested, 68 bytes
        68, 0, 18, 0x80,
        // IFLA_INFO_KIND "veth", three bytes of padding
        9, 0, 1, 0, b'v', b'e', b't', b'h', 0, 0, 0, 0,
        // IFLA_INFO_DATA, nested, 52 bytes; VETH_INFO_PEER, nested, 48 bytes
        52, 0, 2, 0x80,
        48, 0, 1, 0x80,
        // the peer's own ifinfomsg
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        // IFLA_IFNAME "eth0", three bytes of padding
        9, 0, 3, 0, b'e', b't', b'h', b'0', 0, 0, 0, 0,
        // IFLA_NET_NS_FD 5, IFLA_GROUP 7
        8, 0, 28, 0, 5, 0, 0, 0,
        8, 0, 27, 0, 7, 0, 0, 0,
    ];
    assert_eq!(veth().as_bytes(), golden);
}

#[test]
fn every_kind_of_value_is_padded_to_four_bytes() {
    let mut message = Message::new(1, 0, "test");
    message.put_u8(1, 0xaa).put_u16(2, 1).put_u32(3, 1).put_u64(4, 1).put_flag(5);
    assert_eq!(message.as_bytes().len(), 16 + 8 + 8 + 8 + 12 + 4);
    assert_eq!(message.as_bytes()[16..24], [5, 0, 1, 0, 0xaa, 0, 0, 0]);
    assert_eq!(message.as_bytes()[0..4], 56u32.to_ne_bytes());
}

#[test]
fn network_order_and_addresses_are_big_endian() {
    let mut message = Message::new(1, 0, "test");
    message.put_be16(1, 0x1234).put_be32(2, 0x0102_0304).put_address(3, "10.0.0.1".parse().unwrap());
    let bytes = message.as_bytes();
    assert_eq!(bytes[20..22], [0x12, 0x34]);
    assert_eq!(bytes[28..32], [1, 2, 3, 4]);
    assert_eq!(bytes[36..40], [10, 0, 0, 1]);
    message.put_address(4, "fd00::1".parse().unwrap());
    assert_eq!(message.as_bytes()[40..42], 20u16.to_ne_bytes());
}

#[test]
fn an_attribute_that_exceeds_its_length_field_is_detected() {
    let mut message = Message::new(1, 0, "test");
    message.put_bytes(1, &vec![0; 65531]);
    assert!(!message.overflowed());
    message.put_bytes(1, &vec![0; 65532]);
    assert!(message.overflowed());
}

#[test]
fn flags_and_sequence_are_written_into_the_header() {
    let mut message = veth();
    message.add_flags(NLM_F_ACK);
    message.set_sequence(0x0102_0304);
    assert_eq!(message.as_bytes()[6..8], 0x0605u16.to_ne_bytes());
    assert_eq!(message.as_bytes()[8..12], 0x0102_0304u32.to_ne_bytes());
}
