//! Tables from choices: only combinations that the kernel accepts, each restriction with its reason.

use knit_model::filter::{BaseChain, ChainType, Filter, FilterChain, FilterTable, Hook, TableFamily};

use super::rules::{Place, rule};
use super::spec::{BaseSpec, Choices, FilterSpec, TableSpec};
use super::values::{declaration, elements};

/// Links of the host at whose ingress there may be chains.
pub const LINKS: [&str; 2] = ["wire0", "wire1"];

/// The families in the order of [`FilterSpec`].
pub const FAMILIES: [TableFamily; 3] = [TableFamily::Inet, TableFamily::Bridge, TableFamily::Netdev];

/// The filter of these choices.
pub fn filter(spec: &FilterSpec) -> Filter {
    let mut filter = Filter::default();
    for (family, spec) in FAMILIES.into_iter().zip(spec) {
        if let Some(spec) = spec {
            add_table(&mut filter, family, spec);
        }
    }
    filter
}

fn add_table(filter: &mut Filter, family: TableFamily, spec: &TableSpec) {
    let key = family.table();
    let mut table = FilterTable { counters: spec.counters.clone(), ..FilterTable::default() };
    let bases: Vec<BaseChain> = spec.base.iter().map(|base| base_chain(family, base)).collect();
    let regular: Vec<(String, Option<&BaseChain>)> =
        (0..spec.regular.len()).map(|number| (format!("r{number}"), caller(number, &bases))).collect();
    // Elements with verdicts lead only to chains that every chain may jump to and that jump nowhere, so there are no loops.
    let neutral: Vec<String> =
        regular.iter().filter(|(_, at)| at.is_none()).map(|(name, _)| name.clone()).collect();
    for (number, set_spec) in spec.sets.iter().enumerate() {
        let (name, set) = (format!("s{number}"), declaration(set_spec));
        for (element, data) in elements(&set, set_spec, &neutral) {
            filter.add(key.element(name.clone(), element), data);
        }
        table.sets.insert(name, set);
    }
    let mut chains = Vec::new();
    for (number, rules) in spec.regular.iter().enumerate() {
        let (name, at) = &regular[number];
        let others = if spec.jumps_down { &regular[..number] } else { &regular[number + 1..] };
        let targets = at.map(|_| targets(*at, others)).unwrap_or_default();
        let place = Place { family, table: &table, at: *at, targets };
        let rules = rules.iter().map(|spec| rule(spec, &place)).collect();
        chains.push((name.clone(), FilterChain { base: None, rules }));
    }
    for (number, (base, spec)) in bases.iter().zip(&spec.base).enumerate() {
        let place = Place { family, table: &table, at: Some(base), targets: targets(Some(base), &regular) };
        let rules = spec.rules.iter().map(|spec| rule(spec, &place)).collect();
        chains.push((format!("b{number}"), FilterChain { base: Some(base.clone()), rules }));
    }
    table.chains.extend(chains);
    filter.tables.insert(key, table);
}

/// The base chain from which a regular chain may be called; `None`: from every chain, so it has only expressions that the
/// kernel accepts at every hook.
fn caller(number: usize, bases: &[BaseChain]) -> Option<&BaseChain> {
    if number.is_multiple_of(2) || bases.is_empty() { None } else { bases.get(number % bases.len()) }
}

/// The chains that a chain at this hook may jump to.
fn targets(at: Option<&BaseChain>, regular: &[(String, Option<&BaseChain>)]) -> Vec<String> {
    let is_valid = |of: &Option<&BaseChain>| match (of, at) {
        (Some(of), Some(at)) => (of.chain_type, &of.hook) == (at.chain_type, &at.hook),
        (Some(_), None) => false,
        (None, _) => true,
    };
    regular.iter().filter(|(_, of)| is_valid(of)).map(|(name, _)| name.clone()).collect()
}

fn base_chain(family: TableFamily, spec: &BaseSpec) -> BaseChain {
    let mut choices = Choices(spec.hook);
    let mut all: Vec<(ChainType, Hook)> = Vec::new();
    if family == TableFamily::Netdev {
        all.extend(LINKS.map(|link| (ChainType::Filter, Hook::Ingress(link.parse().unwrap()))));
    } else {
        let hooks = [Hook::Forward, Hook::Prerouting, Hook::Input, Hook::Output, Hook::Postrouting];
        all.extend(hooks.map(|hook| (ChainType::Filter, hook)));
    }
    if family == TableFamily::Inet {
        // There is no NAT in bridge and netdev tables, and none at the forward hook.
        let hooks = [Hook::Prerouting, Hook::Input, Hook::Output, Hook::Postrouting];
        all.extend(hooks.map(|hook| (ChainType::Nat, hook)));
        all.push((ChainType::Route, Hook::Output));
    }
    let (chain_type, hook) = choices.one_of(&all).unwrap().clone();
    // NAT needs the connection, so it must come after connection tracking (-200).
    let lowest = if chain_type == ChainType::Nat { -199 } else { -500 };
    let priority = lowest + choices.below(800) as i32;
    BaseChain { chain_type, hook, priority }
}
