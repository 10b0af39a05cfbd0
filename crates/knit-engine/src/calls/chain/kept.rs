//! Chains that objects ask for: nobody waits for them, and they are kept as long as they are asked for.

use std::collections::BTreeMap;

use knit_ipam::Time;
use knit_model::Sandbox;
use knit_model::intent::{IntentSpec, PluginChainIntent};
use knit_model::provenance::Provenance;

use super::leave;
use crate::annotated;
use crate::call::{Asked, Notes};
use crate::chain::{Chain, ChainKey, Chained};
use crate::event::Record;
use crate::state::State;
use crate::step::Effects;

/// Has plugins make what objects ask for, and take away what they made and nobody asks for any more. What they refused to make is
/// tried again when everything is compared, or when something else is asked for.
pub(crate) fn keep(state: &mut State, now: Time, effects: &mut Effects) {
    let wanted = wanted(state);
    let kept = state.called.all_chained().filter(|there| is_kept(there) && !there.leaving);
    let is_other =
        |there: &&Chained| !wanted.get(&there.key()).is_some_and(|(_, want, _)| is_same(there, want));
    let other: Vec<ChainKey> = kept.filter(is_other).map(Chained::key).collect();
    other.iter().for_each(|key| leave(state, key, None, effects));
    let failed = &mut state.calls.chaining.failed;
    failed.retain(|key, (chain, _)| wanted.get(key).is_some_and(|(_, want, _)| chain_of(want) == *chain));
    for (key, (sandbox, want, why)) in wanted {
        let is_there = state.called.chained(&key).is_some() || state.called.get(&key.0, &key.1).is_some();
        if is_there || state.calls.chaining.failed.contains_key(&key) {
            continue;
        }
        let chained = Chained {
            sandbox: key.0,
            interface: key.1,
            network: want.network.clone(),
            chain: chain_of(&want),
            netns: sandbox.netns.clone(),
            pod: (sandbox.namespace, sandbox.pod, sandbox.uid),
            asked: Asked::default(),
            notes: Notes::default(),
            why,
            since: now,
            ticket: 0,
            result: None,
            leaving: false,
            introduced: false,
        };
        effects.record(state, Record::Chained(Box::new(chained)));
    }
}

/// Whether an object asked for it, and no call.
pub(in crate::calls) fn is_kept(there: &Chained) -> bool {
    there.why.object.is_some()
}

/// Every chain that is asked for, by the interface that it makes. Of two that ask for one, the first has it.
fn wanted(state: &State) -> BTreeMap<ChainKey, (Sandbox, PluginChainIntent, Provenance)> {
    let mut all = BTreeMap::new();
    for (object, stored) in annotated::objects(state) {
        for intent in &stored.intents {
            let IntentSpec::PluginChain(want) = &intent.spec else { continue };
            let meant = |sandbox: &&Sandbox| {
                sandbox.isolation.is_netns() && want.pods.matches(&object.namespace, sandbox)
            };
            for sandbox in state.sandboxes.values().filter(meant) {
                let key = (sandbox.id.clone(), want.name.clone());
                all.entry(key).or_insert_with(|| (sandbox.clone(), (**want).clone(), intent.origin.clone()));
            }
        }
    }
    all
}

fn is_same(there: &Chained, want: &PluginChainIntent) -> bool {
    there.chain == chain_of(want) && there.network == want.network
}

fn chain_of(want: &PluginChainIntent) -> Chain {
    Chain {
        conflist: want.conflist.clone(),
        plugin_dirs: want.plugin_dirs.clone(),
        timeout_seconds: want.timeout_seconds,
    }
}
