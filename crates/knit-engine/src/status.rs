//! Applied state by pod and by node, derived from the state.

use std::collections::{BTreeMap, BTreeSet};

use knit_model::intent::IntentSpec;
use knit_model::problem::Problem;
use knit_model::provenance::ObjectRef;
use knit_model::report::{AppliedReport, ItemReport, PodState};
use knit_model::{KeyRef, Sandbox, SandboxId};

use crate::cluster;
use crate::event::Unit;
use crate::object_index::Feature;
use crate::pod_annotations;
use crate::reports::{entry_count, selects_pod};
use crate::state::{ObjectKey, State, StoredObject, UnitState};

impl State {
    /// Objects that select this sandbox.
    pub fn objects_selecting<'a>(&'a self, sandbox: &'a Sandbox) -> impl Iterator<Item = &'a StoredObject> {
        let mine = self.objects.of_namespace(&sandbox.namespace).map(|(_, stored)| stored);
        mine.filter(move |stored| selects_pod(stored, sandbox))
    }

    /// The state of each pod that objects select or that has interfaces. Pods with a change in flight are left out
    /// until it ends.
    pub fn pod_states(&self) -> Vec<PodState> {
        let settled = self.sandboxes.values().filter(|sandbox| self.is_settled(sandbox));
        let states = settled.map(|sandbox| self.pod_state(sandbox));
        states.filter(|state| !state.objects.is_empty()).collect()
    }

    /// Pods with a change in flight or queued.
    pub fn unsettled(&self) -> impl Iterator<Item = &Sandbox> {
        self.sandboxes.values().filter(|sandbox| !self.is_settled(sandbox))
    }

    /// Whether no bridge has a change in flight or queued: one without ports may be about to be removed.
    pub fn bridges_are_settled(&self) -> bool {
        let mut pending = self.dirty.iter().chain(self.in_flight.keys());
        !pending.any(|unit| matches!(unit, Unit::Bridge(_)))
    }

    fn is_settled(&self, sandbox: &Sandbox) -> bool {
        let unit = Unit::Sandbox(sandbox.id.clone());
        !self.dirty.contains(&unit) && !self.in_flight.contains_key(&unit)
    }

    /// Secrets with keys of interfaces, by namespace and name, with the sandboxes that need them.
    pub fn required_secrets(&self) -> BTreeMap<(String, String), BTreeSet<SandboxId>> {
        let mut needed: BTreeMap<_, BTreeSet<SandboxId>> = BTreeMap::new();
        for (_, stored) in self.objects.with(Feature::Secret) {
            let specs = stored.intents.iter().filter_map(|intent| intent.spec.interface());
            for spec in specs {
                for secret in spec.kind.clone().secret_keys() {
                    let Some(KeyRef::Secret { namespace, name, .. }) = secret.source.clone() else {
                        continue;
                    };
                    let pods = self.sandboxes.values();
                    let pods = pods.filter(|sandbox| spec.pods.matches(&stored.object.namespace, sandbox));
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
        let unit_state = self.units.get(&unit);
        let problems = self.problems.get(&unit).map_or(&[][..], Vec::as_slice);
        let mut objects: Vec<AppliedReport> = self
            .objects_selecting(sandbox)
            .map(|stored| self.in_pod(stored, sandbox, unit_state, problems))
            .collect();
        // Attachments have no object.
        let called = unit_state.into_iter().flat_map(|unit_state| &unit_state.interfaces);
        for (key, _) in called.filter(|(key, _)| !self.objects.contains_key(key)) {
            if !objects.iter().any(|one| ObjectKey::of(&one.object) == *key) {
                objects.push(report_for(key, unit_state, problems));
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
        unit_state: Option<&UnitState>,
        problems: &[(ObjectKey, Problem)],
    ) -> AppliedReport {
        let mut applied = report_for(&stored.key(), unit_state, problems);
        applied.object = stored.object.clone();
        applied.items.extend(self.socket_items(stored, sandbox));
        applied.problems.extend(self.sockets.problem(&sandbox.id, &stored.key()).cloned());
        if stored.object.kind == pod_annotations::KIND {
            applied.interfaces.extend(self.chained_for(stored, sandbox));
            applied.problems.extend(self.rejections_in(stored, sandbox));
            // The annotation has no other status that could show them.
            applied.warnings.extend(stored.warnings.iter().cloned());
            applied.warnings.extend(self.bridge_problems(&stored.key()));
        }
        let is_whole = applied.interfaces.len() + applied.items.len() == entry_count(stored);
        applied.ready &=
            is_whole && applied.problems.is_empty() && applied.items.iter().all(|item| item.ready);
        applied
    }

    /// Bridges, gateway addresses and overlay tunnels of objects on the node, with their problems, and those of the packet filter.
    pub fn node_states(&self) -> Vec<AppliedReport> {
        let on_host =
            self.units.iter().filter(|(unit, _)| is_on_host(unit)).map(|(_, unit_state)| unit_state);
        let on_host = on_host.flat_map(|unit_state| {
            let warned = unit_state.warnings.iter().map(|(object, _)| object);
            warned.chain(unit_state.items.iter().map(|(object, _)| object))
        });
        let failed = self.problems.iter().filter(|(unit, _)| is_on_host(unit));
        let failed = failed.flat_map(|(_, problems)| problems).map(|(object, _)| object);
        let cluster = cluster::key();
        let mut keys: BTreeSet<&ObjectKey> = on_host.chain(failed).chain([&cluster]).collect();
        keys.extend(self.objects.with(Feature::Bridge).map(|(key, _)| key));
        let objects = keys.into_iter().filter_map(|key| self.objects.get_key_value(key));
        let states = objects.map(|(key, stored)| self.on_node(key, stored));
        states.filter(|one| one.ready || !one.problems.is_empty() || !one.warnings.is_empty()).collect()
    }

    /// Messages about the bridges that an object requests.
    fn bridge_problems(&self, key: &ObjectKey) -> Vec<String> {
        let of_bridges = self.problems.iter().filter(|(unit, _)| matches!(unit, Unit::Bridge(_)));
        let problems = problems_for(key, of_bridges.flat_map(|(_, problems)| problems));
        problems.into_iter().map(|problem| problem.message).collect()
    }

    /// Host items of an object, such as routes to other nodes.
    fn host_items(&self, key: &ObjectKey) -> Vec<ItemReport> {
        let on_host = self.units.iter().filter(|(unit, _)| is_on_host(unit));
        let all = on_host.flat_map(|(_, unit_state)| &unit_state.items);
        all.filter(|(object, _)| object == key).map(|(_, item)| item.clone()).collect()
    }

    fn on_node(&self, key: &ObjectKey, stored: &StoredObject) -> AppliedReport {
        let asks = stored.intents.iter().any(|intent| matches!(intent.spec, IntentSpec::Bridge(_)));
        let bridges = if asks { self.bridges(key, stored) } else { Vec::new() };
        let units =
            self.problems.iter().filter(|(unit, _)| is_on_host(unit)).flat_map(|(_, problems)| problems);
        let unit_state = self
            .units
            .iter()
            .filter(|(unit, _)| is_on_host(unit))
            .flat_map(|(_, unit_state)| &unit_state.warnings);
        let problems = problems_for(key, units);
        let items = self.host_items(key);
        let has_items = !asks && !items.is_empty();
        let warnings = unit_state.filter(|(object, _)| object == key).map(|(_, warning)| warning.clone());
        AppliedReport {
            object: stored.object.clone(),
            ready: problems.is_empty() && (asks && !bridges.is_empty() || has_items),
            attached: None,
            interfaces: Vec::new(),
            items,
            bridges,
            problems,
            warnings: warnings
                .chain(self.spoofing_warnings(key))
                .chain(self.policy_warning(key))
                .chain(self.service_warnings(key))
                .collect(),
        }
    }
}

/// Whether a unit exists only on the host.
fn is_on_host(unit: &Unit) -> bool {
    !matches!(unit, Unit::Sandbox(_))
}

fn report_for(
    key: &ObjectKey,
    unit_state: Option<&UnitState>,
    problems: &[(ObjectKey, Problem)],
) -> AppliedReport {
    let ObjectKey { kind, namespace, name } = key.clone();
    let object = ObjectRef { kind, namespace, name, uid: String::new(), generation: 0 };
    let unit_state = unit_state.into_iter();
    let interfaces =
        unit_state.clone().flat_map(|unit_state| &unit_state.interfaces).filter(|(of, _)| of == key);
    let interfaces: Vec<_> = interfaces.map(|(_, interface)| interface.clone()).collect();
    let items = unit_state.clone().flat_map(|unit_state| &unit_state.items).filter(|(of, _)| of == key);
    let items: Vec<_> = items.map(|(_, item)| item.clone()).collect();
    let warnings = unit_state.flat_map(|unit_state| &unit_state.warnings).filter(|(of, _)| of == key);
    AppliedReport {
        object,
        ready: interfaces.iter().all(|one| one.ready) && items.iter().all(|one| one.ready),
        attached: None,
        interfaces,
        items,
        bridges: Vec::new(),
        problems: problems_for(key, problems.iter()),
        warnings: warnings.map(|(_, warning)| warning.clone()).collect(),
    }
}

/// The problems of one object, without duplicates.
pub(crate) fn problems_for<'a>(
    key: &ObjectKey,
    problems: impl Iterator<Item = &'a (ObjectKey, Problem)>,
) -> Vec<Problem> {
    let mut mine: Vec<Problem> = Vec::new();
    for (_, problem) in problems.filter(|(object, _)| object == key) {
        if !mine.contains(problem) {
            mine.push(problem.clone());
        }
    }
    mine
}
