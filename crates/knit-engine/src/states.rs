//! What stands where, read from the state: by pod, and on the node outside of pods.

use std::collections::{BTreeMap, BTreeSet};

use knit_model::intent::IntentSpec;
use knit_model::problem::Problem;
use knit_model::provenance::ObjectRef;
use knit_model::report::{AppliedReport, ItemReport, PodState};
use knit_model::{KeyRef, Sandbox, SandboxId};

use crate::annotated;
use crate::event::Unit;
use crate::reports::{entries, is_meant};
use crate::state::{Made, ObjectKey, State, StoredObject};

/// So many ways to other nodes are part of what there is to say about a node.
const MOST_WAYS: usize = 200;

impl State {
    /// Objects that mean this sandbox.
    pub fn asking<'a>(&'a self, sandbox: &'a Sandbox) -> impl Iterator<Item = &'a StoredObject> {
        self.objects.values().filter(move |stored| is_meant(stored, sandbox))
    }

    /// Everything that applies to each pod that an object means or that has something. A pod that is being worked on is
    /// left out: what there is to say about it follows in a moment.
    pub fn pod_states(&self) -> Vec<PodState> {
        let settled = self.sandboxes.values().filter(|sandbox| self.is_settled(sandbox));
        let states = settled.map(|sandbox| self.pod_state(sandbox));
        states.filter(|state| !state.objects.is_empty()).collect()
    }

    /// Pods that are being worked on.
    pub fn unsettled(&self) -> impl Iterator<Item = &Sandbox> {
        self.sandboxes.values().filter(|sandbox| !self.is_settled(sandbox))
    }

    /// Whether no bridge is being worked on: one that lost its last port may be about to go.
    pub fn bridges_are_settled(&self) -> bool {
        let mut under_way = self.dirty.iter().chain(self.flights.keys());
        !under_way.any(|unit| matches!(unit, Unit::Bridge(_)))
    }

    fn is_settled(&self, sandbox: &Sandbox) -> bool {
        let unit = Unit::Sandbox(sandbox.id.clone());
        !self.dirty.contains(&unit) && !self.flights.contains_key(&unit)
    }

    /// Secrets that keys of interfaces come from, by namespace and name, with the sandboxes that need each.
    pub fn secrets_needed(&self) -> BTreeMap<(String, String), BTreeSet<SandboxId>> {
        let mut needed: BTreeMap<_, BTreeSet<SandboxId>> = BTreeMap::new();
        for stored in self.objects.values() {
            let wants = stored.intents.iter().filter_map(|intent| intent.spec.interface());
            for want in wants {
                for secret in want.kind.clone().secrets() {
                    let Some(KeyRef::Secret { namespace, name, .. }) = secret.from.clone() else { continue };
                    let pods = self.sandboxes.values();
                    let pods = pods.filter(|sandbox| want.pods.matches(&stored.object.namespace, sandbox));
                    let mut ids = pods.map(|sandbox| sandbox.id.clone()).peekable();
                    if ids.peek().is_some() {
                        needed.entry((namespace, name)).or_default().extend(ids);
                    }
                }
            }
        }
        needed
    }

    pub(crate) fn pod_state(&self, sandbox: &Sandbox) -> PodState {
        let unit = Unit::Sandbox(sandbox.id.clone());
        let made = self.made.get(&unit);
        let problems = self.problems.get(&unit).map_or(&[][..], Vec::as_slice);
        let mut objects: Vec<AppliedReport> =
            self.asking(sandbox).map(|stored| self.in_pod(stored, sandbox, made, problems)).collect();
        // What calls asked for has no object.
        let called = made.into_iter().flat_map(|made| &made.interfaces);
        for (key, _) in called.filter(|(key, _)| !self.objects.contains_key(key)) {
            if !objects.iter().any(|one| ObjectKey::of(&one.object) == *key) {
                objects.push(of_key(key, made, problems));
            }
        }
        for applied in &mut objects {
            let key = ObjectKey::of(&applied.object);
            applied.attached = self.attached(&sandbox.id, &key, &applied.interfaces, &applied.items);
        }
        PodState { sandbox: sandbox.clone(), objects }
    }

    fn in_pod(
        &self,
        stored: &StoredObject,
        sandbox: &Sandbox,
        made: Option<&Made>,
        problems: &[(ObjectKey, Problem)],
    ) -> AppliedReport {
        let mut applied = of_key(&stored.key(), made, problems);
        applied.object = stored.object.clone();
        applied.items.extend(self.socket_items(stored, sandbox));
        applied.problems.extend(self.sockets.problem(&sandbox.id, &stored.key()).cloned());
        if stored.object.kind == annotated::KIND {
            applied.interfaces.extend(self.chained_for(stored, sandbox));
            applied.problems.extend(self.refused_in(stored, sandbox));
            // Nobody else reads what its author wrote.
            applied.warnings.extend(stored.warnings.iter().cloned());
        }
        let is_whole = applied.interfaces.len() + applied.items.len() == entries(stored);
        applied.ready &=
            is_whole && applied.problems.is_empty() && applied.items.iter().all(|item| item.ready);
        applied
    }

    /// What objects have on the node outside of pods: their bridges, addresses of gateways, tunnels of networks, and what stands in the way of those.
    pub fn node_states(&self) -> Vec<AppliedReport> {
        let states = self.objects.iter().map(|(key, stored)| self.on_node(key, stored));
        states.filter(|one| one.ready || !one.problems.is_empty() || !one.warnings.is_empty()).collect()
    }

    /// How the pods of other nodes are reached, if the object says so. Of very many nodes only the first: a status is small.
    fn ways_of(&self, key: &ObjectKey) -> Vec<ItemReport> {
        let on_host = self.made.iter().filter(|(unit, _)| is_on_host(unit));
        let all = on_host.flat_map(|(_, made)| &made.items);
        all.filter(|(object, _)| object == key).map(|(_, item)| item.clone()).take(MOST_WAYS).collect()
    }

    fn on_node(&self, key: &ObjectKey, stored: &StoredObject) -> AppliedReport {
        let asks = stored.intents.iter().any(|intent| matches!(intent.spec, IntentSpec::Bridge(_)));
        let bridges = if asks { self.bridges(key, stored) } else { Vec::new() };
        let units =
            self.problems.iter().filter(|(unit, _)| is_on_host(unit)).flat_map(|(_, problems)| problems);
        let made = self.made.iter().filter(|(unit, _)| is_on_host(unit)).flat_map(|(_, made)| &made.warnings);
        let problems = about(key, units);
        let items = self.ways_of(key);
        let has_items = !asks && !items.is_empty();
        let warnings = made.filter(|(object, _)| object == key).map(|(_, warning)| warning.clone());
        AppliedReport {
            object: stored.object.clone(),
            ready: problems.is_empty() && (asks && !bridges.is_empty() || has_items),
            attached: None,
            interfaces: Vec::new(),
            items,
            bridges,
            problems,
            warnings: warnings.chain(self.granted(key)).collect(),
        }
    }
}

/// Whether a unit has nothing in pods.
fn is_on_host(unit: &Unit) -> bool {
    matches!(unit, Unit::Bridge(_) | Unit::NodeRoutes)
}

fn of_key(key: &ObjectKey, made: Option<&Made>, problems: &[(ObjectKey, Problem)]) -> AppliedReport {
    let ObjectKey { kind, namespace, name } = key.clone();
    let object = ObjectRef { kind, namespace, name, uid: String::new(), generation: 0 };
    let made = made.into_iter();
    let interfaces = made.clone().flat_map(|made| &made.interfaces).filter(|(of, _)| of == key);
    let interfaces: Vec<_> = interfaces.map(|(_, interface)| interface.clone()).collect();
    let items = made.clone().flat_map(|made| &made.items).filter(|(of, _)| of == key);
    let items: Vec<_> = items.map(|(_, item)| item.clone()).collect();
    let warnings = made.flat_map(|made| &made.warnings).filter(|(of, _)| of == key);
    AppliedReport {
        object,
        ready: interfaces.iter().all(|one| one.ready) && items.iter().all(|one| one.ready),
        attached: None,
        interfaces,
        items,
        bridges: Vec::new(),
        problems: about(key, problems.iter()),
        warnings: warnings.map(|(_, warning)| warning.clone()).collect(),
    }
}

/// The problems of one object, each once.
fn about<'a>(key: &ObjectKey, problems: impl Iterator<Item = &'a (ObjectKey, Problem)>) -> Vec<Problem> {
    let mut mine: Vec<Problem> = Vec::new();
    for (_, problem) in problems.filter(|(object, _)| object == key) {
        if !mine.contains(problem) {
            mine.push(problem.clone());
        }
    }
    mine
}
