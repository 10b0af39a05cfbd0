//! Rules: Knit's, and those of others, which are never changed.

use std::collections::BTreeSet;

use ipnet::IpNet;
use knit_model::{IfName, Rule, Scope, marks};

use crate::error::Result;
use crate::kernel::Room;
use crate::netlink::constants::*;
use crate::netlink::header::RuleHeader;
use crate::netlink::{Header, Message};

/// Looks at the rules of both families: Knit's, and those of others. The kernel's own are left out.
pub(super) fn look(room: &mut Room<'_>, scope: &Scope) -> Result<(BTreeSet<Rule>, BTreeSet<Rule>)> {
    let mut message = Message::new(RTM_GETRULE, 0, format!("list rules of {scope}"));
    message.header(&RuleHeader::default());
    let (mut knits, mut of_others) = (BTreeSet::new(), BTreeSet::new());
    for (rule, is_knits) in room.socket(scope)?.dump(message, |_, body| decode(body))? {
        if is_knits { &mut knits } else { &mut of_others }.insert(rule);
    }
    Ok((knits, of_others))
}

/// Whether the kernel's own rule for VRFs stands already.
pub(crate) fn kernel_has_vrf_rule(room: &mut Room<'_>, scope: &Scope) -> Result<bool> {
    let mut message = Message::new(RTM_GETRULE, 0, format!("list rules of {scope}"));
    message.header(&RuleHeader::default());
    let is_it = |_, body: &[u8]| {
        let (_, attributes) = RuleHeader::split(body)?;
        let is_kernels = attributes.first(FRA_PROTOCOL)?.u8()? == RTPROT_KERNEL;
        (is_kernels && attributes.first(FRA_L3MDEV)?.u8()? != 0).then_some(())
    };
    Ok(!room.socket(scope)?.dump(message, is_it)?.is_empty())
}

/// Reads one rule, and whether it is Knit's.
fn decode(body: &[u8]) -> Option<(Rule, bool)> {
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
    Some((rule, protocol == marks::PROTOCOL))
}
