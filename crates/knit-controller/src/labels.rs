//! Labels of nodes that say what each can offer to pods, so that schedulers need not know Knit: kinds of links that the kernel
//! has, and Uplinks whose NIC is there. They follow from what the node's agent says, and go with it.

use std::collections::BTreeMap;

use knit_crds::Object;
use knit_crds::states::NodeNetworkStatus;

use crate::known::State;
use crate::step::Effect;

/// Labels of a node, by key.
pub type Labels = BTreeMap<String, String>;

/// Before the name of a kind of link, in the kernel's word.
pub const LINK: &str = "link.knit.opdev.io/";
/// Before the name of an Uplink.
pub const UPLINK: &str = "uplink.knit.opdev.io/";

/// The longest name of a label, without what is before the `/`.
const LONGEST: usize = 63;

/// Those of a node's labels that are Knit's.
pub fn own<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> Labels {
    let own = labels.into_iter().filter(|(key, _)| key.starts_with(LINK) || key.starts_with(UPLINK));
    own.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// What has to be written for nodes whose labels may be others by now.
pub(crate) fn differences(state: &mut State) -> Vec<Effect> {
    let mut effects = Vec::new();
    for node in std::mem::take(&mut state.unlabelled) {
        let Some(had) = state.alive.get(&node) else { continue };
        let wanted = wanted(state, state.nodes.get(&node));
        let put = wanted.iter().filter(|(key, value)| had.get(*key) != Some(*value));
        let mut labels: BTreeMap<String, Option<String>> =
            put.map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
        labels.extend(had.keys().filter(|key| !wanted.contains_key(*key)).map(|key| (key.clone(), None)));
        if !labels.is_empty() {
            state.alive.insert(node.clone(), wanted);
            effects.push(Effect::LabelNode { node, labels });
        }
    }
    effects
}

/// The labels that a node should have. Without a word of its agent it has none.
fn wanted(state: &State, said: Option<&NodeNetworkStatus>) -> Labels {
    let Some(said) = said else { return Labels::new() };
    let kinds = said.kernel.links.iter().map(|link| (format!("{LINK}{}", link.kind), link.present));
    let uplinks = state.objects.values().filter_map(|known| match &known.object {
        Object::Uplink(uplink) => uplink.metadata.name.as_ref().map(|name| (name, &uplink.spec.link)),
        _ => None,
    });
    let offered = uplinks.filter(|(name, _)| name.len() <= LONGEST).map(|(name, link)| {
        let is_there = said.uplinks.iter().any(|nic| nic.name == link.0);
        (format!("{UPLINK}{name}"), is_there)
    });
    kinds.chain(offered).map(|(key, is_there)| (key, is_there.to_string())).collect()
}
