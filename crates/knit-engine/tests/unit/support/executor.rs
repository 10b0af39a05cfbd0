//! Executes the engine's effects against an in-memory kernel.

use std::collections::BTreeMap;

use knit_engine::call::{NetnsInfo, NetnsOutcome};
use knit_engine::{ApplyFailure, Effect, Event, ObserveRequest, PlanResult, StoredObject, cluster};
use knit_model::intent::{IntentSpec, NetworkIntent};
use knit_model::link::Veth;
use knit_model::problem::{Problem, Reason};
use knit_model::sandbox::SandboxInstance;
use knit_model::{Kind, Link, NetState, Scope};

use super::kernel::FakeKernel;
use super::kernel::filter::{self, FilterRequest};
use super::node::{bridge, object, scope};

/// Executes an effect and returns its completion event. With `plans_fail`, plans fail. Effects that are not the
/// kernel's are returned.
pub fn execute(kernel: &mut FakeKernel, effect: Effect, plans_fail: bool) -> Result<Event, Box<Effect>> {
    Ok(match effect {
        Effect::Observe { unit, request: look } => {
            let mut seen = kernel.observe();
            seen.scopes.retain(|scope, _| match scope {
                Scope::Host => true,
                Scope::Sandbox(id) => look.sandbox.as_ref() == Some(id),
            });
            restrict_filter(&mut seen, &look);
            Event::Observed { unit, observed: seen, keys: Default::default() }
        }
        Effect::Apply { unit, plan } => {
            let result = if plans_fail { Err("injected failure".to_owned()) } else { kernel.apply(&plan) };
            let failure = |message| ApplyFailure {
                problem: Problem::new("", Reason::KernelError, message),
                rolled_back: true,
                missing_tables: false,
                unsupported: None,
            };
            Event::PlanApplied(PlanResult { unit, result: result.map_err(failure) })
        }
        Effect::InspectNetns { call, path } => {
            Event::NetnsInspected { call, result: Ok(inspect_netns(&path)) }
        }
        Effect::CreateNetns { call, .. } => Event::NetnsDone { call, result: Ok(NetnsOutcome::Created) },
        Effect::RemoveNetns { call, path } => {
            let instance = Some(inspect_netns(&path).instance);
            Event::NetnsDone { call, result: Ok(NetnsOutcome::Removed(instance)) }
        }
        other => return Err(Box::new(other)),
    })
}

/// Keeps only the tables, sets and elements of the packet filter that were requested.
pub fn restrict_filter(observed: &mut NetState, request: &ObserveRequest) {
    let requested = FilterRequest {
        tables: &request.filter_tables,
        sets: &request.filter_sets,
        elements: &request.filter_elements,
    };
    for (scope, state) in &mut observed.scopes {
        match scope {
            Scope::Host => {
                let mut all = BTreeMap::new();
                if request.filter_with_elements {
                    all.clone_from(&state.filter.elements);
                    all.retain(|key, _| request.filter_tables.contains(&key.table));
                }
                filter::restrict(&mut state.filter, &requested);
                state.filter.elements.extend(all);
            }
            Scope::Sandbox(_) => {
                state.filter.tables.retain(|key, _| request.sandbox_tables.contains(key));
                state.filter.elements.retain(|key, _| request.sandbox_tables.contains(&key.table));
            }
        }
    }
}

/// The path identifies a netns.
pub fn inspect_netns(path: &str) -> NetnsInfo {
    let cookie = path.bytes().map(u64::from).sum();
    NetnsInfo { instance: SandboxInstance { boot: "boot".to_owned(), cookie }, number: 1 }
}

/// New sandboxes: only `lo`, which is down.
pub fn new_sandboxes(sandboxes: &[&str]) -> NetState {
    let mut state = NetState::default();
    for name in sandboxes {
        let mut lo = Link::new("lo".parse().unwrap(), Kind::Veth(Veth::default()));
        lo.attrs.up = Some(false);
        state.scope(&scope(name)).add_link(lo);
    }
    state
}

/// The cluster network.
pub fn cluster_network(range: &str) -> StoredObject {
    let network = NetworkIntent {
        name: cluster::NAME.to_owned(),
        ranges: vec![range.parse().unwrap()],
        isolated: false,
        mtu: None,
        overlay: None,
    };
    let specs = vec![IntentSpec::Network(network), bridge("knit0", range)];
    object(cluster::KIND, cluster::NAMESPACE, cluster::NAME, specs)
}
