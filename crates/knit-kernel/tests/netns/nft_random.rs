//! Random packet filters: what is applied is read back, is what the `nft` program lists, can be changed into any other one
//! and back, and is removed without leftovers.

mod build;
mod expected;
mod listing;
mod rules;
mod spec;
mod statements;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use knit_kernel::DeleteMode;
use knit_kernel::fault::{Fault, FaultAt, NoFaults};
use knit_kernel::nft::FilterQuery;
use knit_model::filter::rule::Expression;
use knit_model::filter::{Filter, Hook, TableFamily};
use knit_model::{NetState, Scope};
use nix::errno::Errno;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use self::spec::two_filters;
use crate::support::node::TestNode;

fn state_with(filter: &Filter) -> NetState {
    let mut state = NetState::default();
    state.scope(&Scope::Host).filter = filter.clone();
    state
}

fn observed(node: &TestNode) -> Filter {
    node.observe().scopes.remove(&Scope::Host).unwrap().filter
}

/// Compares what `nft` lists with the model.
fn check_listing(node: &TestNode, filter: &Filter) -> Result<(), TestCaseError> {
    for (key, table) in &filter.tables {
        let arguments = ["list", "table", key.family.name(), key.name.as_ref()];
        let listed = node.host.output("nft", &[&["-n", "-j"], &arguments[..]].concat());
        let listed = listed.map_err(|error| TestCaseError::fail(format!("{error}\n{table:?}")))?;
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        prop_assert_eq!(listing::describe(&listed), expected::describe(filter, key), "{}", listed);
        // The link of a chain is not in the JSON output.
        let listed = node.host.output("nft", &arguments).unwrap();
        let mut at_links: BTreeMap<String, usize> = BTreeMap::new();
        for chain in table.chains.values() {
            if let Some(Hook::Ingress(link)) = chain.base.as_ref().map(|base| &base.hook) {
                *at_links.entry(format!("hook ingress device \"{link}\"")).or_default() += 1;
            }
        }
        for (text, count) in at_links {
            prop_assert_eq!(listed.matches(&text).count(), count, "{} in {}", text, listed);
        }
    }
    Ok(())
}

#[test]
fn random_filters_are_applied_listed_changed_rolled_back_and_removed() {
    let mut node = TestNode::new("nft-random-tables", &[]).without_coverage();
    for link in build::LINKS {
        node.host.ip(&["link", "add", link, "type", "bridge"]);
    }
    let tables = [TableFamily::Inet, TableFamily::Bridge, TableFamily::Netdev].map(TableFamily::table);
    let query = FilterQuery { tables: tables.into(), with_elements: true, ..FilterQuery::default() };
    node.observe_filter(&Scope::Host, query);
    // `PROPTEST_CASES` runs more.
    let cases = std::env::var("PROPTEST_CASES").map_or(48, |cases| cases.parse().unwrap());
    let config = Config { cases, failure_persistence: None, max_shrink_time: 60_000, ..Config::default() };
    let inputs = (two_filters(), any::<prop::sample::Index>());
    let outcome = TestRunner::new(config).run(&inputs, |((first, second), index)| {
        let (first, second) = (build::filter(&first), build::filter(&second));
        // A failed case may have left something.
        node.host.output("nft", &["flush", "ruleset"]).unwrap();
        let apply = |plan: &knit_model::Plan| {
            node.apply_with(plan, DeleteMode::Immediate, &mut NoFaults)
                .map_err(|error| TestCaseError::fail(format!("{error}\n{plan}")))
        };

        apply(&node.plan(&state_with(&first)))?;
        prop_assert_eq!(&observed(&node), &first);
        check_listing(&node, &first)?;
        prop_assert!(node.plan(&state_with(&first)).is_empty());

        let plan = node.plan(&state_with(&second));
        if !plan.is_empty() {
            let mut fault = FaultAt { step: index.index(plan.steps.len()), fault: Fault::Fail(Errno::EIO) };
            let error = node.apply_with(&plan, DeleteMode::Immediate, &mut fault).unwrap_err();
            prop_assert!(error.to_string().ends_with("rolled back"), "{}\n{}", error, plan);
            prop_assert_eq!(&observed(&node), &first, "{}\n{}", error, plan);
        }
        apply(&plan)?;
        prop_assert_eq!(&observed(&node), &second, "{}", plan);
        check_listing(&node, &second)?;
        apply(&plan.inverse())?;
        prop_assert_eq!(&observed(&node), &first, "inverse of\n{}", plan);
        check_listing(&node, &first)?;

        apply(&node.plan(&NetState::default()))?;
        prop_assert_eq!(node.host.output("nft", &["list", "ruleset"]).unwrap(), "");
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// An expression without its values.
fn kind(expression: &Expression) -> String {
    let text = match expression {
        Expression::Lookup { to, .. } => format!("Lookup {to:?}"),
        Expression::Nat { translates, .. } => format!("Nat {translates:?}"),
        Expression::Verdict(verdict) => format!("Verdict {verdict:?}"),
        Expression::Reject(with) => format!("Reject {with:?}"),
        Expression::Learn { data, .. } => format!("Learn {data:?}"),
        other => format!("{other:?}").split(' ').next().unwrap().to_owned(),
    };
    text.split('(').next().unwrap().to_owned()
}

#[test]
fn random_filters_have_every_expression() {
    const ALL: [&str; 29] = [
        "Between",
        "Compare",
        "Count",
        "CountIn",
        "Hash",
        "Learn None",
        "Learn Some",
        "Limit",
        "Load",
        "Log",
        "Lookup Load",
        "Lookup Match",
        "Lookup Verdict",
        "Mask",
        "Masquerade",
        "Nat Destination",
        "Nat Source",
        "NoTrack",
        "Number",
        "Reject PortUnreachable",
        "Reject Prohibited",
        "Reject TcpReset",
        "SetCtMark",
        "SetMark",
        "Verdict Accept",
        "Verdict Drop",
        "Verdict Goto",
        "Verdict Jump",
        "Verdict Return",
    ];
    let mut runner = TestRunner::deterministic();
    let mut found = BTreeSet::new();
    for _ in 0..100 {
        let (first, _) = two_filters().new_tree(&mut runner).unwrap().current();
        let filter = build::filter(&first);
        let chains = filter.tables.values().flat_map(|table| table.chains.values());
        let rules = chains.flat_map(|chain| &chain.rules);
        found.extend(rules.flat_map(|rule| &rule.expressions).map(kind));
    }
    assert_eq!(found, ALL.map(str::to_owned).into());
}
