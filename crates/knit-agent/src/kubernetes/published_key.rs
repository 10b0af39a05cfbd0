//! Publishes this node's WireGuard public key as an annotation of its Node. Other nodes send nothing to a node without a key.
//!
//! The published key is compared with the actual one whenever either changes, as in [`super::room`].

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use knit_engine::{State, Unit};
use knit_kube::FIELD_MANAGER;
use knit_kube::kube::api::{Patch, PatchParams};
use knit_kube::kube::{self, Api};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Context;
use super::state_follower::StateFollower;

/// The annotation of a node with encryption.
pub(super) const ANNOTATION: &str = "knit.opdev.io/wireguard-public-key";

/// Changes come in bursts: they are collected this long.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// Delay after a failed request.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Keeps the annotation up to date.
pub(super) async fn run(context: Context, mut published: watch::Receiver<Option<Option<String>>>) {
    let mut state = StateFollower::new(&context.handle, SETTLE_TIME);
    loop {
        let current = published.borrow_and_update().clone();
        let known = context.handle.query(|node| key(node.state())).await.ok().flatten();
        let mut retry = None;
        if let (Some(current), Some(key)) = (current, known)
            && current != key
        {
            retry = Some(Instant::now() + RETRY_INTERVAL);
            match publish(&context, key.as_deref()).await {
                Ok(()) => tracing::info!(key, "published the WireGuard public key"),
                Err(why) => {
                    tracing::warn!(error = %why, "cannot publish the WireGuard public key; retrying")
                }
            }
        }
        if state.changed(published.changed(), retry).await.is_err() {
            return;
        }
    }
}

/// The key to publish, `Some(None)` if there is none; `None` while it is unknown.
fn key(state: &State) -> Option<Option<String>> {
    let is_known = state.cluster().is_some() && !state.is_pending(&Unit::NodeRoutes);
    is_known.then(|| state.public_key().map(|key| key.to_string()))
}

/// Writes the annotation.
async fn publish(context: &Context, key: Option<&str>) -> kube::Result<()> {
    let api: Api<Node> = Api::all(context.client.clone());
    let params =
        PatchParams { field_manager: Some(format!("{FIELD_MANAGER}-agent")), ..PatchParams::default() };
    let patch = json!({"metadata": {"annotations": {ANNOTATION: key}}});
    api.patch(&context.node, &params, &Patch::Merge(&patch)).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_has_not_synced_removes_no_key() {
        assert_eq!(key(&State::default()), None);
    }
}
