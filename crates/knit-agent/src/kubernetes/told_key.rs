//! Tells the other nodes the public key of this one's encrypted ways, by an annotation of the own node. A node that has none
//! tells none: the others then send nothing there.
//!
//! What the node tells is compared with what is so whenever either changes, as with [`super::room`].

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use knit_engine::{State, Unit};
use knit_kube::MANAGER;
use knit_kube::kube::api::{Patch, PatchParams};
use knit_kube::kube::{self, Api};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

use super::Shared;

/// The annotation of a node that has encrypted ways.
pub(super) const ANNOTATION: &str = "knit.opdev.io/wireguard-public-key";

/// Changes often come in groups: so long after the first it is looked what is so.
const GROUP: Duration = Duration::from_millis(100);
/// What could not be written is tried again after this long.
const AGAIN: Duration = Duration::from_secs(1);

/// Has the node tell its key, for as long as it is polled.
pub(super) async fn follow(shared: Shared, mut told: watch::Receiver<Option<Option<String>>>) {
    let mut version = shared.handle.version();
    loop {
        let heard = told.borrow_and_update().clone();
        let known = shared.handle.ask(|node| key(node.state())).await.ok().flatten();
        let mut again = None;
        if let (Some(heard), Some(key)) = (heard, known)
            && heard != key
        {
            again = Some(AGAIN);
            match tell(&shared, key.as_deref()).await {
                Ok(()) => tracing::info!(key, "the node tells the others its WireGuard key"),
                Err(why) => {
                    tracing::warn!(%why, "the node does not tell its WireGuard key; it is tried again")
                }
            }
        }
        tokio::select! {
            changed = version.changed() => if changed.is_err() { return },
            changed = told.changed() => if changed.is_err() { return },
            () = sleep(again.unwrap_or_default()), if again.is_some() => {}
        }
        sleep(GROUP).await;
        version.mark_unchanged();
    }
}

/// The key to be told, or that there is none; `None` while that is not known.
fn key(state: &State) -> Option<Option<String>> {
    let is_known = state.cluster().is_some() && !state.is_pending(&Unit::NodeRoutes);
    is_known.then(|| state.public_key().map(|key| key.to_string()))
}

/// Writes it.
async fn tell(shared: &Shared, key: Option<&str>) -> kube::Result<()> {
    let api: Api<Node> = Api::all(shared.client.clone());
    let params = PatchParams { field_manager: Some(format!("{MANAGER}-agent")), ..PatchParams::default() };
    let patch = json!({"metadata": {"annotations": {ANNOTATION: key}}});
    api.patch(&shared.node, &params, &Patch::Merge(&patch)).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_knows_nothing_yet_takes_no_key_away() {
        assert_eq!(key(&State::default()), None);
    }
}
