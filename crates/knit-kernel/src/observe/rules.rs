//! Observes policy routing rules: Knit's, and those of others, which are never changed.

use std::collections::BTreeSet;

use ipnet::IpNet;
use knit_model::{IfName, Rule, Scope, kernel_ids};

use crate::error::Result;
use crate::kernel::Session;
use crate::netlink::constants::*;
use crate::netlink::header::RuleHeader;
use crate::netlink::{Header, Message};

/// The rules of both families: Knit's, and those of others. The kernel's rules are left out.
pub(super) fn observe(session: &mut Session<'_>, scope: &Scope) -> Result<(BTreeSet<Rule>, BTreeSet<Rule>)> {
    let mut message = Message::new(RTM_GETRULE, 0, format!("list rules of {scope}"));
    message.header(&RuleHeader::default());
    let (mut owned, mut foreign) = (BTreeSet::new(), BTreeSet::new());
    for (rule, is_owned) in session.socket(scope)?.dump(message, |_, body| decode(body))? {
        if is_owned { &mut owned } else { &mut foreign }.insert(rule);
    }
    Ok((owned, foreign))
}

/// Whether the kernel's VRF rule exists.
pub(crate) fn kernel_has_vrf_rule(session: &mut Session<'_>, scope: &Scope) -> Result<bool> {
    let mut message = Message::new(RTM_GETRULE, 0, format!("list rules of {scope}"));
    message.header(&RuleHeader::default());
    let is_vrf_rule = |_, body: &[u8]| {
        let (_, attributes) = RuleHeader::split(body)?;
        let is_kernel_rule = attributes.first(FRA_PROTOCOL)?.u8()? == RTPROT_KERNEL;
        (is_kernel_rule && attributes.first(FRA_L3MDEV)?.u8()? != 0).then_some(())
    };
    Ok(!session.socket(scope)?.dump(message, is_vrf_rule)?.is_empty())
}

/// Decodes one rule, and whether it is Knit's.
pub(crate) fn decode(body: &[u8]) -> Option<(Rule, bool)> {
    let (header, attributes) = RuleHeader::split(body)?;
    let number = |kind| attributes.first(kind).and_then(|value| value.u32());
    let protocol = attributes.first(FRA_PROTOCOL)?.u8()?;
    let is_address_family = matches!(header.family, AF_INET | AF_INET6);
    if protocol == RTPROT_KERNEL || !is_address_family || header.action != FR_ACT_TO_TBL {
        return None;
    }
    let prefix = |kind, length| {
        let address = attributes.first(kind)?.address()?;
        IpNet::new(address, length).ok()
    };
    let link = |kind| attributes.first(kind).and_then(|name| IfName::new(name.str()?).ok());
    let mark = number(FRA_FWMARK).unwrap_or(0);
    let mask = number(FRA_FWMASK).unwrap_or(0);
    let rule = Rule {
        priority: number(FRA_PRIORITY).unwrap_or(0),
        ipv6: header.family == AF_INET6,
        from: prefix(FRA_SRC, header.source_length),
        to: prefix(FRA_DST, header.destination_length),
        iif: link(FRA_IIFNAME),
        oif: link(FRA_OIFNAME),
        mark: (mark != 0 || mask != 0).then_some((mark, mask)),
        table: number(FRA_TABLE).unwrap_or(header.table.into()),
        vrf: attributes.first(FRA_L3MDEV).and_then(|is| is.u8()).is_some_and(|is| is != 0),
    };
    Some((rule, protocol == kernel_ids::PROTOCOL))
}
