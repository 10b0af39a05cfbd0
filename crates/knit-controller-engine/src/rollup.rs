//! The status report of an object, aggregated from the reports of all pods and nodes.

use knit_crds::Object;
use knit_engine::ObjectKey;
use knit_model::SandboxId;
use knit_model::problem::Problem;
use knit_model::provenance::Dialect;
use knit_model::report::{AppliedReport, BridgeReport, NodeReport, Phase, PodReport, Report};

use crate::state::State;

/// The aggregated report of an object.
#[derive(Clone, Debug)]
pub struct RollUp {
    /// The report.
    pub report: Report,
    /// Whether a report is of an older generation, or there is no report yet: more follow soon.
    pub is_incomplete: bool,
}

/// Aggregates the reports of agents.
pub fn roll_up(state: &State, key: &ObjectKey, object: &Object) -> RollUp {
    let identity = object.object_ref();
    let is_same = |applied: &AppliedReport| applied.object.uid == identity.uid;
    let (mut pods, mut ready, mut outdated) = (Vec::new(), true, 0);
    let (mut problems, mut warnings) = (Vec::new(), Vec::new());
    match object.intents(Dialect::Kubernetes) {
        Ok(translation) => warnings.extend(translation.warnings),
        Err(invalid) => problems.extend(invalid.0),
    }
    problems.extend(state.service_addresses.problems(key));
    warnings.extend(state.segments.conflict(key).cloned());
    for (name, applied) in state.in_pods(key) {
        let applied = applied.report();
        if !is_same(&applied) {
            continue;
        }
        let is_outdated = applied.object.generation < identity.generation;
        outdated += usize::from(is_outdated);
        ready &= applied.ready && !is_outdated;
        let AppliedReport { attached, interfaces, items, .. } = applied;
        add_unique(&mut problems, applied.problems);
        add_unique(&mut warnings, applied.warnings);
        let sandbox = SandboxId(format!("{}/{}", name.0, name.1));
        pods.push(PodReport { pod: name.1.clone(), sandbox, attached, interfaces, items });
    }
    let mut bridges: Vec<BridgeReport> = Vec::new();
    let mut nodes: Vec<NodeReport> = Vec::new();
    let on_nodes = state.on_nodes(key).map(|(node, applied)| (node, applied.report()));
    for (node, applied) in on_nodes.filter(|(_, applied)| is_same(applied)) {
        outdated += usize::from(applied.object.generation < identity.generation);
        if !applied.items.is_empty() {
            nodes.push(NodeReport { node: node.clone(), items: applied.items });
        }
        add_unique(&mut problems, applied.problems);
        add_unique(&mut warnings, applied.warnings);
        add_unique(&mut bridges, applied.bridges);
    }
    let scope = Scope::of(key);
    let is_unreported = pods.is_empty() && bridges.is_empty() && problems.is_empty();
    let phase = phase(scope, &pods, &bridges, &problems, ready && outdated == 0);
    let report = Report { object: identity, phase, bridges, pods, nodes, problems, warnings };
    RollUp { report, is_incomplete: outdated > 0 || (is_unreported && scope != Scope::None) }
}

/// Where an object is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// In pods.
    Pods,
    /// On nodes.
    Nodes,
    /// Not applied itself: it only grants or names something.
    None,
}

impl Scope {
    fn of(key: &ObjectKey) -> Self {
        let kind = Object::kinds().iter().find(|kind| kind.kind == key.kind);
        match kind {
            Some(kind) if kind.pod_label.is_some() => Self::Pods,
            Some(kind) if kind.kind == "Bridge" => Self::Nodes,
            _ => Self::None,
        }
    }
}

fn phase(
    scope: Scope,
    pods: &[PodReport],
    bridges: &[BridgeReport],
    problems: &[Problem],
    ready: bool,
) -> Phase {
    let is_partly_applied =
        pods.iter().any(|pod| !pod.interfaces.is_empty() || !pod.items.is_empty()) || !bridges.is_empty();
    let is_applied = ready
        && problems.is_empty()
        && match scope {
            Scope::Pods => !pods.is_empty(),
            Scope::Nodes => !bridges.is_empty(),
            Scope::None => true,
        };
    match (is_applied, is_partly_applied || !problems.is_empty()) {
        (true, _) => Phase::Configured,
        (false, true) => Phase::Configuring,
        (false, false) => Phase::Unset,
    }
}

/// Adds entries without duplicates: many nodes may report the same.
fn add_unique<T: PartialEq>(to: &mut Vec<T>, more: Vec<T>) {
    for one in more {
        if !to.contains(&one) {
            to.push(one);
        }
    }
}
