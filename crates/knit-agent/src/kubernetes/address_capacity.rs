//! Publishes whether the cluster network has an address for another pod on this node: as a condition, and as a taint that keeps the
//! scheduler from placing pods here. Running pods are not affected.
//!
//! The published state is compared with the desired one whenever either changes, so it survives restarts and writes by others.
//! [`knit_engine::address_capacity`] decides.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knit_engine::address_capacity::{AddressCapacity, FamilyCapacity};
use knit_engine::{State, cluster};
use knit_kube::FIELD_MANAGER;
use knit_kube::kube::api::{Patch, PatchParams};
use knit_kube::kube::{self, Api, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Context;
use super::state_follower::StateFollower;
use crate::capacity::NetworkAddresses;

/// The taint of a node without a free address.
pub(super) const TAINT: &str = "knit.opdev.io/no-addresses";
/// The condition type.
pub(super) const CONDITION: &str = "KnitAddressesAvailable";

/// Changes come in bursts: they are collected this long.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// Delay after a failed request.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The published capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PublishedCapacity {
    /// Whether the node has the taint.
    pub(super) is_tainted: bool,
    /// The condition's status, if the condition exists.
    pub(super) available: Option<bool>,
}

impl PublishedCapacity {
    /// The desired value.
    fn of(is_full: bool) -> Self {
        Self { is_tainted: is_full, available: Some(!is_full) }
    }
}

/// Keeps taint and condition up to date.
pub(super) async fn run(context: Context, mut published: watch::Receiver<Option<PublishedCapacity>>) {
    let mut state = StateFollower::new(&context.handle, SETTLE_TIME);
    let started = Instant::now();
    let mut capacity = None;
    loop {
        let current = *published.borrow_and_update();
        let left = context.handle.query(|node| left(node.state())).await.unwrap_or_default();
        let mut retry_after = None;
        // Before the node has ranges there is nothing to exhaust.
        if let Some(current) = current.filter(|_| !left.is_empty()) {
            let capacity = capacity.get_or_insert_with(|| AddressCapacity::with_status(current.is_tainted));
            let verdict = capacity.update(&left, started.elapsed());
            retry_after = verdict.recheck_after;
            if current != PublishedCapacity::of(verdict.is_full) {
                retry_after = Some(RETRY_INTERVAL);
                match publish(&context, verdict.is_full, &left).await {
                    Ok(()) => {}
                    // Conflict with another writer.
                    Err(kube::Error::Api(why)) if why.code == 409 => {}
                    Err(why) => tracing::warn!(
                        error = %why,
                        full = verdict.is_full,
                        "cannot publish the node's address capacity; retrying"
                    ),
                }
            }
        }
        let retry = retry_after.map(|delay| Instant::now() + delay);
        if state.changed(published.changed(), retry).await.is_err() {
            return;
        }
    }
}

/// The free addresses of the cluster network; empty before it exists.
fn left(state: &State) -> Vec<FamilyCapacity> {
    let Some(cluster) = state.cluster() else { return Vec::new() };
    let all = NetworkAddresses::of(state, cluster::NAMESPACE, cluster.network).into_iter();
    all.map(|NetworkAddresses { ipv6, total, free, .. }| FamilyCapacity { ipv6, total, free }).collect()
}

/// Writes what differs.
async fn publish(context: &Context, is_full: bool, left: &[FamilyCapacity]) -> kube::Result<()> {
    let api: Api<Node> = Api::all(context.client.clone());
    let params =
        PatchParams { field_manager: Some(format!("{FIELD_MANAGER}-agent")), ..PatchParams::default() };
    let node = api.get(&context.node).await?;
    let mut taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let is_tainted = taints.iter().any(|taint| taint.key == TAINT);
    let message = message(is_full, left);
    if is_tainted != is_full {
        taints.retain(|taint| taint.key != TAINT);
        if is_full {
            let (key, effect) = (TAINT.to_owned(), "NoSchedule".to_owned());
            taints.push(Taint { key, effect, ..Taint::default() });
        }
        // Taints are one list: the patch must apply to the version that was read.
        let patch = json!({
            "metadata": {"resourceVersion": node.resource_version()},
            "spec": {"taints": taints},
        });
        api.patch(&context.node, &params, &Patch::Merge(&patch)).await?;
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
        api.patch_status(&context.node, &params, &Patch::Strategic(&patch)).await?;
    }
    Ok(())
}

/// The condition's message. It describes the time of the transition.
fn message(is_full: bool, left: &[FamilyCapacity]) -> String {
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
        let left = [
            FamilyCapacity { ipv6: false, total: 5, free: 0 },
            FamilyCapacity { ipv6: true, total: 9, free: 4 },
        ];
        assert_eq!(
            message(true, &left),
            "network cluster-network has no IPv4 address left on this node: all 5 are in use"
        );
    }
}
