//! Which units an object affects.

use std::collections::BTreeSet;

use knit_model::intent::IntentSpec;
use knit_model::{IfName, Kind};

use crate::event::Unit;
use crate::overlay;
use crate::state::{BridgeKey, State, StoredObject};

/// The units that an object affects.
pub(super) fn affected(state: &State, object: &StoredObject) -> BTreeSet<Unit> {
    let namespace = &object.object.namespace;
    let mut units: BTreeSet<Unit> = bridges_named(object).into_iter().map(Unit::Bridge).collect();
    for intent in &object.intents {
        let pods = match &intent.spec {
            IntentSpec::Interface(spec) => &spec.pods,
            IntentSpec::LinkChange(spec) => &spec.pods,
            IntentSpec::Routing(spec) => &spec.pods,
            // No kernel state depends on it.
            IntentSpec::RequiredExtensions(_) | IntentSpec::AddressPool(_) | IntentSpec::Rejected(_) => {
                continue;
            }
            // Only a virtual machine's unit has to reject them.
            IntentSpec::Socket(spec) => &spec.pods,
            IntentSpec::PluginChain(spec) => &spec.pods,
            IntentSpec::NodeRoutes(_) | IntentSpec::EgressGateway(_) | IntentSpec::ServiceAddresses(_) => {
                units.insert(Unit::NodeRoutes);
                continue;
            }
            // Denied units may be allowed now.
            IntentSpec::Quota(_) => {
                units.extend(state.blocked_by_quota(namespace));
                continue;
            }
            // An uplink may permit or forbid links of any sandbox.
            IntentSpec::Uplink(_) => {
                units.extend(state.sandboxes.keys().map(|id| Unit::Sandbox(id.clone())));
                continue;
            }
            // A network may change the ranges of all interfaces and bridges in its namespace.
            IntentSpec::Network(network) => {
                units.extend(bridges_of(state, namespace, &network.name));
                units.extend(overlay::bridges_with_same_vni(state, namespace, network));
                units.extend(sandboxes_of(state, namespace));
                continue;
            }
            // Interfaces that refer to it cannot be attached.
            IntentSpec::Segment(segment) => {
                units.extend(bridges_of(state, namespace, &segment.name));
                if objects_on(state, namespace, &segment.name).next().is_some() {
                    units.extend(sandboxes_of(state, namespace));
                }
                continue;
            }
            IntentSpec::Bridge(spec) => {
                let key = BridgeKey { namespace: namespace.clone(), name: spec.name.clone() };
                units.extend(state.units.users_of(&key).cloned());
                continue;
            }
        };
        let matching = state.sandboxes.values().filter(|sandbox| pods.matches(namespace, sandbox));
        units.extend(matching.map(|sandbox| Unit::Sandbox(sandbox.id.clone())));
    }
    units
}

/// The objects of a namespace with an interface on this network.
fn objects_on<'a>(
    state: &'a State,
    namespace: &str,
    network: &'a str,
) -> impl Iterator<Item = &'a StoredObject> {
    let mine = state.objects.of_namespace(namespace).map(|(_, other)| other);
    mine.filter(move |other| is_on(other, network))
}

/// The bridges of interfaces on this network.
fn bridges_of(state: &State, namespace: &str, network: &str) -> Vec<Unit> {
    objects_on(state, namespace, network).flat_map(bridges_named).map(Unit::Bridge).collect()
}

/// The sandboxes of a namespace.
fn sandboxes_of(state: &State, namespace: &str) -> impl Iterator<Item = Unit> {
    let mine = state.sandboxes.values().filter(move |sandbox| sandbox.namespace == *namespace);
    mine.map(|sandbox| Unit::Sandbox(sandbox.id.clone()))
}

/// Whether any interface of an object is on this network.
fn is_on(object: &StoredObject, network: &str) -> bool {
    let mut specs = object.intents.iter().map(|intent| &intent.spec);
    specs.any(|spec| matches!(spec, IntentSpec::Interface(spec) if spec.network.as_deref() == Some(network)))
}

/// The bridges that an object names.
pub(super) fn bridges_named(object: &StoredObject) -> BTreeSet<BridgeKey> {
    let own = &object.object.namespace;
    let names = object.intents.iter().filter_map(|intent| match &intent.spec {
        IntentSpec::Bridge(spec) => Some((own.as_str(), spec.name.clone())),
        IntentSpec::Interface(spec) if matches!(spec.kind, Kind::Veth(_)) => {
            Some((spec.tenant(own), IfName::new(spec.master.as_ref()?).ok()?))
        }
        _ => None,
    });
    names.map(|(namespace, name)| BridgeKey { namespace: namespace.to_owned(), name }).collect()
}
