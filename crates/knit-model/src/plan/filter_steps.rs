//! The packet filter's part of a plan.
//!
//! Additions precede the creation of links and removals follow their deletion, so that no link is ever up without its
//! filter. Only tables at the ingress of links come after the links.

use std::collections::BTreeSet;

use crate::filter::{
    ElementData, ElementKey, Filter, FilterChain, FilterStep, FilterTable, TableFamily, TableKey,
};

/// A step, and whether the kernel does it as a side effect of a later one.
pub(super) type PlannedFilterStep = (FilterStep, bool);

/// Tables that have to be recreated: the kernel changes neither the declaration of a set nor the hook of a chain.
fn recreated(desired: &Filter, observed: &Filter) -> BTreeSet<TableKey> {
    let differs = |table: &FilterTable, existing: &FilterTable| {
        let set = table.sets.iter().any(|(name, set)| existing.sets.get(name).is_some_and(|old| old != set));
        let base = |(name, chain): (&String, &FilterChain)| {
            existing.chains.get(name).is_some_and(|old| old.base != chain.base)
        };
        set || table.chains.iter().any(base)
    };
    let both = desired.tables.iter().filter_map(|(key, table)| Some((key, table, observed.tables.get(key)?)));
    both.filter(|(_, table, existing)| differs(table, existing)).map(|(key, ..)| key.clone()).collect()
}

/// Whether a table's chains need their links first.
fn is_at_links(table: &TableKey) -> bool {
    table.family == TableFamily::Netdev
}

/// Tables, sets, chains, elements and rules that are missing or different; either of tables at links, or of the others.
pub(super) fn additions(desired: &Filter, observed: &Filter, at_links: bool) -> Vec<PlannedFilterStep> {
    let recreated = recreated(desired, observed);
    let is_in_phase = |table: &TableKey| is_at_links(table) == at_links;
    let nothing = FilterTable::default();
    let mut steps: Vec<PlannedFilterStep> = Vec::new();
    for table in recreated.iter().filter(|table| is_in_phase(table)) {
        steps.extend(remove_table(table, observed));
    }
    let kept = |key: &TableKey| observed.tables.get(key).filter(|_| !recreated.contains(key));
    let tables = || desired.tables.iter().filter(|(key, _)| is_in_phase(key));
    for (key, table) in tables() {
        let existing = kept(key).unwrap_or(&nothing);
        if kept(key).is_none() {
            steps.push((FilterStep::AddTable(key.clone()), false));
        }
        for name in table.counters.iter().filter(|name| !existing.counters.contains(name)) {
            steps.push((FilterStep::AddCounter(key.clone(), name.clone()), false));
        }
        for (name, set) in table.sets.iter().filter(|(name, _)| !existing.sets.contains_key(*name)) {
            steps.push((FilterStep::AddSet(key.clone(), name.clone(), set.clone()), false));
        }
        for (name, chain) in table.chains.iter().filter(|(name, _)| !existing.chains.contains_key(*name)) {
            steps.push((FilterStep::AddChain(key.clone(), name.clone(), chain.base.clone()), false));
        }
    }
    // A range may overlap its successor, which the set rejects while the old one is in it.
    let is_replaced_range = |key: &ElementKey| {
        is_in_phase(&key.table)
            && key.has_range()
            && !desired.elements.contains_key(key)
            && stays(desired, observed, &recreated, key)
    };
    for (key, data) in observed.elements.iter().filter(|(key, _)| is_replaced_range(key)) {
        steps.push((FilterStep::RemoveElement(key.clone(), data.clone()), false));
    }
    for (key, data) in desired.elements.iter().filter(|(key, _)| is_in_phase(&key.table)) {
        let existing = observed.elements.get(key).filter(|_| !recreated.contains(&key.table));
        let step = match existing {
            None => FilterStep::AddElement(key.clone(), data.clone()),
            Some(before) if before != data => {
                FilterStep::ReplaceElement { key: key.clone(), before: before.clone(), after: data.clone() }
            }
            Some(_) => continue,
        };
        steps.push((step, false));
    }
    for (key, table) in tables() {
        let existing = kept(key).unwrap_or(&nothing);
        for (name, chain) in &table.chains {
            let before = existing.chains.get(name).map_or(&[][..], |chain| &chain.rules);
            steps.extend(set_rules(key, name, before, &chain.rules).map(|step| (step, false)));
        }
    }
    steps
}

/// Whether the set of an observed element stays as it is. If another unit owns the table, it does.
fn stays(desired: &Filter, observed: &Filter, recreated: &BTreeSet<TableKey>, element: &ElementKey) -> bool {
    let declared = |filter: &Filter| {
        filter.tables.get(&element.table).map(|table| table.sets.contains_key(&element.set))
    };
    match (declared(observed), declared(desired)) {
        (None, _) => true,
        (Some(_), declared) => declared == Some(true) && !recreated.contains(&element.table),
    }
}

/// Everything that is not desired.
pub(super) fn removals(desired: &Filter, observed: &Filter) -> Vec<PlannedFilterStep> {
    let recreated = recreated(desired, observed);
    let mut steps: Vec<PlannedFilterStep> = Vec::new();
    for (key, data) in &observed.elements {
        let has_table = !observed.tables.contains_key(&key.table) || desired.tables.contains_key(&key.table);
        let is_gone = recreated.contains(&key.table) || desired.elements.contains_key(key);
        let stays = stays(desired, observed, &recreated, key);
        if has_table && !is_gone && !(stays && key.has_range()) {
            steps.push((FilterStep::RemoveElement(key.clone(), data.clone()), !stays));
        }
    }
    for (key, existing) in &observed.tables {
        let Some(table) = desired.tables.get(key) else {
            steps.extend(remove_table(key, observed));
            continue;
        };
        if recreated.contains(key) {
            continue;
        }
        let chains = || existing.chains.iter().filter(|(name, _)| !table.chains.contains_key(*name));
        for (name, chain) in chains() {
            steps.extend(set_rules(key, name, &chain.rules, &[]).map(|step| (step, false)));
        }
        // Before the chains, because verdicts in a set may jump to them.
        for (name, set) in existing.sets.iter().filter(|(name, _)| !table.sets.contains_key(*name)) {
            steps.push((FilterStep::RemoveSet(key.clone(), name.clone(), set.clone()), false));
        }
        for (name, chain) in chains() {
            steps.push((FilterStep::RemoveChain(key.clone(), name.clone(), chain.base.clone()), false));
        }
        for name in existing.counters.iter().filter(|name| !table.counters.contains(name)) {
            steps.push((FilterStep::RemoveCounter(key.clone(), name.clone()), false));
        }
    }
    steps
}

/// The removal of a table. Its contents go with it, so their steps are only for the rollback.
fn remove_table(key: &TableKey, observed: &Filter) -> Vec<PlannedFilterStep> {
    let mut steps: Vec<FilterStep> = Vec::new();
    let remove =
        |(key, data): (&ElementKey, &ElementData)| FilterStep::RemoveElement(key.clone(), data.clone());
    if let Some(table) = observed.tables.get(key) {
        for (name, chain) in &table.chains {
            steps.extend(set_rules(key, name, &chain.rules, &[]));
        }
        steps.extend(observed.elements.iter().filter(|(element, _)| element.table == *key).map(remove));
        // Reversed, so that a rollback adds them in the original order.
        for (name, chain) in table.chains.iter().rev() {
            steps.push(FilterStep::RemoveChain(key.clone(), name.clone(), chain.base.clone()));
        }
        for (name, set) in table.sets.iter().rev() {
            steps.push(FilterStep::RemoveSet(key.clone(), name.clone(), set.clone()));
        }
        steps.extend(table.counters.iter().map(|name| FilterStep::RemoveCounter(key.clone(), name.clone())));
    }
    let implied = steps.into_iter().map(|step| (step, true));
    implied.chain([(FilterStep::RemoveTable(key.clone()), false)]).collect()
}

fn set_rules(
    table: &TableKey,
    chain: &str,
    before: &[crate::filter::rule::FilterRule],
    after: &[crate::filter::rule::FilterRule],
) -> Option<FilterStep> {
    (before != after).then(|| FilterStep::SetRules {
        table: table.clone(),
        chain: chain.to_owned(),
        before: before.to_vec(),
        after: after.to_vec(),
    })
}
