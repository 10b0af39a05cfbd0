//! Which units an object has a say in.

use std::collections::BTreeSet;

use knit_model::intent::IntentSpec;
use knit_model::{IfName, Kind};

use crate::event::Unit;
use crate::spans;
use crate::state::{BridgeKey, State, StoredObject};

/// The units that an object has a say in.
pub(super) fn affected(state: &State, object: &StoredObject) -> BTreeSet<Unit> {
    let namespace = &object.object.namespace;
    let mut units: BTreeSet<Unit> = bridges_named(object).into_iter().map(Unit::Bridge).collect();
    for intent in &object.intents {
        let pods = match &intent.spec {
            IntentSpec::Interface(want) => &want.pods,
            IntentSpec::LinkChange(want) => &want.pods,
            IntentSpec::Routing(want) => &want.pods,
            // Nothing in the kernel follows from it.
            IntentSpec::RequiredExtensions(_) | IntentSpec::AddressPool(_) | IntentSpec::Rejected(_) => {
                continue;
            }
            // Only a virtual machine's unit has to say that there are none.
            IntentSpec::Socket(want) => &want.pods,
            IntentSpec::PluginChain(want) => &want.pods,
            IntentSpec::NodeRoutes(_) | IntentSpec::EgressGateway(_) => {
                units.insert(Unit::NodeRoutes);
                continue;
            }
            // What it did not let be may be now.
            IntentSpec::Quota(_) => {
                units.extend(state.blocked_by_quota(namespace));
                continue;
            }
            // An uplink may open or close a way for any sandbox.
            IntentSpec::Uplink(_) => {
                units.extend(state.sandboxes.keys().map(|id| Unit::Sandbox(id.clone())));
                continue;
            }
            // A network may change the ranges of any interface of its namespace, and of the bridges of those.
            IntentSpec::Network(network) => {
                let mine = state.objects.values().filter(|other| other.object.namespace == *namespace);
                let on_it = mine.filter(|other| is_on(other, &network.name));
                units.extend(on_it.flat_map(bridges_named).map(Unit::Bridge));
                units.extend(spans::rivals(state, namespace, network));
                let mine = state.sandboxes.values().filter(|sandbox| sandbox.namespace == *namespace);
                units.extend(mine.map(|sandbox| Unit::Sandbox(sandbox.id.clone())));
                continue;
            }
            IntentSpec::Bridge(want) => {
                let key = BridgeKey { namespace: namespace.clone(), name: want.name.clone() };
                let users = state.made.iter().filter(|(_, made)| made.uses.contains(&key));
                units.extend(users.map(|(unit, _)| unit.clone()));
                continue;
            }
        };
        let matching = state.sandboxes.values().filter(|sandbox| pods.matches(namespace, sandbox));
        units.extend(matching.map(|sandbox| Unit::Sandbox(sandbox.id.clone())));
    }
    units
}

/// Whether any interface of an object is on this network.
fn is_on(object: &StoredObject, network: &str) -> bool {
    let mut wants = object.intents.iter().map(|intent| &intent.spec);
    wants.any(|want| matches!(want, IntentSpec::Interface(want) if want.network.as_deref() == Some(network)))
}

/// The bridges that an object names.
pub(super) fn bridges_named(object: &StoredObject) -> BTreeSet<BridgeKey> {
    let own = &object.object.namespace;
    let names = object.intents.iter().filter_map(|intent| match &intent.spec {
        IntentSpec::Bridge(want) => Some((own.as_str(), want.name.clone())),
        IntentSpec::Interface(want) if matches!(want.kind, Kind::Veth(_)) => {
            Some((want.tenant(own), IfName::new(want.master.as_ref()?).ok()?))
        }
        _ => None,
    });
    names.map(|(namespace, name)| BridgeKey { namespace: namespace.to_owned(), name }).collect()
}
