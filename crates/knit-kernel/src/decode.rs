//! Decodes replies of the kernel from bytes, without a socket: any bytes are allowed. [`observe`](crate::observe) decodes
//! with the same functions what it receives. Fuzz tests call this module.

use std::collections::BTreeMap;

use knit_model::ScopeState;
use knit_model::filter::{Filter, FilterStep};
use knit_model::link::{RateLimit, WireGuard};

use crate::kinds::wireguard;
use crate::netlink::constants::*;
use crate::netlink::frame::{Frame, Frames};
use crate::netlink::header::{GenericHeader, VlanHeader};
use crate::netlink::{Attributes, Header};
use crate::observe::{addresses, limits, links, neighbours, routes, rules, vlans};
use crate::{connected_routes, conntrack, counters, nft};

/// Decodes messages about links, addresses, routes, rules, neighbours, VLANs and rate limits of one scope.
pub fn routing(datagram: &[u8]) -> ScopeState {
    let mut state = ScopeState::default();
    let frames = || Frames::new(datagram);
    let of_kind = |kind: u16| frames().filter(move |frame| frame.kind == kind).map(|frame| frame.body);
    let mut found = links::decode_messages(of_kind(RTM_NEWLINK));
    let mut entries: BTreeMap<u32, vlans::Entries> = BTreeMap::new();
    for body in of_kind(RTM_NEWVLAN) {
        if let (Some((header, _)), Some(more)) = (VlanHeader::split(body), vlans::entries(body)) {
            entries.entry(header.index).or_default().extend(more);
        }
    }
    found.add_vlans(entries.iter().map(|(index, entries)| (*index, vlans::vlans(entries))).collect());
    let limit = of_kind(RTM_NEWQDISC).find_map(limits::read);
    for Frame { kind, body, .. } in frames() {
        match kind {
            RTM_NEWADDR => {
                if let Some(observed) = addresses::decode(body, &found) {
                    state.add_address(observed.address);
                }
            }
            RTM_NEWROUTE => {
                // The other reader of the same message.
                let _ = connected_routes::decode(body);
                if let Some(route) = routes::decode(body, &found) {
                    routes::insert(&mut state, route);
                }
            }
            RTM_NEWRULE => {
                if let Some((rule, is_owned)) = rules::decode(body) {
                    if is_owned { &mut state.rules } else { &mut state.foreign_rules }.insert(rule);
                }
            }
            RTM_NEWNEIGH => {
                if let Some(neighbour) = neighbours::decode(body, &found) {
                    state.add_neighbour(neighbour);
                }
            }
            RTM_NEWLINK => drop(counters::read(body)),
            _ => {}
        }
    }
    for mut observed in found.into_links() {
        observed.link.attrs.limit = limit.map(RateLimit::Limited);
        state.add_link(observed.link);
    }
    state
}

/// Decodes messages about tables, chains, rules, sets and elements of nftables, and about connections.
pub fn packet_filter(datagram: &[u8]) -> Filter {
    let conntrack = |kind: u16| kind >> 8 == NFNL_SUBSYS_CTNETLINK;
    for frame in Frames::new(datagram).filter(|frame| conntrack(frame.kind)) {
        let _ = conntrack::decode(frame.body);
    }
    for frame in Frames::new(datagram).filter(|frame| !conntrack(frame.kind)) {
        // The other reader of rules.
        let _ = nft::decode_counter(frame.body);
    }
    nft::decode_messages(Frames::new(datagram).map(|frame| (frame.kind, frame.body)))
}

/// The messages of nftables for these steps, as one datagram, which [`packet_filter`] decodes.
pub fn packet_filter_messages(steps: &[FilterStep]) -> Vec<u8> {
    nft::encode_messages(steps)
}

/// Decodes the parts of a WireGuard device.
pub fn wireguard(datagram: &[u8]) -> Vec<WireGuard> {
    let mut keys = Vec::new();
    let bodies = Frames::new(datagram).map(|frame| frame.body);
    let attributes = bodies.filter_map(|body| Some(GenericHeader::split(body)?.1));
    attributes.map(|attributes: Attributes<'_>| wireguard::read_device(attributes, &mut keys)).collect()
}

/// Decodes acknowledgements: the message of each rejection.
pub fn rejections(datagram: &[u8]) -> Vec<String> {
    let acknowledgements = Frames::new(datagram).filter_map(|frame| frame.ack());
    let rejections = acknowledgements.filter_map(Result::err);
    rejections.map(|rejection| rejection.with_context("a request".into()).to_string()).collect()
}

#[cfg(test)]
mod tests {
    use knit_model::filter::field::DataType;
    use knit_model::filter::{
        BaseChain, ChainType, FilterSet, FilterTable, Hook, KeyPart, MapData, TableFamily, TableKey,
    };

    use super::*;
    use crate::netlink::Message;
    use crate::netlink::header::{AddressHeader, LinkHeader};

    #[test]
    fn links_are_decoded_before_what_refers_to_them() {
        let mut address = Message::new(RTM_NEWADDR, 0, "test");
        address.header(&AddressHeader { family: 2, prefix_length: 24, index: 7, ..Default::default() });
        address.put_address(IFA_LOCAL, "10.0.0.1".parse().unwrap());
        let mut link = Message::new(RTM_NEWLINK, 0, "test");
        link.header(&LinkHeader { index: 7, ..Default::default() }).put_str(IFLA_IFNAME, "net1");
        let state = routing(&[address.as_bytes(), link.as_bytes()].concat());
        assert_eq!(state.links.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["net1"]);
        assert_eq!(state.addresses.len(), 1);
    }

    #[test]
    fn encoded_tables_are_decoded_again() {
        let table = TableKey { family: TableFamily::Inet, name: "knit".into() };
        let verdicts =
            FilterSet { data: Some(MapData::Verdict), ..FilterSet::keys(&[DataType::Ipv4, DataType::Port]) };
        let ranges = FilterSet { intervals: true, ..FilterSet::keys(&[DataType::Ipv4]) };
        let base = BaseChain { chain_type: ChainType::Filter, hook: Hook::Forward, priority: -5 };
        let range = KeyPart::Range("10.0.0.0".parse::<std::net::IpAddr>().unwrap().into(), {
            "10.0.0.255".parse::<std::net::IpAddr>().unwrap().into()
        });
        let elements = [(table.element("ranges", vec![range]), knit_model::filter::ElementData::Key)];
        let steps = [
            FilterStep::AddTable(table.clone()),
            FilterStep::AddSet(table.clone(), "verdicts".to_owned(), verdicts.clone()),
            FilterStep::AddSet(table.clone(), "ranges".to_owned(), ranges.clone()),
            FilterStep::AddChain(table.clone(), "forward".to_owned(), Some(base.clone())),
            FilterStep::AddElement(elements[0].0.clone(), elements[0].1.clone()),
        ];
        let filter = packet_filter(&packet_filter_messages(&steps));
        let mut expected = FilterTable::default();
        expected.sets.extend([("verdicts".to_owned(), verdicts), ("ranges".to_owned(), ranges)]);
        expected.chains.entry("forward".to_owned()).or_default().base = Some(base);
        assert_eq!(filter.tables, [(table, expected)].into());
        assert_eq!(filter.elements, elements.into());
    }
}
