//! What became of an object everywhere, from what became of it in each pod and on each node.

use knit_crds::Object;
use knit_engine::ObjectKey;
use knit_model::SandboxId;
use knit_model::problem::Problem;
use knit_model::provenance::Dialect;
use knit_model::report::{AppliedReport, BridgeReport, NodeReport, Phase, PodReport, Report};

use crate::known::State;

/// What became of an object, and how sure that is.
#[derive(Clone, Debug)]
pub struct RollUp {
    /// What became of it.
    pub report: Report,
    /// Some agent speaks of an older generation, or nobody speaks of the object at all: more will follow soon.
    pub is_early: bool,
}

/// What agents say, put together.
pub fn roll_up(state: &State, key: &ObjectKey, object: &Object) -> RollUp {
    let me = object.object_ref();
    let of_me = |applied: &AppliedReport| applied.object.uid == me.uid;
    let (mut pods, mut ready, mut old) = (Vec::new(), true, 0);
    let (mut problems, mut warnings) = (Vec::new(), Vec::new());
    match object.intents(Dialect::Kubernetes) {
        Ok(translation) => warnings.extend(translation.warnings),
        Err(refused) => problems.extend(refused.0),
    }
    for (name, applied) in state.in_pods(key) {
        let applied = applied.report();
        if !of_me(&applied) {
            continue;
        }
        let is_old = applied.object.generation < me.generation;
        old += usize::from(is_old);
        ready &= applied.ready && !is_old;
        let AppliedReport { attached, interfaces, items, .. } = applied;
        add(&mut problems, applied.problems);
        add(&mut warnings, applied.warnings);
        let sandbox = SandboxId(format!("{}/{}", name.0, name.1));
        pods.push(PodReport { pod: name.1.clone(), sandbox, attached, interfaces, items });
    }
    let mut bridges: Vec<BridgeReport> = Vec::new();
    let mut nodes: Vec<NodeReport> = Vec::new();
    let on_nodes = state.on_nodes(key).map(|(node, applied)| (node, applied.report()));
    for (node, applied) in on_nodes.filter(|(_, applied)| of_me(applied)) {
        old += usize::from(applied.object.generation < me.generation);
        if !applied.items.is_empty() {
            nodes.push(NodeReport { node: node.clone(), items: applied.items });
        }
        add(&mut problems, applied.problems);
        add(&mut warnings, applied.warnings);
        add(&mut bridges, applied.bridges);
    }
    let side = Side::of(key);
    let nobody = pods.is_empty() && bridges.is_empty() && problems.is_empty();
    let phase = phase(side, &pods, &bridges, &problems, ready && old == 0);
    let report = Report { object: me, phase, bridges, pods, nodes, problems, warnings };
    RollUp { report, is_early: old > 0 || (nobody && side != Side::Nowhere) }
}

/// Where an object has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// In pods.
    Pods,
    /// On nodes.
    Nodes,
    /// It only opens or names something.
    Nowhere,
}

impl Side {
    fn of(key: &ObjectKey) -> Self {
        let kind = Object::kinds().iter().find(|kind| kind.kind == key.kind);
        match kind {
            Some(kind) if kind.pod_label.is_some() => Self::Pods,
            Some(kind) if kind.kind == "Bridge" => Self::Nodes,
            _ => Self::Nowhere,
        }
    }
}

fn phase(
    side: Side,
    pods: &[PodReport],
    bridges: &[BridgeReport],
    problems: &[Problem],
    ready: bool,
) -> Phase {
    let anything =
        pods.iter().any(|pod| !pod.interfaces.is_empty() || !pod.items.is_empty()) || !bridges.is_empty();
    let stands = ready
        && problems.is_empty()
        && match side {
            Side::Pods => !pods.is_empty(),
            Side::Nodes => !bridges.is_empty(),
            Side::Nowhere => true,
        };
    match (stands, anything || !problems.is_empty()) {
        (true, _) => Phase::Configured,
        (false, true) => Phase::Configuring,
        (false, false) => Phase::Unset,
    }
}

/// Adds what is not there yet: the same on fifty nodes is told once.
fn add<T: PartialEq>(to: &mut Vec<T>, more: Vec<T>) {
    for one in more {
        if !to.contains(&one) {
            to.push(one);
        }
    }
}
