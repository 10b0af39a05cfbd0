//! Tables as messages: an empty one in the place of whatever there is, then what is in it.

use super::constants::*;
use super::expression::Expression;
use super::rule::Rule;
use super::set::{Element, Set};
use super::{Chain, ChainKind, Entry, Family, Hook, Need, Step, Table};
use crate::netlink::Message;
use crate::netlink::constants::{NFNL_SUBSYS_NFTABLES, NLM_F_APPEND, NLM_F_CREATE};
use crate::netlink::header::NetfilterHeader;

/// How many elements go into one message: with the longest keys they fit into netlink's lengths.
const ELEMENTS_AT_ONCE: usize = 400;
/// The options behind expressions that a kernel with nftables may lack.
const OPTIONAL: &str = "CONFIG_NFT_CT, CONFIG_NFT_FIB_INET, CONFIG_NFT_MASQ or CONFIG_NFT_NAT";

impl Table {
    /// What has to be said to have this table and nothing of an older one of its name.
    pub(super) fn steps(&self) -> Vec<Step> {
        let name = self.words();
        // Only what is there can be deleted. Adding a table that is there changes nothing.
        let mut steps = vec![
            self.step(NFT_MSG_NEWTABLE, NLM_F_CREATE, format!("have table {name}"), self.has_family()),
            self.step(NFT_MSG_DELTABLE, 0, format!("delete table {name}"), self.has_family()),
        ];
        if !self.is_none() {
            let context = format!("make table {name}");
            steps.push(self.step(NFT_MSG_NEWTABLE, NLM_F_CREATE, context, self.has_family()));
        }
        steps.extend(self.chains.iter().map(|chain| self.chain(chain)));
        steps.extend(self.sets.iter().zip(1..).flat_map(|(set, id)| self.set(set, id)));
        // Rules name sets and chains.
        for chain in &self.chains {
            steps.extend(
                chain.rules.iter().zip(1..).map(|(rule, number)| self.rule(chain.name, rule, number)),
            );
        }
        steps
    }

    fn words(&self) -> String {
        format!("{} {}", self.family.word(), self.name)
    }

    fn chain(&self, chain: &Chain) -> Step {
        let context = format!("make chain {} in table {}", chain.name, self.words());
        let needs = match chain.entry {
            Some(Entry { kind: ChainKind::Nat, .. }) => {
                Need { what: "nftables for address translation".to_owned(), config: "CONFIG_NFT_NAT" }
            }
            _ => self.has_family(),
        };
        let mut step = self.step(NFT_MSG_NEWCHAIN, NLM_F_CREATE, context, needs);
        let message = &mut step.message;
        message.put_str(NFTA_CHAIN_NAME, chain.name);
        let Some(entry) = chain.entry else { return step };
        message.put_str(
            NFTA_CHAIN_TYPE,
            match entry.kind {
                ChainKind::Filter => "filter",
                ChainKind::Nat => "nat",
            },
        );
        message.put_be32(NFTA_CHAIN_POLICY, NF_ACCEPT as u32).nest(NFTA_CHAIN_HOOK, |place| {
            place.put_be32(NFTA_HOOK_HOOKNUM, entry.hook.number());
            place.put_be32(NFTA_HOOK_PRIORITY, entry.priority as u32);
            if let Hook::Ingress(link) = entry.hook {
                place.put_str(NFTA_HOOK_DEV, link);
            }
        });
        step
    }

    fn set(&self, set: &Set, id: u32) -> Vec<Step> {
        let context = format!("make set {} in table {}", set.name, self.words());
        let mut step = self.step(NFT_MSG_NEWSET, NLM_F_CREATE, context, self.has_family());
        set.encode(id, &mut step.message);
        let mut steps = vec![step];
        steps.extend(self.elements(NFT_MSG_NEWSETELEM, set, &set.elements()));
        steps
    }

    /// Puts elements into a set, or takes them out of it, as many in a message as fit.
    pub(super) fn elements(&self, kind: u16, set: &Set, elements: &[Element]) -> Vec<Step> {
        let (verb, flags) =
            if kind == NFT_MSG_NEWSETELEM { ("fill", NLM_F_CREATE) } else { ("take elements out of", 0) };
        let context = format!("{verb} set {} in table {}", set.name, self.words());
        let message = |list: &[Element]| {
            let mut step = self.step(kind, flags, context.clone(), self.has_family());
            step.message.put_str(NFTA_SET_ELEM_LIST_SET, &set.name);
            step.message.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |elements| {
                list.iter().for_each(|element| element.encode(elements));
            });
            step
        };
        elements.chunks(ELEMENTS_AT_ONCE).map(message).collect()
    }

    fn rule(&self, chain: &str, rule: &Rule, number: u32) -> Step {
        let context = format!("add rule {number} to chain {chain} in table {}", self.words());
        let optional = rule.expressions.iter().filter(|expression| expression.is_optional());
        let names: Vec<&str> = optional.map(Expression::name).collect();
        let needs = match &names[..] {
            [] => self.has_family(),
            names => Need { what: format!("nftables {}", names.join(" or ")), config: OPTIONAL },
        };
        let mut step = self.step(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, context, needs);
        step.message.put_str(NFTA_RULE_CHAIN, chain).nest(NFTA_RULE_EXPRESSIONS, |list| {
            rule.expressions.iter().for_each(|expression| expression.encode(list));
        });
        step
    }

    /// The beginning of a message. The table's name has the same number in all of them.
    fn step(&self, kind: u16, flags: u16, context: String, needs: Need) -> Step {
        let mut message = Message::new(NFNL_SUBSYS_NFTABLES << 8 | kind, flags, context);
        message.header(&NetfilterHeader { family: self.family.number(), ..Default::default() });
        message.put_str(NFTA_TABLE_NAME, self.name);
        Step { message, needs }
    }

    fn has_family(&self) -> Need {
        let (what, config) = match self.family {
            Family::Inet => ("nftables for IPv4 and IPv6", "CONFIG_NF_TABLES_INET"),
            Family::Bridge => ("nftables on bridges", "CONFIG_NF_TABLES_BRIDGE"),
            Family::Netdev => ("nftables at a link's entrance", "CONFIG_NF_TABLES_NETDEV"),
        };
        Need { what: what.to_owned(), config }
    }
}

const _: () = assert!(
    NFTA_TABLE_NAME == NFTA_CHAIN_TABLE
        && NFTA_TABLE_NAME == NFTA_RULE_TABLE
        && NFTA_TABLE_NAME == NFTA_SET_TABLE
        && NFTA_TABLE_NAME == NFTA_SET_ELEM_LIST_TABLE
);
