//! Node labels with the features of each node, for schedulers: supported link types, and Uplinks whose NIC exists. They
//! are derived from the node's NodeNetwork, and removed with it.

use std::collections::BTreeMap;

use knit_crds::Object;
use knit_crds::states::NodeNetworkStatus;

use crate::state::State;
use crate::step::Effect;

/// Labels of a node, by key.
pub type Labels = BTreeMap<String, String>;

/// The label prefix of a link type, by its kernel name.
pub const LINK_LABEL_PREFIX: &str = "link.knit.opdev.io/";
/// The label prefix of an Uplink.
pub const UPLINK_LABEL_PREFIX: &str = "uplink.knit.opdev.io/";

/// The maximum length of a label name without its prefix.
const MAX_LABEL_NAME: usize = 63;

/// The labels that Knit owns.
pub fn owned<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> Labels {
    let owned = labels
        .into_iter()
        .filter(|(key, _)| key.starts_with(LINK_LABEL_PREFIX) || key.starts_with(UPLINK_LABEL_PREFIX));
    owned.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The label changes of nodes that must be reconciled.
pub(crate) fn reconcile(state: &mut State) -> Vec<Effect> {
    let mut effects = Vec::new();
    for node in std::mem::take(&mut state.dirty_nodes) {
        let Some(current) = state.cluster_nodes.get(&node) else { continue };
        let desired = desired(state, state.node_networks.get(&node));
        let changed = desired.iter().filter(|(key, value)| current.get(*key) != Some(*value));
        let mut labels: BTreeMap<String, Option<String>> =
            changed.map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
        labels
            .extend(current.keys().filter(|key| !desired.contains_key(*key)).map(|key| (key.clone(), None)));
        if !labels.is_empty() {
            state.cluster_nodes.insert(node.clone(), desired);
            effects.push(Effect::LabelNode { node, labels });
        }
    }
    effects
}

/// The desired labels of a node. Without a report of its agent it has none.
fn desired(state: &State, report: Option<&NodeNetworkStatus>) -> Labels {
    let Some(report) = report else { return Labels::new() };
    let kinds =
        report.kernel.links.iter().map(|link| (format!("{LINK_LABEL_PREFIX}{}", link.kind), link.present));
    let uplinks = state.objects.values().filter_map(|tracked| match &tracked.object {
        Object::Uplink(uplink) => uplink.metadata.name.as_ref().map(|name| (name, &uplink.spec.link)),
        _ => None,
    });
    let offered = uplinks.filter(|(name, _)| name.len() <= MAX_LABEL_NAME).map(|(name, link)| {
        let exists = report.uplinks.iter().any(|nic| nic.name == link.0);
        (format!("{UPLINK_LABEL_PREFIX}{name}"), exists)
    });
    kinds.chain(offered).map(|(key, exists)| (key, exists.to_string())).collect()
}
