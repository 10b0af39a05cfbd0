//! Encodes policy routing rules.

use ipnet::IpNet;
use knit_model::link::VRF_RULE_PRIORITY;
use knit_model::{Rule, Scope, kernel_ids};

use crate::netlink::Message;
use crate::netlink::constants::*;
use crate::netlink::header::RuleHeader;

/// Adds a rule with Knit's protocol number.
pub(super) fn add(scope: &Scope, rule: &Rule) -> Message {
    message(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, format!("add rule {rule} on {scope}"), rule)
}

/// Removes a rule of Knit's: the kernel compares the protocol.
pub(super) fn remove(scope: &Scope, rule: &Rule) -> Message {
    message(RTM_DELRULE, 0, format!("remove rule {rule} on {scope}"), rule)
}

/// Removes the rules that the kernel adds with the first VRF of a namespace.
pub(super) fn remove_kernel_vrf_rules(scope: &Scope) -> [Message; 2] {
    [false, true].map(|ipv6| {
        let rule = Rule::of_vrfs(ipv6, VRF_RULE_PRIORITY);
        let context = format!("remove the kernel's rule {rule} on {scope}");
        message_of(RTM_DELRULE, 0, context, &rule, RTPROT_KERNEL)
    })
}

fn message(kind: u16, flags: u16, context: String, rule: &Rule) -> Message {
    message_of(kind, flags, context, rule, kernel_ids::PROTOCOL)
}

fn message_of(kind: u16, flags: u16, context: String, rule: &Rule, protocol: u8) -> Message {
    let length = |prefix: Option<IpNet>| prefix.map_or(0, |prefix| prefix.prefix_len());
    let mut message = Message::new(kind, flags, context);
    message.header(&RuleHeader {
        family: if rule.ipv6 { AF_INET6 } else { AF_INET },
        destination_length: length(rule.to),
        source_length: length(rule.from),
        action: FR_ACT_TO_TBL,
        ..Default::default()
    });
    // The kernel rejects an address with prefix length 0: a match on all addresses is expressed by omitting it.
    for (kind, prefix) in [(FRA_SRC, rule.from), (FRA_DST, rule.to)] {
        if let Some(prefix) = prefix.filter(|prefix| prefix.prefix_len() > 0) {
            message.put_address(kind, prefix.addr());
        }
    }
    for (kind, link) in [(FRA_IIFNAME, &rule.iif), (FRA_OIFNAME, &rule.oif)] {
        if let Some(link) = link {
            message.put_str(kind, link.as_str());
        }
    }
    if let Some((mark, mask)) = rule.mark {
        message.put_u32(FRA_FWMARK, mark).put_u32(FRA_FWMASK, mask);
    }
    message.put_u32(FRA_PRIORITY, rule.priority);
    match rule.vrf {
        true => message.put_u8(FRA_L3MDEV, 1),
        false => message.put_u32(FRA_TABLE, rule.table),
    };
    message.put_u8(FRA_PROTOCOL, protocol);
    message
}
