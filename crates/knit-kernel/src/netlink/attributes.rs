//! Decodes attributes without copying, and without trusting any length.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::align;
use super::constants::{NLA_F_NESTED, NLA_F_NET_BYTEORDER};
use super::message::ATTRIBUTE_HEADER;

/// Iterates over attributes.
///
/// Any bytes are allowed. The iteration ends at the first attribute with an invalid length, and
/// [`Attributes::is_broken`] is then true; earlier attributes are valid.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
    broken: bool,
}

/// Attributes by type.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a, const N: usize> {
    first: [Option<Attribute<'a>>; N],
}

impl<'a, const N: usize> Table<'a, N> {
    /// The first attribute of a type. `None` for types that the table does not cover.
    pub fn first(&self, kind: u16) -> Option<Attribute<'a>> {
        self.first.get(usize::from(kind)).copied().flatten()
    }
}

/// One attribute: its type without the flag bits, and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Such as `IFLA_IFNAME`.
    pub kind: u16,
    /// The value, without header and padding.
    pub value: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// The attributes in these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, broken: false }
    }

    /// Whether the iteration ended at an invalid attribute.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// The first attribute of a type.
    pub fn first(mut self, kind: u16) -> Option<Attribute<'a>> {
        self.find(|attribute| attribute.kind == kind)
    }

    /// The first attribute of each type below `N`, found in one pass: for messages of which many attributes are used.
    pub fn table<const N: usize>(self) -> Table<'a, N> {
        let mut first = [None; N];
        for attribute in self {
            if let Some(place @ None) = first.get_mut(usize::from(attribute.kind)) {
                *place = Some(attribute);
            }
        }
        Table { first }
    }

    fn take(&mut self) -> Option<Attribute<'a>> {
        let header: [u8; ATTRIBUTE_HEADER] = self.rest.get(..ATTRIBUTE_HEADER)?.try_into().ok()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & !(NLA_F_NESTED | NLA_F_NET_BYTEORDER);
        let value = self.rest.get(ATTRIBUTE_HEADER..length)?;
        // The last attribute may lack its padding.
        self.rest = self.rest.get(align(length)..).unwrap_or_default();
        Some(Attribute { kind, value })
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Attribute<'a>;

    fn next(&mut self) -> Option<Attribute<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let taken = self.take();
        if taken.is_none() {
            self.broken = true;
            self.rest = &[];
        }
        taken
    }
}

impl<'a> Attribute<'a> {
    /// The value as one byte.
    pub fn u8(&self) -> Option<u8> {
        self.array().map(u8::from_ne_bytes)
    }

    /// The value as two bytes in host byte order.
    pub fn u16(&self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }

    /// The value as four bytes in host byte order.
    pub fn u32(&self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    /// The value as four signed bytes in host byte order.
    pub fn i32(&self) -> Option<i32> {
        self.array().map(i32::from_ne_bytes)
    }

    /// The value as eight bytes in host byte order.
    pub fn u64(&self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    /// The value as two bytes in network byte order.
    pub fn be16(&self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The value as four bytes in network byte order.
    pub fn be32(&self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The value as eight bytes in network byte order.
    pub fn be64(&self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// The value as text, up to the first NUL.
    pub fn str(&self) -> Option<&'a str> {
        let text = self.value.split(|byte| *byte == 0).next()?;
        std::str::from_utf8(text).ok()
    }

    /// The value as an address: four bytes are IPv4, sixteen are IPv6.
    pub fn address(&self) -> Option<IpAddr> {
        match self.value.len() {
            4 => self.array().map(|octets: [u8; 4]| Ipv4Addr::from(octets).into()),
            16 => self.array().map(|octets: [u8; 16]| Ipv6Addr::from(octets).into()),
            _ => None,
        }
    }

    /// The value as an Ethernet address.
    pub fn mac(&self) -> Option<[u8; 6]> {
        self.array()
    }

    /// The attributes inside the value.
    pub fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.value)
    }

    /// The value, if it has exactly this many bytes.
    fn array<const N: usize>(&self) -> Option<[u8; N]> {
        self.value.try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::netlink::Message;

    /// Decodes everything, and every value as if it were nested: the worst case.
    fn walk(attributes: Attributes, depth: u32) -> usize {
        let mut seen = 0;
        for attribute in attributes {
            let _ = (attribute.u8(), attribute.u16(), attribute.u32(), attribute.u64(), attribute.i32());
            let _ =
                (attribute.be16(), attribute.be32(), attribute.str(), attribute.address(), attribute.mac());
            seen += 1;
            if depth > 0 {
                seen += walk(attribute.nested(), depth - 1);
            }
        }
        seen
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_a_panic_and_the_iteration_ends(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            // Each attribute has at least a header, at each of the three levels.
            prop_assert!(walk(Attributes::new(&bytes), 2) <= bytes.len());
        }

        #[test]
        fn attributes_round_trip(values in prop::collection::vec((1u16..100, prop::collection::vec(any::<u8>(), 0..40)), 0..20)) {
            let mut message = Message::new(1, 0, "test");
            for (kind, value) in &values {
                message.put_bytes(*kind, value);
            }
            let mut attributes = Attributes::new(&message.as_bytes()[16..]);
            let read: Vec<_> = attributes.by_ref().map(|a| (a.kind, a.value.to_vec())).collect();
            prop_assert_eq!(read, values);
            prop_assert!(!attributes.is_broken());
        }

        #[test]
        fn a_truncated_message_yields_a_prefix_of_its_attributes(cut in 0usize..64) {
            let mut message = Message::new(1, 0, "test");
            message.put_str(1, "eth0").put_u32(2, 7).put_u64(3, 9).put_address(4, "fd00::1".parse().unwrap());
            let whole = &message.as_bytes()[16..];
            let kinds: Vec<_> = Attributes::new(&whole[..cut.min(whole.len())]).map(|a| a.kind).collect();
            prop_assert!([1, 2, 3, 4].starts_with(&kinds));
        }
    }

    #[test]
    fn a_table_holds_the_first_of_each_type_that_it_covers() {
        let mut message = Message::new(1, 0, "test");
        message.put_u32(3, 7).put_u32(2, 8).put_u32(3, 9).put_u32(4, 10);
        let table = Attributes::new(&message.as_bytes()[16..]).table::<4>();
        let numbers: Vec<_> = (0..6).map(|kind| table.first(kind)?.u32()).collect();
        assert_eq!(numbers, [None, None, Some(8), Some(7), None, None]);
    }

    #[test]
    fn invalid_lengths_end_the_iteration_and_are_reported() {
        for bytes in [&[0u8, 0, 1, 0][..], &[3, 0, 1, 0], &[9, 0, 1, 0, 1, 2, 3, 4], &[4, 0, 1]] {
            let mut attributes = Attributes::new(bytes);
            assert_eq!(attributes.next(), None, "{bytes:?}");
            assert!(attributes.is_broken(), "{bytes:?}");
            assert_eq!(attributes.next(), None, "{bytes:?}");
        }
    }

    #[test]
    fn the_last_attribute_may_lack_padding() {
        let mut attributes = Attributes::new(&[5, 0, 1, 0, 42]);
        assert_eq!(attributes.next().and_then(|attribute| attribute.u8()), Some(42));
        assert_eq!(attributes.next(), None);
        assert!(!attributes.is_broken());
    }

    #[test]
    fn a_value_of_another_length_is_not_decoded() {
        let attribute = Attribute { kind: 1, value: &[1, 2, 3] };
        assert_eq!((attribute.u8(), attribute.u16(), attribute.u32()), (None, None, None));
        assert_eq!((attribute.address(), attribute.mac()), (None, None));
    }

    #[test]
    fn the_flag_bits_are_not_part_of_the_type() {
        let mut message = Message::new(1, 0, "test");
        message.nest(18, |inner| {
            inner.put_str(1, "veth");
        });
        let info = Attributes::new(&message.as_bytes()[16..]).first(18).unwrap();
        assert_eq!(info.nested().first(1).unwrap().str(), Some("veth"));
    }
}
