//! Plugin chains requested by objects: no caller waits for them, and they exist as long as the object requests them.

use std::collections::BTreeMap;

use knit_ipam::Time;
use knit_model::Sandbox;
use knit_model::intent::{IntentSpec, PluginChainIntent};
use knit_model::provenance::Provenance;

use super::start_del;
use crate::call::{AttachmentMetadata, InterfaceRequest};
use crate::event::Record;
use crate::plugin_chain::{ChainKey, ChainedInterface, PluginChain};
use crate::pod_annotations;
use crate::state::State;
use crate::step::Effects;

/// Starts an ADD for every requested chain and a DEL for every other one. A failed ADD is retried on resync, or when
/// the request changes.
pub(crate) fn reconcile(state: &mut State, now: Time, effects: &mut Effects) {
    let desired = desired(state);
    let from_objects =
        state.attachments.all_chained().filter(|chained| is_from_object(chained) && !chained.removing);
    let is_other = |chained: &&ChainedInterface| {
        !desired.get(&chained.key()).is_some_and(|(_, spec, _)| is_same(chained, spec))
    };
    let other: Vec<ChainKey> = from_objects.filter(is_other).map(ChainedInterface::key).collect();
    other.iter().for_each(|key| start_del(state, key, None, effects));
    let failed = &mut state.pending_calls.chain_runs.failed;
    failed.retain(|key, (chain, _)| desired.get(key).is_some_and(|(_, spec, _)| chain_of(spec) == *chain));
    for (key, (sandbox, spec, origin)) in desired {
        let exists =
            state.attachments.chained(&key).is_some() || state.attachments.get(&key.0, &key.1).is_some();
        if exists || state.pending_calls.chain_runs.failed.contains_key(&key) {
            continue;
        }
        let chained = ChainedInterface {
            sandbox: key.0,
            interface: key.1,
            network: spec.network.clone(),
            chain: chain_of(&spec),
            netns: sandbox.netns.clone(),
            pod: (sandbox.namespace, sandbox.pod, sandbox.uid),
            request: InterfaceRequest::default(),
            metadata: AttachmentMetadata::default(),
            origin,
            since: now,
            ticket: 0,
            result: None,
            removing: false,
            created_sandbox: false,
        };
        effects.record(state, Record::ChainAddStarted(Box::new(chained)));
    }
}

/// Whether an object requested it rather than a call.
pub(in crate::pending_calls) fn is_from_object(chained: &ChainedInterface) -> bool {
    chained.origin.object.is_some()
}

/// All requested chains, by interface. If two objects request the same interface, the first one gets it.
fn desired(state: &State) -> BTreeMap<ChainKey, (Sandbox, PluginChainIntent, Provenance)> {
    let mut all = BTreeMap::new();
    for (object, stored) in pod_annotations::objects(state) {
        for intent in &stored.intents {
            let IntentSpec::PluginChain(spec) = &intent.spec else { continue };
            let is_selected = |sandbox: &&Sandbox| {
                sandbox.isolation.is_netns() && spec.pods.matches(&object.namespace, sandbox)
            };
            for sandbox in state.sandboxes.values().filter(is_selected) {
                let key = (sandbox.id.clone(), spec.name.clone());
                all.entry(key).or_insert_with(|| (sandbox.clone(), (**spec).clone(), intent.origin.clone()));
            }
        }
    }
    all
}

fn is_same(chained: &ChainedInterface, spec: &PluginChainIntent) -> bool {
    chained.chain == chain_of(spec) && chained.network == spec.network
}

fn chain_of(spec: &PluginChainIntent) -> PluginChain {
    PluginChain {
        conflist: spec.conflist.clone(),
        plugin_dirs: spec.plugin_dirs.clone(),
        timeout_seconds: spec.timeout_seconds,
    }
}
