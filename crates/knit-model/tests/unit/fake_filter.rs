//! The packet filter of the fake kernel. It rejects what nftables rejects: duplicates, overlapping ranges, elements of a
//! missing set, keys and data of another type, references to a missing set or chain, and the removal of what rules or elements
//! use.

use std::collections::BTreeSet;

use knit_model::filter::rule::{Expression, FilterRule, Verdict};
use knit_model::filter::{
    ElementData, ElementKey, Filter, FilterChain, FilterSet, FilterStep, FilterTable, KeyPart, MapData,
    TableKey,
};

/// What an observation asks for: the structure of tables, all elements of sets, and single elements.
pub struct FilterRequest<'a> {
    pub tables: &'a BTreeSet<TableKey>,
    pub sets: &'a BTreeSet<(TableKey, String)>,
    pub elements: &'a BTreeSet<ElementKey>,
}

/// Keeps only what was requested.
pub fn restrict(filter: &mut Filter, request: &FilterRequest<'_>) {
    filter.tables.retain(|key, _| request.tables.contains(key));
    filter.elements.retain(|key, _| {
        request.elements.contains(key) || request.sets.contains(&(key.table.clone(), key.set.clone()))
    });
}

/// Executes one step.
pub fn apply(filter: &mut Filter, step: &FilterStep) -> Result<(), String> {
    match step {
        FilterStep::AddTable(key) => added(filter.tables.insert(key.clone(), FilterTable::default())),
        FilterStep::RemoveTable(key) => {
            filter.elements.retain(|element, _| element.table != *key);
            removed(filter.tables.remove(key))
        }
        FilterStep::AddSet(key, name, set) => {
            added(table(filter, key)?.sets.insert(name.clone(), set.clone()))
        }
        FilterStep::RemoveSet(key, name, _) => {
            let table = table(filter, key)?;
            if rules(table).any(|rule| sets_of(rule).any(|set| set == name)) {
                return Err("busy".to_owned());
            }
            removed(table.sets.remove(name))?;
            filter.elements.retain(|element, _| element.table != *key || element.set != *name);
            Ok(())
        }
        FilterStep::AddCounter(key, name) => {
            let counters = &mut table(filter, key)?.counters;
            let is_new = !counters.contains(name);
            counters.push(name.clone());
            is_new.then_some(()).ok_or_else(|| "exists".to_owned())
        }
        FilterStep::RemoveCounter(key, name) => {
            let counters = &mut table(filter, key)?.counters;
            let at = counters.iter().position(|counter| counter == name);
            removed(at.map(|at| counters.remove(at)))
        }
        FilterStep::AddChain(key, name, base) => {
            let chain = FilterChain { base: base.clone(), rules: Vec::new() };
            added(table(filter, key)?.chains.insert(name.clone(), chain))
        }
        FilterStep::RemoveChain(key, name, _) => {
            let leads_to = |(element, data): (&ElementKey, &ElementData)| {
                element.table == *key
                    && matches!(data, ElementData::Verdict(Verdict::Jump(to) | Verdict::Goto(to)) if to == name)
            };
            let is_element = filter.elements.iter().any(leads_to);
            let table = table(filter, key)?;
            let is_target = is_element || rules(table).any(|rule| chains_of(rule).any(|chain| chain == name));
            match table.chains.remove(name) {
                Some(chain) if is_target || !chain.rules.is_empty() => Err("busy".to_owned()),
                chain => removed(chain),
            }
        }
        FilterStep::SetRules { table: key, chain, before, after } => {
            let table = table(filter, key)?;
            for rule in after {
                if let Some(set) = sets_of(rule).find(|set| !table.sets.contains_key(*set)) {
                    return Err(format!("no set {set}"));
                }
                if let Some(target) = chains_of(rule).find(|target| !table.chains.contains_key(*target)) {
                    return Err(format!("no chain {target}"));
                }
            }
            let chain = table.chains.get_mut(chain).ok_or("missing")?;
            let old = std::mem::replace(&mut chain.rules, after.clone());
            if old == *before { Ok(()) } else { Err("other rules exist".to_owned()) }
        }
        FilterStep::AddElement(key, data) => {
            check_element(filter, key, data)?;
            let overlaps = |other: &&ElementKey| {
                **other != *key
                    && (&other.table, &other.set) == (&key.table, &key.set)
                    && key.key.iter().zip(&other.key).all(|(one, other)| overlap(one, other))
            };
            if let Some(other) = filter.elements.keys().find(overlaps) {
                return Err(format!("overlaps {other}"));
            }
            added(filter.elements.insert(key.clone(), data.clone()))
        }
        FilterStep::RemoveElement(key, _) => removed(filter.elements.remove(key)),
        FilterStep::ReplaceElement { key, before, after } => {
            check_element(filter, key, after)?;
            let old = filter.elements.insert(key.clone(), after.clone());
            if old.as_ref() == Some(before) { Ok(()) } else { Err("another element exists".to_owned()) }
        }
    }
}

fn added<T>(old: Option<T>) -> Result<(), String> {
    if old.is_some() { Err("exists".to_owned()) } else { Ok(()) }
}

fn removed<T>(old: Option<T>) -> Result<(), String> {
    old.map(|_| ()).ok_or_else(|| "missing".to_owned())
}

fn table<'a>(filter: &'a mut Filter, key: &TableKey) -> Result<&'a mut FilterTable, String> {
    filter.tables.get_mut(key).ok_or_else(|| format!("no table {key}"))
}

fn rules(table: &FilterTable) -> impl Iterator<Item = &FilterRule> {
    table.chains.values().flat_map(|chain| &chain.rules)
}

fn sets_of(rule: &FilterRule) -> impl Iterator<Item = &String> {
    rule.expressions.iter().filter_map(|expression| match expression {
        Expression::Lookup { set, .. } | Expression::Learn { set, .. } | Expression::Forget { set, .. } => {
            Some(set)
        }
        _ => None,
    })
}

fn chains_of(rule: &FilterRule) -> impl Iterator<Item = &String> {
    rule.expressions.iter().filter_map(|expression| match expression {
        Expression::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) => Some(chain),
        _ => None,
    })
}

fn check_element(filter: &Filter, key: &ElementKey, data: &ElementData) -> Result<(), String> {
    let set = filter.tables.get(&key.table).and_then(|table| table.sets.get(&key.set));
    let set: &FilterSet = set.ok_or_else(|| format!("no set {} in {}", key.set, key.table))?;
    let is_range = |part: &KeyPart| matches!(part, KeyPart::Range(..));
    let has_type = match (&set.data, data) {
        (None, ElementData::Key) | (Some(MapData::Verdict), ElementData::Verdict(_)) => true,
        (Some(MapData::Values(types)), ElementData::Values(values)) => types.len() == values.len(),
        _ => false,
    };
    let has_key =
        key.key.len() == set.key.len() && key.key.iter().all(|part| is_range(part) == set.intervals);
    if has_type && has_key { Ok(()) } else { Err("invalid".to_owned()) }
}

fn overlap(one: &KeyPart, other: &KeyPart) -> bool {
    let ((first, last), (other_first, other_last)) = (one.bounds(), other.bounds());
    first <= other_last && other_first <= last
}
