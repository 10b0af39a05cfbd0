//! Probes of addresses and route encapsulations.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use nix::errno::Errno;

use super::Area;
use super::probe::{Finding, Probe, ProbeRun::Scratch as InScratch};
use super::scratch::Scratch;
use crate::netlink::Message;
use crate::netlink::constants::*;
use crate::netlink::header::{AddressHeader, Header, RouteHeader};
use crate::netns::LOOPBACK;

// lwtunnel.h, seg6_iptunnel.h, mpls_iptunnel.h
const LWTUNNEL_ENCAP_MPLS: u16 = 1;
const LWTUNNEL_ENCAP_SEG6: u16 = 5;
const SEG6_IPTUNNEL_SRH: u16 = 1;
const SEG6_IPTUN_MODE_ENCAP: u32 = 1;
const MPLS_IPTUNNEL_DST: u16 = 1;

/// An arbitrary protocol number.
const PROTOCOL: u8 = 211;
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);

const fn routing(
    name: &'static str,
    title: &'static str,
    config: &'static str,
    run: fn(&mut Scratch) -> Finding,
) -> Probe {
    Probe::new(name, title, Area::Routing, config, InScratch(run))
}

pub const PROBES: &[Probe] = &[
    routing("addresses", "IPv4", "CONFIG_INET", |scratch| {
        Finding::of(scratch.add_address(ADDRESS.into(), PROTOCOL), &[Errno::EOPNOTSUPP])
    })
    .needed_for("the addresses of every interface")
    .required(),
    routing("ipv6", "IPv6", "CONFIG_IPV6", ipv6).module("ipv6").needed_for("dual-stack pods"),
    routing("address-protocol", "protocol numbers of addresses", "CONFIG_NET", address_protocol)
        .needed_for("marking Knit's addresses (Linux 5.18); otherwise the mark of the link is used"),
    routing("srv6", "SRv6", "CONFIG_IPV6_SEG6_LWTUNNEL", srv6).needed_for("segment routing, service chains"),
    routing("mpls", "MPLS", "CONFIG_MPLS_ROUTING", mpls)
        .module("mpls_router")
        .needed_for("label-switched networks"),
    routing("mpls-routes", "routes that push MPLS labels", "CONFIG_MPLS_IPTUNNEL", mpls_routes)
        .module("mpls_iptunnel")
        .needed_for("label-switched networks"),
];

fn ipv6(scratch: &mut Scratch) -> Finding {
    let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);
    match scratch.add_address(address.into(), PROTOCOL) {
        // EACCES means that IPv6 is supported but disabled.
        Err(error) if matches!(error.errno(), Some(Errno::EACCES)) => Finding::Broken {
            reason: "IPv6 is disabled".into(),
            hint: "sysctl net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0".into(),
        },
        attempt => Finding::of(attempt, &[Errno::EOPNOTSUPP, Errno::EAFNOSUPPORT]),
    }
}

/// Older kernels ignore the attribute, so the address is read back.
fn address_protocol(scratch: &mut Scratch) -> Finding {
    if let Err(error) = scratch.add_address(ADDRESS.into(), PROTOCOL) {
        return error.into();
    }
    let mut message = Message::new(RTM_GETADDR, 0, "list addresses");
    message.header(&AddressHeader { family: AF_INET, ..Default::default() });
    let protocols = scratch.route.dump(message, |_, body| {
        let (_, attributes) = AddressHeader::split(body)?;
        let mine = attributes.first(IFA_ADDRESS)?.address()? == IpAddr::from(ADDRESS);
        mine.then(|| attributes.first(IFA_PROTO).and_then(|protocol| protocol.u8()))
    });
    match protocols {
        Ok(found) if found == [Some(PROTOCOL)] => Finding::Present,
        Ok(_) => Finding::Broken {
            reason: "this kernel does not store the protocol number of an address (Linux 5.18 does)".into(),
            hint: "no action needed; a newer kernel identifies Knit's addresses more reliably".into(),
        },
        Err(error) => error.into(),
    }
}

fn srv6(scratch: &mut Scratch) -> Finding {
    // struct seg6_iptunnel_encap: the mode, then a segment routing header (RFC 8754) with one segment.
    let mut encapsulation = SEG6_IPTUN_MODE_ENCAP.to_ne_bytes().to_vec();
    let (next_header, length, routing_type, segments_left, last_entry) = (0, 2, 4, 0, 0);
    encapsulation.extend_from_slice(&[next_header, length, routing_type, segments_left, last_entry, 0, 0, 0]);
    encapsulation.extend_from_slice(&Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 5).octets());
    let destination = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0);
    let message = route(destination.into(), 64, LWTUNNEL_ENCAP_SEG6, |encap| {
        encap.put_bytes(SEG6_IPTUNNEL_SRH, &encapsulation);
    });
    Finding::of(scratch.route.request(message), &[Errno::EOPNOTSUPP])
}

/// The kernel does not load the module on demand, so the hint is to load it.
fn mpls(_: &mut Scratch) -> Finding {
    if Path::new("/proc/sys/net/mpls/platform_labels").exists() { Finding::Present } else { Finding::Absent }
}

fn mpls_routes(scratch: &mut Scratch) -> Finding {
    let (label, bottom_of_stack) = (100u32 << 12, 1u32 << 8);
    let destination = Ipv4Addr::new(198, 51, 100, 0);
    let message = route(destination.into(), 24, LWTUNNEL_ENCAP_MPLS, |encap| {
        encap.put_be32(MPLS_IPTUNNEL_DST, label | bottom_of_stack);
    });
    Finding::of(scratch.route.request(message), &[Errno::EOPNOTSUPP])
}

/// A route through `lo` with an encapsulation.
fn route(destination: IpAddr, length: u8, kind: u16, encapsulation: impl FnOnce(&mut Message)) -> Message {
    let family = if destination.is_ipv4() { AF_INET } else { AF_INET6 };
    let context = format!("add a route to {destination}/{length} with an encapsulation");
    let mut message = Message::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, context);
    message.header(&RouteHeader {
        family,
        destination_length: length,
        table: RT_TABLE_MAIN,
        protocol: RTPROT_STATIC,
        scope: if destination.is_ipv4() { RT_SCOPE_LINK } else { RT_SCOPE_UNIVERSE },
        kind: RTN_UNICAST,
        ..Default::default()
    });
    message.put_address(RTA_DST, destination).put_u32(RTA_OIF, LOOPBACK as u32);
    message.nest(RTA_ENCAP, encapsulation).put_u16(RTA_ENCAP_TYPE, kind);
    message
}
