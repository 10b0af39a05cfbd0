//! Packets and bytes that rules have counted, read chain by chain: the kernel returns only the rules of the requested chain.

use std::collections::BTreeMap;

use knit_model::filter::TableKey;

use super::constants::*;
use super::{encode, explain_unsupported, observe};
use crate::error::Result;
use crate::kernel::absent_is_none;
use crate::netlink::header::NetfilterHeader;
use crate::netlink::{Header, Protocol, Socket};
use crate::netns::Netns;

/// What rules have counted since they were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounter {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The counters of rules by comment. Those of rules with the same comment are added.
pub type ChainCounters = BTreeMap<String, RuleCounter>;

/// The counters of rules with comments in these chains of a table. A chain that does not exist is missing.
pub fn chain_counters<'a>(
    netns: &Netns,
    table: &TableKey,
    chains: impl IntoIterator<Item = &'a str>,
) -> Result<BTreeMap<String, ChainCounters>> {
    let mut socket = Socket::open_in(netns, Protocol::Netfilter).map_err(explain_unsupported)?;
    let mut all = BTreeMap::new();
    for chain in chains {
        let context = format!("read the counters of chain {chain} in table {table}");
        let mut message = encode::message(table, NFT_MSG_GETRULE, 0, context);
        message.put_str(NFTA_RULE_CHAIN, chain);
        let rules = absent_is_none(socket.dump(message, |_, body| decode(body)))?.unwrap_or_default();
        for (found, comment, counter) in rules {
            let counters: &mut ChainCounters = all.entry(found).or_default();
            let sum = counters.entry(comment).or_default();
            sum.packets = sum.packets.saturating_add(counter.packets);
            sum.bytes = sum.bytes.saturating_add(counter.bytes);
        }
    }
    Ok(all)
}

/// The chain, the comment and the counter of a rule that has both.
pub(crate) fn decode(body: &[u8]) -> Option<(String, String, RuleCounter)> {
    let (_, attributes) = NetfilterHeader::split(body)?;
    let chain = attributes.first(NFTA_RULE_CHAIN)?.str()?.to_owned();
    let comment = observe::comment_in(attributes.first(NFTA_RULE_USERDATA)?.value)?;
    let mut expressions = attributes.first(NFTA_RULE_EXPRESSIONS)?.nested();
    let counter = expressions.find_map(|entry| {
        let entry = entry.nested();
        let is_counter = entry.first(NFTA_EXPR_NAME)?.str()? == "counter";
        let data = entry.first(NFTA_EXPR_DATA).filter(|_| is_counter)?.nested();
        let number = |kind: u16| data.first(kind)?.be64();
        Some(RuleCounter { packets: number(NFTA_COUNTER_PACKETS)?, bytes: number(NFTA_COUNTER_BYTES)? })
    })?;
    Some((chain, comment, counter))
}

#[cfg(test)]
mod tests {
    use knit_model::filter::TableFamily;

    use super::*;

    #[test]
    fn a_rule_with_a_comment_and_a_counter_is_decoded_and_no_other() {
        let rule = |comment: &[u8], counter: &[(u16, u64)]| {
            let table = TableFamily::Inet.table();
            let mut message = encode::message(&table, NFT_MSG_NEWRULE, 0, "test".to_owned());
            message.put_str(NFTA_RULE_CHAIN, "policy").put_bytes(NFTA_RULE_USERDATA, comment);
            message.nest(NFTA_RULE_EXPRESSIONS, |list| {
                list.nest(NFTA_LIST_ELEM, |entry| {
                    entry.put_str(NFTA_EXPR_NAME, "immediate");
                });
                list.nest(NFTA_LIST_ELEM, |entry| {
                    entry.put_str(NFTA_EXPR_NAME, "counter").nest(NFTA_EXPR_DATA, |data| {
                        for (kind, value) in counter {
                            data.put_bytes(*kind, &value.to_be_bytes());
                        }
                    });
                });
            });
            message.as_bytes()[16..].to_vec()
        };
        let both = [(NFTA_COUNTER_BYTES, 500), (NFTA_COUNTER_PACKETS, 3)];
        let whole = rule(b"\0\x02a\0", &both);
        let expected = ("policy".to_owned(), "a".to_owned(), RuleCounter { packets: 3, bytes: 500 });
        assert_eq!(decode(&whole), Some(expected));
        assert_eq!(decode(&rule(b"", &both)), None, "without a comment");
        assert_eq!(decode(&rule(b"\0\x02a\0", &both[..1])), None, "without packets");
        for length in 0..whole.len() {
            assert_eq!(decode(&whole[..length]), None, "{length}");
        }
    }
}
