//! What the tunnels of networks that are one on all nodes lie on: the addresses of nodes, from the API server to the loop.
//!
//! Beside another network nodes are watched only once there is such a network.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::PoisonError;
use std::time::Duration;

use knit_engine::spans::Underlay;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{Shared, nodes};
use crate::config::{ClusterNetworkConfig, Profile};

/// The node's own links are looked at again this often.
const LOOK: Duration = Duration::from_secs(30);

/// Tells the loop where tunnels begin and end, whenever networks, blocks or nodes change.
pub(super) async fn follow(shared: Shared, profile: Profile, config: ClusterNetworkConfig) {
    let mut is_watched = profile == Profile::Primary;
    loop {
        let _ = timeout(LOOK, shared.spans.notified()).await;
        let is_needed = shared.handle.ask(|node| node.state().has_spanning()).await;
        if !is_needed.unwrap_or_default() {
            continue;
        }
        if !std::mem::replace(&mut is_watched, true) {
            tokio::spawn(nodes::watch_addresses(shared.clone()));
        }
        let mut all: BTreeMap<String, Vec<IpAddr>> = {
            let known = shared.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            known.iter().map(|(name, known)| (name.clone(), known.addresses.clone())).collect()
        };
        let Some(own) = all.remove(&*shared.node) else { continue };
        let ends = match spawn_blocking(move || nodes::ends_at(&own)).await {
            Ok(Ok(ends)) => ends,
            Ok(Err(why)) => {
                tracing::warn!(%why, "tunnels of networks stay as they are: the node's links cannot be read");
                continue;
            }
            Err(_) => continue,
        };
        let underlay = Underlay { taken: config.vxlan.vni, port: config.vxlan.port, ends, nodes: all };
        shared.handle.feed(move |state| state.underlay_news(underlay).into_iter().collect());
    }
}
