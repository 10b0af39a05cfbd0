//! Knit's tables on the host have an owner: no other program can change them, and the next process takes them over.

use std::time::Duration;

use knit_kernel::fault::NoFaults;
use knit_kernel::nft::{FilterQuery, TableOwner};
use knit_kernel::{DeleteMode, Error, Kernel, SandboxNamespaces};
use knit_model::filter::field::{DataType, Field, IpFamily, Value};
use knit_model::filter::rule::{FilterRule, Verdict};
use knit_model::filter::{
    BaseChain, ChainType, ElementData, Filter, FilterChain, FilterSet, FilterTable, Hook, KeyPart,
    TableFamily,
};
use knit_model::plan::{Desired, Plan, diff};
use knit_model::{NetState, Scope};
use knit_testbed::eventually;

use crate::support::node::{TestNode, sandbox};

const V4: IpFamily = IpFamily::V4;

fn address(text: &str) -> Value {
    Value::from(text.parse::<std::net::IpAddr>().unwrap())
}

/// A table with a verdict map, a set of ranges, a counter and rules, like those of policies.
fn policy_table(denied: &[&str]) -> Filter {
    let source = Field::Source(V4);
    let mut table = FilterTable::default();
    table.sets.insert("policies".into(), FilterSet::verdicts(&[DataType::Ipv4]));
    table.sets.insert("ranges".into(), FilterSet::ranges(V4));
    table.counters.push("dropped".into());
    let base = BaseChain { chain_type: ChainType::Filter, hook: Hook::Forward, priority: 0 };
    let denied_rules = vec![
        FilterRule::new().family(V4).in_set(&[source], "ranges").accept(),
        FilterRule::new().drop().comment("denied"),
    ];
    let forward = vec![FilterRule::new().family(V4).verdict_map(&[source], "policies")];
    table.chains.insert("denied".into(), FilterChain { base: None, rules: denied_rules });
    table.chains.insert("forward".into(), FilterChain { base: Some(base), rules: forward });
    let key = TableFamily::Inet.table();
    let mut filter = Filter::default();
    for one in denied {
        let data = ElementData::Verdict(Verdict::Goto("denied".into()));
        filter.add(key.element("policies", vec![address(one).into()]), data);
    }
    let range = KeyPart::range("10.9.0.0/16".parse().unwrap());
    filter.add(key.element("ranges", vec![range]), ElementData::Key);
    filter.tables.insert(key, table);
    filter
}

fn state(scope: &Scope, filter: &Filter) -> NetState {
    let mut state = NetState::default();
    state.scope(scope).filter = filter.clone();
    state
}

fn node(test: &str, sandboxes: &[&str]) -> TestNode {
    let mut node = TestNode::new(test, sandboxes).without_coverage();
    let scopes = sandboxes.iter().map(|id| sandbox(id)).chain([Scope::Host]);
    for scope in scopes {
        let tables = [TableFamily::Inet.table(), TableFamily::Bridge.table()].into();
        let query = FilterQuery { tables, with_elements: true, ..FilterQuery::default() };
        node.observe_filter(&scope, query);
    }
    node
}

/// The kernel layer of an agent.
fn agent(node: &TestNode) -> Kernel {
    node.kernel().with_table_owner(TableOwner::of_agent())
}

fn plan(node: &TestNode, desired: &NetState) -> Plan {
    diff(&Desired { state: desired.clone(), ..Desired::default() }, &node.observe())
}

fn apply(node: &TestNode, kernel: &mut Kernel, desired: &NetState) -> Result<(), Error> {
    let applied =
        kernel.apply(&plan(node, desired), DeleteMode::Immediate, &mut node.namespaces(), &mut NoFaults);
    applied.map(drop).map_err(|failed| failed.error)
}

fn observed(node: &TestNode) -> Filter {
    node.observe().scope(&Scope::Host).filter.clone()
}

fn nft(node: &TestNode, command: &str) -> bool {
    node.host.output("nft", &[command]).is_ok()
}

/// Everything that changes or removes the table or a part of it.
const CHANGES: [&str; 7] = [
    "delete table inet knit",
    "flush table inet knit",
    "flush chain inet knit denied",
    "flush map inet knit policies",
    "delete element inet knit policies { 10.0.0.2 }",
    "insert rule inet knit forward accept",
    "add table inet knit { flags dormant; }",
];

fn assert_protected(node: &TestNode, expected: &Filter) {
    for change in CHANGES {
        assert!(!nft(node, change), "{change}");
    }
    assert!(nft(node, "add table inet theirs") && nft(node, "flush ruleset"));
    assert!(!nft(node, "list table inet theirs"), "tables of others are flushed");
    assert_eq!(observed(node), *expected);
}

#[test]
fn other_programs_cannot_change_a_table_and_knit_can() {
    let node = node("own-change", &[]);
    let (first, second) = (policy_table(&["10.0.0.2"]), policy_table(&["10.0.0.3", "10.0.0.4"]));
    let mut kernel = agent(&node);
    apply(&node, &mut kernel, &state(&Scope::Host, &first)).unwrap();
    assert_protected(&node, &first);
    // An executor of the same node; and one of another process, which has another owner.
    let mut another = node.kernel().with_table_owner(kernel.table_owner().clone());
    apply(&node, &mut another, &state(&Scope::Host, &second)).unwrap();
    let mut other = agent(&node);
    let refused = other.claim_tables().unwrap_err();
    assert!(matches!(refused, Error::Owned { .. }), "{refused}");
    assert!(
        refused.to_string().contains("table inet knit: the table belongs to another process"),
        "{refused}"
    );
    for _ in 0..2 {
        assert!(apply(&node, &mut other, &state(&Scope::Host, &first)).is_err());
        // A command, which owns nothing.
        other = node.kernel();
    }
    assert_protected(&node, &second);
    apply(&node, &mut kernel, &NetState::default()).unwrap();
    assert!(observed(&node).is_empty());
    // A new table after that one has an owner, too.
    apply(&node, &mut another, &state(&Scope::Host, &first)).unwrap();
    assert_protected(&node, &first);
}

#[test]
fn a_table_stays_without_its_owner_until_the_next_process_takes_it_over() {
    let node = node("own-next", &[]);
    let filter = policy_table(&["10.0.0.2"]);
    let mut first = agent(&node);
    apply(&node, &mut first, &state(&Scope::Host, &filter)).unwrap();
    drop(first);
    assert_eq!(observed(&node), filter);
    let next = agent(&node);
    assert!(next.claim_tables().unwrap());
    assert!(next.claim_tables().unwrap(), "once more");
    assert_protected(&node, &filter);
    drop(next);
    // A command without an agent changes it, and it can still be taken over.
    let more = policy_table(&["10.0.0.2", "10.0.0.5"]);
    without_owner(|| apply(&node, &mut node.kernel(), &state(&Scope::Host, &more)).is_ok());
    let next = agent(&node);
    assert!(next.claim_tables().unwrap());
    assert_protected(&node, &more);
    drop(next);
    without_owner(|| nft(&node, "delete table inet knit"));
    let next = agent(&node);
    assert!(next.claim_tables().unwrap());
    assert!(observed(&node).is_empty(), "nothing is created");
}

/// The owner's socket is closed, but for a moment a process that another test is starting may still have it.
fn without_owner(work: impl FnMut() -> bool) {
    eventually("the table has no owner", Duration::from_secs(5), work);
}

#[test]
fn a_table_of_a_command_or_an_earlier_version_gets_an_owner_and_keeps_its_content() {
    let node = node("own-upgrade", &[]);
    let filter = policy_table(&["10.0.0.2", "10.0.0.3"]);
    let mut command = node.kernel();
    apply(&node, &mut command, &state(&Scope::Host, &filter)).unwrap();
    let listed = node.host.output("nft", &["list", "table", "inet", "knit"]).unwrap();
    assert!(!listed.contains("{\n\tflags"), "{listed}");
    // Rules of others cannot be copied: they are left to the repair.
    assert!(nft(&node, "add rule inet knit forward meta cpu 4095 drop"));
    let mut next = agent(&node);
    assert!(next.claim_tables().unwrap());
    assert!(nft(&node, "list table inet knit"));
    apply(&node, &mut next, &state(&Scope::Host, &filter)).unwrap();
    assert!(nft(&node, "add table inet knit"), "it has no owner yet");
    assert_eq!(observed(&node), filter);
    assert!(next.claim_tables().unwrap());
    assert_protected(&node, &filter);
}

#[test]
fn a_command_without_an_agent_creates_tables_without_an_owner() {
    let node = node("own-none", &[]);
    let (first, second) = (policy_table(&["10.0.0.2"]), policy_table(&["10.0.0.3"]));
    let mut kernel = node.kernel();
    assert!(!kernel.claim_tables().unwrap());
    apply(&node, &mut kernel, &state(&Scope::Host, &first)).unwrap();
    for (change, desired) in [("flush chain inet knit denied", &first), ("delete table inet knit", &second)] {
        assert!(nft(&node, change), "{change}");
        apply(&node, &mut kernel, &state(&Scope::Host, desired)).unwrap();
        assert_eq!(observed(&node), *desired, "{change}");
    }
    assert!(nft(&node, "flush ruleset"));
    assert!(observed(&node).is_empty());
}

#[test]
fn tables_of_a_sandbox_have_no_owner() {
    let node = node("own-sandbox", &["a"]);
    let (scope, filter) = (sandbox("a"), policy_table(&["10.0.0.2"]));
    let mut kernel = agent(&node);
    let mut namespaces: SandboxNamespaces = node.namespaces();
    let plan = plan(&node, &state(&scope, &filter));
    kernel.apply(&plan, DeleteMode::Immediate, &mut namespaces, &mut NoFaults).unwrap();
    node.sandboxes[0].output("nft", &["flush", "ruleset"]).unwrap();
    assert!(node.observe().scope(&scope).filter.is_empty());
}
