//! Reads Knit's tables back: structure by dumps of these tables only, elements by key.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use knit_model::filter::rule::FilterRule;
use knit_model::filter::{
    BaseChain, ChainType, ElementData, ElementKey, Filter, FilterChain, FilterSet, FilterTable, Hook, TABLE,
    TableFamily, TableKey,
};
use nix::errno::Errno;

use super::constants::*;
use super::{encode, expression, set};
use crate::error::{Error, Result};
use crate::kernel::absent_is_none;
use crate::netlink::constants::NFNL_SUBSYS_NFTABLES;
use crate::netlink::header::NetfilterHeader;
use crate::netlink::{Attributes, Header, Message, Socket};

/// What to observe of the packet filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterQuery {
    /// The structure of these tables.
    pub tables: BTreeSet<TableKey>,
    /// All elements of these tables, too, but those of sets to which rules add elements: they are not part of a state.
    pub with_elements: bool,
    /// Except those of sets whose names start with this, unless it is empty.
    pub except_prefix: String,
    /// All elements of these sets.
    pub sets: BTreeSet<(TableKey, String)>,
    /// These elements, requested one by one. Not for sets of ranges.
    pub elements: BTreeSet<ElementKey>,
    /// These chains with their rules.
    pub chains: BTreeSet<(TableKey, String)>,
    /// The declarations of these sets.
    pub declarations: BTreeSet<(TableKey, String)>,
    /// All of this only if an observed link or route is Knit's.
    pub only_if_owned: bool,
}

impl FilterQuery {
    /// Whether nothing is requested.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
            && self.sets.is_empty()
            && self.elements.is_empty()
            && self.chains.is_empty()
            && self.declarations.is_empty()
    }
}

/// Observes the packet filter. A kernel without nftables has none.
pub(crate) fn observe(socket: &mut Socket, query: &FilterQuery) -> Result<Filter> {
    match try_observe(socket, query).map_err(super::explain_unsupported) {
        Err(Error::Unsupported { .. }) => Ok(Filter::default()),
        other => other,
    }
}

fn try_observe(socket: &mut Socket, query: &FilterQuery) -> Result<Filter> {
    let mut filter = Filter::default();
    for key in &query.tables {
        if let Some(table) = table(socket, key)? {
            let prefix = query.except_prefix.as_str();
            let is_excepted = |name: &str| !prefix.is_empty() && name.starts_with(prefix);
            let sets = table
                .sets
                .iter()
                .filter(|(name, set)| query.with_elements && set.timeout.is_none() && !is_excepted(name));
            for (name, _) in sets {
                filter.elements.extend(all_elements(socket, key, name)?);
            }
            filter.tables.insert(key.clone(), table);
        }
    }
    add_parts(socket, query, &mut filter)?;
    for (key, name) in &query.sets {
        filter.elements.extend(all_elements(socket, key, name)?);
    }
    add_elements(socket, &query.elements, &mut filter)?;
    Ok(filter)
}

/// Adds chains and declarations of sets, of tables that are not observed as a whole. Rules that use the data of a map cannot be
/// decoded without its declaration.
fn add_parts(socket: &mut Socket, query: &FilterQuery, filter: &mut Filter) -> Result<()> {
    for (key, name) in query.declarations.iter().filter(|(key, _)| !query.tables.contains(key)) {
        if let Some(set) = declaration(socket, key, name)? {
            filter.tables.entry(key.clone()).or_default().sets.insert(name.clone(), set);
        }
    }
    for (key, name) in query.chains.iter().filter(|(key, _)| !query.tables.contains(key)) {
        let context = format!("get chain {name} of table {key}");
        let mut message = encode::message(key, NFT_MSG_GETCHAIN, 0, context);
        message.put_str(NFTA_CHAIN_NAME, name);
        let found = socket.request_reply(message, |_, body| {
            let (_, attributes) = NetfilterHeader::split(body)?;
            chain(key.family, attributes)
        });
        let Some((_, mut found)) = absent_is_none(found)? else { continue };
        let table = filter.tables.entry(key.clone()).or_default();
        let mut message = encode::message(key, NFT_MSG_GETRULE, 0, format!("list rules of chain {name}"));
        message.put_str(NFTA_RULE_CHAIN, name);
        let rules = socket.dump(message, |_, body| {
            let (_, attributes) = NetfilterHeader::split(body)?;
            (attributes.first(NFTA_RULE_TABLE)?.str()? == key.name).then(|| rule(attributes, &table.sets))?
        })?;
        // Some kernels list the rules of other chains, too.
        found.rules.extend(rules.into_iter().filter(|(of, _)| of == name).map(|(_, rule)| rule));
        table.chains.insert(name.clone(), found);
    }
    Ok(())
}

/// Adds the elements that exist, all requested in one datagram. The declaration of a set is needed only to decode the data
/// of a map.
fn add_elements(socket: &mut Socket, keys: &BTreeSet<ElementKey>, filter: &mut Filter) -> Result<()> {
    let messages: Vec<Message> = keys.iter().map(encode::get_element).collect();
    // The kernel rejects a key of another length than the set's: such an element does not exist.
    let found = socket.request_each(&messages, &[Errno::ENOENT, Errno::EINVAL], |body| {
        let (_, attributes) = NetfilterHeader::split(body)?;
        Some(set::decode_elements(attributes))
    })?;
    let mut declarations: BTreeMap<(&TableKey, &str), Option<FilterSet>> = BTreeMap::new();
    for (key, raw) in keys.iter().zip(found) {
        let Some(raw) = raw.into_iter().flatten().find(|raw| raw.has_key(&key.key)) else { continue };
        let data = match raw.plain_data() {
            Some(data) => Some(data),
            None => {
                let set = match declarations.entry((&key.table, key.set.as_str())) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(unknown) => unknown.insert(declaration(socket, &key.table, &key.set)?),
                };
                set.as_ref().and_then(|set| raw.data_in(set))
            }
        };
        if let Some(data) = data {
            filter.add(key.clone(), data);
        }
    }
    Ok(())
}

/// Decodes messages about Knit's tables, each with its type: structure, and the elements of sets that are declared in one
/// of the messages.
pub(crate) fn decode_messages<'a>(messages: impl Iterator<Item = (u16, &'a [u8])> + Clone) -> Filter {
    let mut filter = Filter::default();
    for family in [TableFamily::Inet, TableFamily::Bridge, TableFamily::Netdev] {
        let of_type = |kind: u16| {
            let attributes = messages.clone().filter_map(move |(found, body)| {
                let (header, attributes) = NetfilterHeader::split(body)?;
                let is_match = found == NFNL_SUBSYS_NFTABLES << 8 | kind
                    && header.family == encode::family_number(family);
                is_match.then_some(attributes)
            });
            attributes.collect::<Vec<_>>()
        };
        let mut table = FilterTable::default();
        table.chains.extend(of_type(NFT_MSG_NEWCHAIN).into_iter().filter_map(|one| chain(family, one)));
        table.sets.extend(of_type(NFT_MSG_NEWSET).into_iter().filter_map(set::decode_set));
        for attributes in of_type(NFT_MSG_NEWRULE) {
            if let Some((name, rule)) = rule(attributes, &table.sets)
                && let Some(chain) = table.chains.get_mut(&name)
            {
                chain.rules.push(rule);
            }
        }
        table.counters.extend(of_type(NFT_MSG_NEWOBJ).into_iter().filter_map(counter));
        let key = TableKey { family, name: TABLE.into() };
        let lists = of_type(NFT_MSG_NEWSETELEM);
        for (name, declaration) in &table.sets {
            let is_about = |attributes: &&Attributes<'_>| {
                let set = attributes.first(NFTA_SET_ELEM_LIST_SET).and_then(|set| set.str());
                set == Some(name.as_str())
            };
            // The end of a range may be in another message than its start.
            let raw = lists.iter().filter(is_about).flat_map(|attributes| set::decode_elements(*attributes));
            for (part, data) in set::elements_of(declaration, raw.collect()) {
                filter.add(key.element(name, part), data);
            }
        }
        if table != FilterTable::default() {
            filter.tables.insert(key, table);
        }
    }
    filter
}

/// The structure of a table; `None` if it does not exist.
fn table(socket: &mut Socket, key: &TableKey) -> Result<Option<FilterTable>> {
    let exists = encode::message(key, NFT_MSG_GETTABLE, 0, format!("get table {key}"));
    if absent_is_none(socket.request_reply(exists, |_, _| Some(())))?.is_none() {
        return Ok(None);
    }
    let mut table = FilterTable::default();
    // Some kernels list the chains of all tables of the family.
    let mut chains =
        Message::new(NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN, 0, format!("list chains of {key}"));
    chains.header(&NetfilterHeader { family: encode::family_number(key.family), ..Default::default() });
    let chains = socket.dump(chains, |_, body| {
        let (_, attributes) = NetfilterHeader::split(body)?;
        (attributes.first(NFTA_CHAIN_TABLE)?.str()? == key.name).then(|| chain(key.family, attributes))?
    })?;
    table.chains.extend(chains);
    let sets = encode::message(key, NFT_MSG_GETSET, 0, format!("list sets of {key}"));
    table.sets.extend(socket.dump(sets, |_, body| {
        let (_, attributes) = NetfilterHeader::split(body)?;
        set::decode_set(attributes)
    })?);
    let rules = encode::message(key, NFT_MSG_GETRULE, 0, format!("list rules of {key}"));
    let rules = socket.dump(rules, |_, body| {
        let (_, attributes) = NetfilterHeader::split(body)?;
        (attributes.first(NFTA_RULE_TABLE)?.str()? == key.name).then(|| rule(attributes, &table.sets))?
    })?;
    for (name, rule) in rules {
        if let Some(chain) = table.chains.get_mut(&name) {
            chain.rules.push(rule);
        }
    }
    let counters = encode::message(key, NFT_MSG_GETOBJ, 0, format!("list counters of {key}"));
    table.counters = socket.dump(counters, |_, body| {
        let (_, attributes) = NetfilterHeader::split(body)?;
        counter(attributes)
    })?;
    table.counters.sort();
    Ok(Some(table))
}

fn chain(family: TableFamily, attributes: Attributes<'_>) -> Option<(String, FilterChain)> {
    let name = attributes.first(NFTA_CHAIN_NAME)?.str()?.to_owned();
    let base = attributes.first(NFTA_CHAIN_HOOK).and_then(|hook| {
        let hook = hook.nested();
        let kind = attributes.first(NFTA_CHAIN_TYPE)?.str()?;
        let types = [ChainType::Filter, ChainType::Nat, ChainType::Route];
        let number = hook.first(NFTA_HOOK_HOOKNUM)?.be32()?;
        let hooks = [Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output, Hook::Postrouting];
        let at = match family {
            TableFamily::Netdev => Hook::Ingress(hook.first(NFTA_HOOK_DEV)?.str()?.parse().ok()?),
            _ => hooks.into_iter().find(|hook| encode::hook_number(hook) == number)?,
        };
        Some(BaseChain {
            chain_type: types.into_iter().find(|one| encode::chain_type_name(*one) == kind)?,
            hook: at,
            priority: hook.first(NFTA_HOOK_PRIORITY)?.be32()? as i32,
        })
    });
    Some((name, FilterChain { base, rules: Vec::new() }))
}

/// The name of a counter.
fn counter(attributes: Attributes<'_>) -> Option<String> {
    let is_counter = attributes.first(NFTA_OBJ_TYPE)?.be32()? == NFT_OBJECT_COUNTER;
    let name = attributes.first(NFTA_OBJ_NAME)?.str()?;
    is_counter.then(|| name.to_owned())
}

/// A rule of a table with these sets, and the name of its chain.
fn rule(attributes: Attributes<'_>, sets: &BTreeMap<String, FilterSet>) -> Option<(String, FilterRule)> {
    let chain = attributes.first(NFTA_RULE_CHAIN)?.str()?.to_owned();
    let expressions = attributes
        .first(NFTA_RULE_EXPRESSIONS)
        .map_or_else(Vec::new, |list| expression::decode_all(list.nested(), sets));
    let comment = attributes.first(NFTA_RULE_USERDATA).and_then(|data| comment_in(data.value));
    Some((chain, FilterRule { expressions, comment }))
}

/// The comment among the entries of a rule's userdata: type, length, value.
pub(super) fn comment_in(mut data: &[u8]) -> Option<String> {
    while let [kind, length, rest @ ..] = data {
        let (value, more) = rest.split_at_checked(usize::from(*length))?;
        if *kind == encode::COMMENT {
            let text = value.strip_suffix(&[0]).unwrap_or(value);
            return String::from_utf8(text.to_vec()).ok();
        }
        data = more;
    }
    None
}

/// The declaration of a set; `None` if it does not exist.
fn declaration(socket: &mut Socket, table: &TableKey, name: &str) -> Result<Option<FilterSet>> {
    let mut message = encode::message(table, NFT_MSG_GETSET, 0, format!("get set {name} of table {table}"));
    message.put_str(NFTA_SET_NAME, name);
    let found = socket.request_reply(message, |_, body| {
        let (_, attributes) = NetfilterHeader::split(body)?;
        set::decode_set(attributes)
    });
    Ok(absent_is_none(found)?.map(|(_, set)| set))
}

/// All elements of a set.
fn all_elements(socket: &mut Socket, table: &TableKey, name: &str) -> Result<Vec<(ElementKey, ElementData)>> {
    let Some(declaration) = declaration(socket, table, name)? else { return Ok(Vec::new()) };
    let context = format!("list elements of set {name} of table {table}");
    let mut message = encode::message(table, NFT_MSG_GETSETELEM, 0, context);
    message.put_str(NFTA_SET_ELEM_LIST_SET, name);
    let listed = absent_is_none(socket.dump(message, |_, body| {
        let (_, attributes) = NetfilterHeader::split(body)?;
        Some(set::decode_elements(attributes))
    }))?;
    let raw = listed.unwrap_or_default().into_iter().flatten().collect();
    let elements = set::elements_of(&declaration, raw);
    Ok(elements.into_iter().map(|(key, data)| (table.element(name, key), data)).collect())
}
