//! Reports of objects, derived from the state.

use knit_model::Sandbox;
use knit_model::intent::IntentSpec;
use knit_model::problem::{Problem, Reason};
use knit_model::report::{BridgeReport, Phase, PodReport, Report};

use crate::event::Unit;
use crate::state::{BridgeKey, ObjectKey, State, StoredObject};
use crate::status::problems_for;

impl State {
    /// The report of an object on this node.
    pub fn report(&self, key: &ObjectKey) -> Option<Report> {
        let stored = self.objects.get(key)?;
        let pods = self.pods(key, stored);
        let bridges = self.bridges(key, stored);
        let problems = self.problems_of(key);
        let mut warnings = stored.warnings.clone();
        for unit_state in self.units.values() {
            warnings.extend(
                unit_state
                    .warnings
                    .iter()
                    .filter(|(object, _)| object == key)
                    .map(|(_, warning)| warning.clone()),
            );
        }
        warnings.extend(self.spoofing_warnings(key));
        warnings.extend(self.policy_warning(key));
        warnings.extend(self.service_warnings(key));
        let phase = phase(stored, &pods, &bridges, &problems);
        Some(Report {
            object: stored.object.clone(),
            phase,
            bridges,
            pods,
            nodes: Vec::new(),
            problems,
            warnings,
        })
    }

    fn pods(&self, key: &ObjectKey, stored: &StoredObject) -> Vec<PodReport> {
        let mut pods: Vec<PodReport> = self
            .sandboxes
            .values()
            .filter(|sandbox| selects_pod(stored, sandbox))
            .map(|sandbox| {
                let unit_state = self.units.get(&Unit::Sandbox(sandbox.id.clone()));
                let interfaces = unit_state.into_iter().flat_map(|unit_state| &unit_state.interfaces);
                let interfaces = interfaces.filter(|(object, _)| object == key);
                let interfaces: Vec<_> = interfaces.map(|(_, interface)| interface.clone()).collect();
                let items = unit_state.into_iter().flat_map(|unit_state| &unit_state.items);
                let items = items.filter(|(object, _)| object == key).map(|(_, item)| item.clone());
                let items: Vec<_> = items.chain(self.socket_items(stored, sandbox)).collect();
                let attached = self.attached(&sandbox.id, key, &interfaces, &items);
                let (pod, sandbox) = (sandbox.pod.clone(), sandbox.id.clone());
                PodReport { pod, sandbox, attached, interfaces, items }
            })
            .collect();
        pods.sort_by(|a, b| a.pod.cmp(&b.pod));
        pods
    }

    pub(crate) fn bridges(&self, key: &ObjectKey, stored: &StoredObject) -> Vec<BridgeReport> {
        let names = stored.intents.iter().filter_map(|intent| match &intent.spec {
            IntentSpec::Bridge(spec) => Some((key.namespace.as_str(), spec.name.clone())),
            IntentSpec::Interface(spec) => {
                Some((spec.tenant(&key.namespace), spec.master.as_ref()?.parse().ok()?))
            }
            _ => None,
        });
        let mut bridges: Vec<BridgeReport> = Vec::new();
        for (namespace, name) in names {
            let unit = Unit::Bridge(BridgeKey { namespace: namespace.to_owned(), name });
            let bridge = self.units.get(&unit).and_then(|unit_state| unit_state.bridge.clone());
            bridges.extend(bridge.filter(|bridge| !bridges.contains(bridge)));
        }
        bridges
    }

    fn problems_of(&self, key: &ObjectKey) -> Vec<Problem> {
        let mut problems = problems_for(key, self.problems.values().flatten());
        problems.extend(self.sockets.problems_of(key).cloned());
        for (name, object) in self.missing_extensions() {
            if object == key {
                let message = format!("extension {name} is not registered on this node");
                problems.push(Problem::new("spec.required", Reason::NotReady, message));
            }
        }
        problems
    }
}

/// Whether any intent of the object selects this sandbox.
pub(crate) fn selects_pod(stored: &StoredObject, sandbox: &Sandbox) -> bool {
    let namespace = &stored.object.namespace;
    let mut selectors = stored.intents.iter().filter_map(|intent| intent.spec.pods());
    selectors.any(|pods| pods.matches(namespace, sandbox))
}

/// How many interfaces and items a pod has when the object is complete.
pub(crate) fn entry_count(stored: &StoredObject) -> usize {
    stored.intents.iter().filter(|intent| intent.spec.pods().is_some()).count()
}

fn phase(stored: &StoredObject, pods: &[PodReport], bridges: &[BridgeReport], problems: &[Problem]) -> Phase {
    let entry_count = entry_count(stored);
    let is_ready = |pod: &PodReport| {
        pod.interfaces.len() + pod.items.len() == entry_count
            && pod.interfaces.iter().all(|interface| interface.ready)
            && pod.items.iter().all(|item| item.ready)
    };
    let has_pod_side = entry_count > 0;
    let anything =
        pods.iter().any(|pod| !pod.interfaces.is_empty() || !pod.items.is_empty()) || !bridges.is_empty();
    if problems.is_empty()
        && if has_pod_side {
            !pods.is_empty() && pods.iter().all(is_ready)
        } else {
            anything || stored.is_passive()
        }
    {
        Phase::Configured
    } else if anything || !problems.is_empty() {
        Phase::Configuring
    } else {
        Phase::Unset
    }
}

impl StoredObject {
    /// Whether the object has no kernel state itself, because it only permits or names something.
    fn is_passive(&self) -> bool {
        self.intents.iter().all(|intent| {
            matches!(
                intent.spec,
                IntentSpec::Uplink(_)
                    | IntentSpec::Network(_)
                    | IntentSpec::Segment(_)
                    | IntentSpec::RequiredExtensions(_)
                    | IntentSpec::Quota(_)
                    | IntentSpec::AddressPool(_)
                    | IntentSpec::EgressGateway(_)
                    | IntentSpec::ServiceAddresses(_)
            )
        })
    }
}
