//! Says on the own node whether the cluster's network has an address for one more pod there: a condition for people and
//! programs, and a taint so that the scheduler sends pods elsewhere. Pods that run stay.
//!
//! What the node says is compared with what is so whenever either changes, so it holds after a restart and whoever else
//! writes there. What is so is decided in [`knit_engine::room`].

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knit_engine::room::{Left, Room};
use knit_engine::{State, cluster};
use knit_kube::MANAGER;
use knit_kube::kube::api::{Patch, PatchParams};
use knit_kube::kube::{self, Api, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

use super::Shared;
use crate::capacity::Capacity;

/// The taint of a node that has no address for another pod.
pub(super) const TAINT: &str = "knit.opdev.io/no-addresses";
/// The condition of every node.
pub(super) const CONDITION: &str = "KnitAddressesAvailable";

/// Changes often come in groups: so long after the first it is looked what is left.
const GROUP: Duration = Duration::from_millis(100);
/// What could not be written is tried again after this long.
const AGAIN: Duration = Duration::from_secs(1);

/// What the node says about room, as it is watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// Whether it has the taint.
    pub(super) is_tainted: bool,
    /// The condition's status, if it has the condition.
    pub(super) available: Option<bool>,
}

impl Said {
    /// What is to be said.
    fn of(is_full: bool) -> Self {
        Self { is_tainted: is_full, available: Some(!is_full) }
    }
}

/// Has the node say what is so, for as long as it is polled.
pub(super) async fn follow(shared: Shared, mut said: watch::Receiver<Option<Said>>) {
    let (mut version, began) = (shared.handle.version(), Instant::now());
    let mut room = None;
    loop {
        let heard = *said.borrow_and_update();
        let left = shared.handle.ask(|node| left(node.state())).await.unwrap_or_default();
        let mut again = None;
        // Before the cluster told of this node's ranges there is nothing to run out of.
        if let Some(heard) = heard.filter(|_| !left.is_empty()) {
            let room = room.get_or_insert_with(|| Room::said(heard.is_tainted));
            let verdict = room.judge(&left, began.elapsed());
            again = verdict.again;
            if heard != Said::of(verdict.is_full) {
                again = Some(AGAIN);
                match say(&shared, verdict.is_full, &left).await {
                    Ok(()) => {}
                    // Someone else wrote at the same time.
                    Err(kube::Error::Api(why)) if why.code == 409 => {}
                    Err(why) => tracing::warn!(
                        %why,
                        full = verdict.is_full,
                        "the node does not say whether addresses are left; it is tried again"
                    ),
                }
            }
        }
        tokio::select! {
            changed = version.changed() => if changed.is_err() { return },
            changed = said.changed() => if changed.is_err() { return },
            () = sleep(again.unwrap_or_default()), if again.is_some() => {}
        }
        sleep(GROUP).await;
        version.mark_unchanged();
    }
}

/// What is left of the cluster's network; nothing if there is none yet.
fn left(state: &State) -> Vec<Left> {
    let Some(cluster) = state.cluster() else { return Vec::new() };
    let all = Capacity::of(state, cluster::NAMESPACE, cluster.network).into_iter();
    all.map(|Capacity { ipv6, total, free, .. }| Left { ipv6, total, free }).collect()
}

/// Writes what the node does not say yet.
async fn say(shared: &Shared, is_full: bool, left: &[Left]) -> kube::Result<()> {
    let api: Api<Node> = Api::all(shared.client.clone());
    let params = PatchParams { field_manager: Some(format!("{MANAGER}-agent")), ..PatchParams::default() };
    let node = api.get(&shared.node).await?;
    let mut taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let is_tainted = taints.iter().any(|taint| taint.key == TAINT);
    let message = message(is_full, left);
    if is_tainted != is_full {
        taints.retain(|taint| taint.key != TAINT);
        if is_full {
            let (key, effect) = (TAINT.to_owned(), "NoSchedule".to_owned());
            taints.push(Taint { key, effect, ..Taint::default() });
        }
        // All taints are one list: it must still be the one that was read.
        let patch = json!({
            "metadata": {"resourceVersion": node.resource_version()},
            "spec": {"taints": taints},
        });
        api.patch(&shared.node, &params, &Patch::Merge(&patch)).await?;
        tracing::warn!(full = is_full, "{message}");
    }
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let status = if is_full { "False" } else { "True" };
    if !conditions.iter().any(|one| one.type_ == CONDITION && one.status == status) {
        let now = Time(jiff::Timestamp::now());
        let condition = json!({
            "type": CONDITION,
            "status": status,
            "reason": if is_full { "AddressesExhausted" } else { "AddressesFree" },
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        });
        let patch = json!({"status": {"conditions": [condition]}});
        api.patch_status(&shared.node, &params, &Patch::Strategic(&patch)).await?;
    }
    Ok(())
}

/// Why, for people. It is of the moment when it was first so.
fn message(is_full: bool, left: &[Left]) -> String {
    if !is_full {
        return format!("network {} has addresses for more pods on this node", cluster::NAME);
    }
    match left.iter().find(|one| one.free == 0) {
        Some(one) => {
            let (family, total) = (if one.ipv6 { "IPv6" } else { "IPv4" }, one.total);
            format!(
                "network {} has no {family} address left on this node: all {total} are in use",
                cluster::NAME
            )
        }
        None => format!("network {} had no address left on this node a moment ago", cluster::NAME),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_the_family_that_is_used_up() {
        let left = [Left { ipv6: false, total: 5, free: 0 }, Left { ipv6: true, total: 9, free: 4 }];
        assert_eq!(
            message(true, &left),
            "network cluster-network has no IPv4 address left on this node: all 5 are in use"
        );
    }
}
