//! Changes of the packet filter between states that are valid, through orders of steps that the kernel would reject.

use knit_kernel::DeleteMode;
use knit_kernel::fault::{Fault, FaultAt, NoFaults};
use knit_kernel::nft::FilterQuery;
use knit_kernel::observe::{ScopeQuery, StateQuery};
use knit_model::filter::field::{DataType, Field};
use knit_model::filter::rule::{FilterRule, Verdict};
use knit_model::filter::{
    BaseChain, ChainType, ElementData, Filter, FilterChain, FilterSet, FilterTable, Hook, TableFamily,
};
use knit_model::plan::{Desired, diff};
use knit_model::{NetState, Scope};
use nix::errno::Errno;

use crate::support::node::TestNode;
use crate::support::states::name;

fn regular(rules: Vec<FilterRule>) -> FilterChain {
    FilterChain { base: None, rules }
}

fn forward(rules: Vec<FilterRule>) -> FilterChain {
    let base = BaseChain { chain_type: ChainType::Filter, hook: Hook::Forward, priority: 0 };
    FilterChain { base: Some(base), rules }
}

fn table(chains: impl IntoIterator<Item = (&'static str, FilterChain)>) -> FilterTable {
    let chains = chains.into_iter().map(|(name, chain)| (name.to_owned(), chain));
    FilterTable { chains: chains.collect(), ..FilterTable::default() }
}

fn filter(table: FilterTable) -> Filter {
    Filter { tables: [(TableFamily::Inet.table(), table)].into(), ..Filter::default() }
}

/// Changes the first filter into the second one, fails at every step, and rolls the change back as a whole.
fn change_and_roll_back(test: &str, first: &Filter, second: &Filter) {
    let mut node = TestNode::new(test, &[]).without_coverage();
    let tables = [TableFamily::Inet.table()].into();
    node.observe_filter(&Scope::Host, FilterQuery { tables, with_elements: true, ..FilterQuery::default() });
    let state = |filter: &Filter| {
        let mut state = NetState::default();
        state.scope(&Scope::Host).filter = filter.clone();
        state
    };
    let observed = || node.observe().scopes[&Scope::Host].filter.clone();
    node.converge(&state(first));
    let plan = node.plan(&state(second));
    for step in 0..plan.steps.len() {
        let mut fault = FaultAt { step, fault: Fault::Fail(Errno::EIO) };
        let error = node.apply_with(&plan, DeleteMode::Immediate, &mut fault).unwrap_err().to_string();
        assert!(error.ends_with("rolled back"), "step {step}: {error}\n{plan}");
        assert_eq!(observed(), *first, "step {step} of\n{plan}");
    }
    node.converge(&state(second));
    assert_eq!(observed(), *second);
    node.apply_with(&plan.inverse(), DeleteMode::Immediate, &mut NoFaults).unwrap();
    assert_eq!(observed(), *first);
}

/// Two chains, one of which jumps to the other.
fn jumping(from: &'static str, to: &'static str) -> Filter {
    let start = vec![FilterRule::new().jump(from), FilterRule::new().jump(to)];
    filter(table([
        ("start", forward(start)),
        (from, regular(vec![FilterRule::new().jump(to)])),
        (to, regular(vec![FilterRule::new().accept()])),
    ]))
}

#[test]
fn two_chains_reverse_their_jump() {
    // The order of the steps follows the names of chains.
    change_and_roll_back("nft-reverse", &jumping("a", "b"), &jumping("b", "a"));
    change_and_roll_back("nft-return", &jumping("b", "a"), &jumping("a", "b"));
}

/// A chain that looks up a map, and one to which the map leads.
fn with_map(looks_up: bool) -> Filter {
    let lookup = FilterRule::new().verdict_map(&[Field::Mark], "policies");
    let (start, target) = match looks_up {
        true => (FilterRule::new().jump("target"), lookup),
        false => (lookup, FilterRule::new().drop()),
    };
    let mut with_map = table([("start", forward(vec![start])), ("target", regular(vec![target]))]);
    with_map.sets.insert("policies".to_owned(), FilterSet::verdicts(&[DataType::Mark]));
    let mut filter = filter(with_map);
    let verdict = if looks_up { Verdict::Accept } else { Verdict::Jump("target".to_owned()) };
    let key = TableFamily::Inet.table().element("policies", vec![7u32.into()]);
    filter.add(key, ElementData::Verdict(verdict));
    filter
}

#[test]
fn a_chain_that_looks_up_a_map_becomes_its_target_and_back() {
    change_and_roll_back("nft-target", &with_map(true), &with_map(false));
    change_and_roll_back("nft-lookup", &with_map(false), &with_map(true));
}

#[test]
fn a_map_is_removed_together_with_the_chain_it_leads_to() {
    let without = filter(table([("start", forward(Vec::new()))]));
    change_and_roll_back("nft-unmap", &with_map(false), &without);
    change_and_roll_back("nft-map", &without, &with_map(false));
}

#[test]
fn elements_that_exist_are_added_again_unless_a_marked_link_shows_that_they_are_in_use() {
    let mut node = TestNode::new("nft-again", &[]).without_coverage();
    let bridge = TableFamily::Bridge.table();
    let mut guarded = FilterTable::default();
    guarded.sets.insert("ports".to_owned(), FilterSet::keys(&[DataType::Name]));
    let tables = Filter { tables: [(bridge.clone(), guarded)].into(), ..Filter::default() };
    let element = bridge.element("ports", vec![(&name("h1")).into()]);
    let mut all = tables.clone();
    all.add(element.clone(), ElementData::Key);
    let state = |filter: &Filter| {
        let mut state = NetState::default();
        state.scope(&Scope::Host).filter = filter.clone();
        state
    };
    let whole = FilterQuery { tables: [bridge].into(), with_elements: true, ..FilterQuery::default() };
    node.observe_filter(&Scope::Host, whole);
    node.converge(&state(&all));

    let observed = |only_if_owned| {
        let mut query = ScopeQuery::named([name("h1")]);
        query.filter =
            FilterQuery { elements: [element.clone()].into(), only_if_owned, ..FilterQuery::default() };
        let query = StateQuery::default().with_scope(Scope::Host, query);
        node.kernel().observe(&query, &mut node.namespaces()).unwrap()
    };
    let elements = |observed: &NetState| observed.scopes[&Scope::Host].filter.elements.len();
    assert_eq!(elements(&observed(false)), 1);
    let unobserved = observed(true);
    assert_eq!(elements(&unobserved), 0, "there is no link");
    let port_only = Filter { elements: all.elements.clone(), ..Filter::default() };
    let plan = diff(&Desired { state: state(&port_only), ..Desired::default() }, &unobserved);
    assert_eq!(plan.steps.len(), 1, "{plan}");
    node.apply_with(&plan, DeleteMode::Immediate, &mut NoFaults).unwrap();
    assert_eq!(node.kernel().verify(&plan, &mut node.namespaces()).unwrap(), [""; 0]);
    assert_eq!(node.observe().scopes[&Scope::Host].filter, all);

    node.host.ip(&["link", "add", "h1", "type", "veth", "peer", "name", "h2"]);
    assert_eq!(elements(&observed(true)), 0, "the link is not Knit's");
    node.host.ip(&["link", "property", "add", "dev", "h1", "altname", "knit-left"]);
    assert_eq!(elements(&observed(true)), 1);
}
