//! Steps on the packet filter as messages of a transaction.

use knit_model::filter::rule::FilterRule;
use knit_model::filter::{
    BaseChain, ChainType, ElementData, ElementKey, FilterSet, FilterStep, Hook, TableFamily, TableKey,
};

use super::constants::*;
use super::{FilterMessage, Requirement, expression, set};
use crate::netlink::Message;
use crate::netlink::constants::{NFNL_SUBSYS_NFTABLES, NLM_F_APPEND, NLM_F_CREATE};
use crate::netlink::header::NetfilterHeader;

/// Elements per message: with the longest keys they fit into netlink's length fields.
const ELEMENTS_PER_MESSAGE: usize = 400;

/// Type of a rule's comment in its userdata, as the `nft` program writes it.
pub(super) const COMMENT: u8 = 0;

/// The messages for these steps, each with the number of its step. New tables have these flags.
pub(super) fn messages<'a>(
    steps: impl IntoIterator<Item = (usize, &'a FilterStep)>,
    table_flags: u32,
) -> Vec<FilterMessage> {
    let mut encoder = Encoder { messages: Vec::new(), elements: Vec::new(), next_set: 1, table_flags };
    for (step, what) in steps {
        encoder.step(step, what);
    }
    encoder.flush();
    encoder.messages
}

struct Encoder<'a> {
    messages: Vec<FilterMessage>,
    /// Elements to add to one set, which share messages.
    elements: Vec<(usize, &'a ElementKey, &'a ElementData)>,
    next_set: u32,
    table_flags: u32,
}

impl<'a> Encoder<'a> {
    fn step(&mut self, step: usize, what: &'a FilterStep) {
        if let FilterStep::AddElement(key, data) = what {
            let is_same = |first: &ElementKey| (&first.table, &first.set) == (&key.table, &key.set);
            if !self.elements.first().is_none_or(|(_, first, _)| is_same(first))
                || self.elements.len() == ELEMENTS_PER_MESSAGE
            {
                self.flush();
            }
            self.elements.push((step, key, data));
            return;
        }
        self.flush();
        match what {
            FilterStep::AddTable(table) => {
                self.push(step, new_table(table, self.table_flags, format!("add table {table}")));
            }
            FilterStep::RemoveTable(table) => {
                self.push_removal(step, message(table, NFT_MSG_DELTABLE, 0, format!("remove table {table}")));
            }
            FilterStep::AddSet(table, name, set) => self.add_set(step, table, name, set),
            FilterStep::RemoveSet(table, name, _) => {
                let mut removal =
                    message(table, NFT_MSG_DELSET, 0, format!("remove set {name} from table {table}"));
                removal.put_str(NFTA_SET_NAME, name);
                self.push_removal(step, removal);
            }
            FilterStep::AddCounter(table, name) => {
                let context = format!("add counter {name} to table {table}");
                let mut addition = message(table, NFT_MSG_NEWOBJ, NLM_F_CREATE, context);
                addition.put_str(NFTA_OBJ_NAME, name).put_be32(NFTA_OBJ_TYPE, NFT_OBJECT_COUNTER);
                addition.nest(NFTA_OBJ_DATA, |_| {});
                self.push(step, addition);
            }
            FilterStep::RemoveCounter(table, name) => {
                let context = format!("remove counter {name} from table {table}");
                let mut removal = message(table, NFT_MSG_DELOBJ, 0, context);
                removal.put_str(NFTA_OBJ_NAME, name).put_be32(NFTA_OBJ_TYPE, NFT_OBJECT_COUNTER);
                self.push_removal(step, removal);
            }
            FilterStep::AddChain(table, name, base) => self.add_chain(step, table, name, base.as_ref()),
            FilterStep::RemoveChain(table, name, _) => {
                let context = format!("remove chain {name} from table {table}");
                let mut removal = message(table, NFT_MSG_DELCHAIN, 0, context);
                removal.put_str(NFTA_CHAIN_NAME, name);
                self.push_removal(step, removal);
            }
            FilterStep::SetRules { table, chain, after, .. } => self.set_rules(step, table, chain, after),
            FilterStep::AddElement(..) => {}
            FilterStep::RemoveElement(key, data) => self.remove_element(step, key, data),
            FilterStep::ReplaceElement { key, before, after } => {
                self.remove_element(step, key, before);
                self.elements.push((step, key, after));
                self.flush();
            }
        }
    }

    fn push(&mut self, step: usize, message: Message) {
        self.messages.push(FilterMessage { step, message, is_removal: false, requirement: None });
    }

    fn push_removal(&mut self, step: usize, message: Message) {
        self.messages.push(FilterMessage { step, message, is_removal: true, requirement: None });
    }

    fn add_set(&mut self, step: usize, table: &TableKey, name: &str, set: &FilterSet) {
        let context = format!("add set {name} to table {table}");
        let mut addition = message(table, NFT_MSG_NEWSET, NLM_F_CREATE, context);
        set::encode_set(name, set, self.next_set, &mut addition);
        self.next_set += 1;
        self.push(step, addition);
    }

    fn add_chain(&mut self, step: usize, table: &TableKey, name: &str, base: Option<&BaseChain>) {
        let context = format!("add chain {name} to table {table}");
        let mut addition = message(table, NFT_MSG_NEWCHAIN, NLM_F_CREATE, context);
        addition.put_str(NFTA_CHAIN_NAME, name);
        let mut requirement = family_requirement(table.family);
        if let Some(base) = base {
            addition.put_str(NFTA_CHAIN_TYPE, chain_type_name(base.chain_type));
            addition.put_be32(NFTA_CHAIN_POLICY, NF_ACCEPT as u32).nest(NFTA_CHAIN_HOOK, |hook| {
                hook.put_be32(NFTA_HOOK_HOOKNUM, hook_number(&base.hook));
                hook.put_be32(NFTA_HOOK_PRIORITY, base.priority as u32);
                if let Hook::Ingress(link) = &base.hook {
                    hook.put_str(NFTA_HOOK_DEV, link.as_str());
                }
            });
            if base.chain_type == ChainType::Nat {
                let what = "nftables for address translation".to_owned();
                requirement = Requirement { what, config: "CONFIG_NFT_NAT" };
            }
        }
        self.messages.push(FilterMessage {
            step,
            message: addition,
            is_removal: false,
            requirement: Some(requirement),
        });
    }

    /// Removes all rules of the chain, then adds the new ones.
    fn set_rules(&mut self, step: usize, table: &TableKey, chain: &str, rules: &[FilterRule]) {
        let context = format!("remove the rules of chain {chain} in table {table}");
        let mut removal = message(table, NFT_MSG_DELRULE, 0, context);
        removal.put_str(NFTA_RULE_CHAIN, chain);
        let is_removal = rules.is_empty();
        self.messages.push(FilterMessage { step, message: removal, is_removal, requirement: None });
        for (rule, number) in rules.iter().zip(1..) {
            let context = format!("add rule {number} to chain {chain} in table {table}");
            let mut addition = message(table, NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, context);
            addition.put_str(NFTA_RULE_CHAIN, chain).nest(NFTA_RULE_EXPRESSIONS, |list| {
                rule.expressions.iter().for_each(|one| expression::encode(one, list));
            });
            if let Some(comment) = &rule.comment {
                let length = comment.len() as u8 + 1;
                let data = [&[COMMENT, length][..], comment.as_bytes(), &[0]].concat();
                addition.put_bytes(NFTA_RULE_USERDATA, &data);
            }
            let names = rule.expressions.iter().map(expression::name);
            let optional = names.filter_map(|name| Some((name, expression::optional(name)?))).next();
            let requirement =
                optional.map(|(name, config)| Requirement { what: format!("nftables {name}"), config });
            let requirement = requirement.or_else(|| Some(family_requirement(table.family)));
            self.messages.push(FilterMessage { step, message: addition, is_removal: false, requirement });
        }
    }

    fn remove_element(&mut self, step: usize, key: &ElementKey, data: &ElementData) {
        let removal = elements(NFT_MSG_DELSETELEM, &[(step, key, data)]);
        self.push_removal(step, removal);
    }

    /// Adds the collected elements.
    fn flush(&mut self) {
        let Some((step, ..)) = self.elements.first() else { return };
        let step = *step;
        let addition = elements(NFT_MSG_NEWSETELEM, &self.elements);
        self.elements.clear();
        self.push(step, addition);
    }
}

/// A message about elements of one set.
fn elements(kind: u16, list: &[(usize, &ElementKey, &ElementData)]) -> Message {
    let (_, ElementKey { table, set, .. }, _) = list[0];
    let (verb, flags) = match kind {
        NFT_MSG_NEWSETELEM => ("add elements to", NLM_F_CREATE),
        NFT_MSG_DELSETELEM => ("remove elements from", 0),
        _ => ("get elements of", 0),
    };
    // Not formatted: every attach has several of these messages, and the text is used only in errors.
    let context = [verb, " set ", set, " of table ", table.family.name(), " ", &table.name].concat();
    let mut message = message(table, kind, flags, context);
    message.put_str(NFTA_SET_ELEM_LIST_SET, set);
    message.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |entries| {
        for (_, key, data) in list {
            set::encode_element(&key.key, data, entries);
        }
    });
    message
}

/// A request for one element.
pub(super) fn get_element(key: &ElementKey) -> Message {
    elements(NFT_MSG_GETSETELEM, &[(0, key, &ElementData::Key)])
}

/// Creates a table, or changes the flags of an existing one.
pub(super) fn new_table(table: &TableKey, flags: u32, context: String) -> Message {
    let mut message = message(table, NFT_MSG_NEWTABLE, NLM_F_CREATE, context);
    if flags != 0 {
        message.put_be32(NFTA_TABLE_FLAGS, flags);
    }
    message
}

/// Begins a message. The attribute of the table's name has the same number in all messages.
pub(super) fn message(table: &TableKey, kind: u16, flags: u16, context: String) -> Message {
    let mut message = Message::new(NFNL_SUBSYS_NFTABLES << 8 | kind, flags, context);
    message.header(&NetfilterHeader { family: family_number(table.family), ..Default::default() });
    message.put_str(NFTA_TABLE_NAME, &table.name);
    message
}

pub(super) fn family_number(family: TableFamily) -> u8 {
    match family {
        TableFamily::Inet => NFPROTO_INET,
        TableFamily::Bridge => NFPROTO_BRIDGE,
        TableFamily::Netdev => NFPROTO_NETDEV,
    }
}

fn family_requirement(family: TableFamily) -> Requirement {
    let (what, config) = match family {
        TableFamily::Inet => ("nftables for IPv4 and IPv6", "CONFIG_NF_TABLES_INET"),
        TableFamily::Bridge => ("nftables on bridges", "CONFIG_NF_TABLES_BRIDGE"),
        TableFamily::Netdev => ("nftables at link ingress", "CONFIG_NF_TABLES_NETDEV"),
    };
    Requirement { what: what.to_owned(), config }
}

pub(super) fn chain_type_name(kind: ChainType) -> &'static str {
    match kind {
        ChainType::Filter => "filter",
        ChainType::Nat => "nat",
        ChainType::Route => "route",
    }
}

pub(super) fn hook_number(hook: &Hook) -> u32 {
    match hook {
        Hook::Prerouting => NF_INET_PRE_ROUTING,
        Hook::Input => NF_INET_LOCAL_IN,
        Hook::Forward => NF_INET_FORWARD,
        Hook::Output => NF_INET_LOCAL_OUT,
        Hook::Postrouting => NF_INET_POST_ROUTING,
        Hook::Ingress(_) => NF_NETDEV_INGRESS,
    }
}

const _: () = assert!(
    NFTA_TABLE_NAME == NFTA_CHAIN_TABLE
        && NFTA_TABLE_NAME == NFTA_RULE_TABLE
        && NFTA_TABLE_NAME == NFTA_SET_TABLE
        && NFTA_TABLE_NAME == NFTA_OBJ_TABLE
        && NFTA_TABLE_NAME == NFTA_SET_ELEM_LIST_TABLE
);
