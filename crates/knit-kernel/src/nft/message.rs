//! Encodes tables as messages: an empty table replaces the existing one, then its contents follow.

use super::constants::*;
use super::expression::Expression;
use super::rule::Rule;
use super::set::{Element, Set};
use super::{BaseChain, Chain, ChainType, Family, Hook, Requirement, Step, Table};
use crate::netlink::Message;
use crate::netlink::constants::{NFNL_SUBSYS_NFTABLES, NLM_F_APPEND, NLM_F_CREATE};
use crate::netlink::header::NetfilterHeader;

/// Elements per message: with the longest keys they fit into netlink's length fields.
const ELEMENTS_PER_MESSAGE: usize = 400;
/// Build options of expressions that a kernel with nftables may lack.
const OPTIONAL: &str = "CONFIG_NFT_CT, CONFIG_NFT_FIB_INET, CONFIG_NFT_MASQ or CONFIG_NFT_NAT";

impl Table {
    /// The steps that replace the table.
    pub(super) fn steps(&self) -> Vec<Step> {
        let name = self.display_name();
        // Only an existing table can be deleted. Adding an existing table changes nothing.
        let mut steps = vec![
            self.step(
                NFT_MSG_NEWTABLE,
                NLM_F_CREATE,
                format!("ensure table {name}"),
                self.family_requirement(),
            ),
            self.step(NFT_MSG_DELTABLE, 0, format!("delete table {name}"), self.family_requirement()),
        ];
        if !self.is_empty() {
            let context = format!("create table {name}");
            steps.push(self.step(NFT_MSG_NEWTABLE, NLM_F_CREATE, context, self.family_requirement()));
        }
        steps.extend(self.chains.iter().map(|chain| self.chain(chain)));
        steps.extend(self.sets.iter().zip(1..).flat_map(|(set, id)| self.set(set, id)));
        // Rules refer to sets and chains.
        for chain in &self.chains {
            steps.extend(
                chain.rules.iter().zip(1..).map(|(rule, number)| self.rule(chain.name, rule, number)),
            );
        }
        steps
    }

    fn display_name(&self) -> String {
        format!("{} {}", self.family.name(), self.name)
    }

    fn chain(&self, chain: &Chain) -> Step {
        let context = format!("create chain {} in table {}", chain.name, self.display_name());
        let requirement = match chain.base {
            Some(BaseChain { chain_type: ChainType::Nat, .. }) => {
                Requirement { what: "nftables for address translation".to_owned(), config: "CONFIG_NFT_NAT" }
            }
            _ => self.family_requirement(),
        };
        let mut step = self.step(NFT_MSG_NEWCHAIN, NLM_F_CREATE, context, requirement);
        let message = &mut step.message;
        message.put_str(NFTA_CHAIN_NAME, chain.name);
        let Some(base) = chain.base else { return step };
        message.put_str(
            NFTA_CHAIN_TYPE,
            match base.chain_type {
                ChainType::Filter => "filter",
                ChainType::Nat => "nat",
            },
        );
        message.put_be32(NFTA_CHAIN_POLICY, NF_ACCEPT as u32).nest(NFTA_CHAIN_HOOK, |hook| {
            hook.put_be32(NFTA_HOOK_HOOKNUM, base.hook.number());
            hook.put_be32(NFTA_HOOK_PRIORITY, base.priority as u32);
            if let Hook::Ingress(link) = base.hook {
                hook.put_str(NFTA_HOOK_DEV, link);
            }
        });
        step
    }

    fn set(&self, set: &Set, id: u32) -> Vec<Step> {
        let context = format!("create set {} in table {}", set.name, self.display_name());
        let mut step = self.step(NFT_MSG_NEWSET, NLM_F_CREATE, context, self.family_requirement());
        set.encode(id, &mut step.message);
        let mut steps = vec![step];
        steps.extend(self.elements(NFT_MSG_NEWSETELEM, set, &set.elements()));
        steps
    }

    /// Adds or removes set elements, as many in a message as fit.
    pub(super) fn elements(&self, kind: u16, set: &Set, elements: &[Element]) -> Vec<Step> {
        let (verb, flags) = if kind == NFT_MSG_NEWSETELEM {
            ("add elements to", NLM_F_CREATE)
        } else {
            ("remove elements from", 0)
        };
        let context = format!("{verb} set {} in table {}", set.name, self.display_name());
        let message = |list: &[Element]| {
            let mut step = self.step(kind, flags, context.clone(), self.family_requirement());
            step.message.put_str(NFTA_SET_ELEM_LIST_SET, &set.name);
            step.message.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |elements| {
                list.iter().for_each(|element| element.encode(elements));
            });
            step
        };
        elements.chunks(ELEMENTS_PER_MESSAGE).map(message).collect()
    }

    fn rule(&self, chain: &str, rule: &Rule, number: u32) -> Step {
        let context = format!("add rule {number} to chain {chain} in table {}", self.display_name());
        let optional = rule.expressions.iter().filter(|expression| expression.is_optional());
        let names: Vec<&str> = optional.map(Expression::name).collect();
        let requirement = match &names[..] {
            [] => self.family_requirement(),
            names => Requirement { what: format!("nftables {}", names.join(" or ")), config: OPTIONAL },
        };
        let mut step = self.step(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, context, requirement);
        step.message.put_str(NFTA_RULE_CHAIN, chain).nest(NFTA_RULE_EXPRESSIONS, |list| {
            rule.expressions.iter().for_each(|expression| expression.encode(list));
        });
        step
    }

    /// Begins a message. The attribute of the table's name has the same number in all messages.
    fn step(&self, kind: u16, flags: u16, context: String, requirement: Requirement) -> Step {
        let mut message = Message::new(NFNL_SUBSYS_NFTABLES << 8 | kind, flags, context);
        message.header(&NetfilterHeader { family: self.family.number(), ..Default::default() });
        message.put_str(NFTA_TABLE_NAME, self.name);
        Step { message, requirement }
    }

    fn family_requirement(&self) -> Requirement {
        let (what, config) = match self.family {
            Family::Inet => ("nftables for IPv4 and IPv6", "CONFIG_NF_TABLES_INET"),
            Family::Bridge => ("nftables on bridges", "CONFIG_NF_TABLES_BRIDGE"),
            Family::Netdev => ("nftables at link ingress", "CONFIG_NF_TABLES_NETDEV"),
        };
        Requirement { what: what.to_owned(), config }
    }
}

const _: () = assert!(
    NFTA_TABLE_NAME == NFTA_CHAIN_TABLE
        && NFTA_TABLE_NAME == NFTA_RULE_TABLE
        && NFTA_TABLE_NAME == NFTA_SET_TABLE
        && NFTA_TABLE_NAME == NFTA_SET_ELEM_LIST_TABLE
);
