//! The underlay of overlay networks: the tunnel endpoints of all nodes, from the API server to the loop.
//!
//! With the profile `beside` nodes are watched only once there is an overlay network.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::PoisonError;
use std::time::Duration;

use knit_engine::Event;
use knit_engine::overlay::Underlay;
use tokio::time::timeout;

use super::{Context, nodes};
use crate::config::{ClusterNetworkConfig, Profile};
use crate::host;

/// How often the node's own links are read again.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);

/// Feeds the tunnel endpoints to the loop whenever networks, blocks or nodes change.
pub(super) async fn run(context: Context, profile: Profile, config: ClusterNetworkConfig) {
    let mut is_watched = profile == Profile::Primary;
    loop {
        let _ = timeout(RESYNC_INTERVAL, context.overlay_changed.notified()).await;
        let is_needed = context.handle.query(|node| node.state().has_overlay_networks()).await;
        if !is_needed.unwrap_or_default() {
            continue;
        }
        if !std::mem::replace(&mut is_watched, true) {
            tokio::spawn(nodes::watch_addresses(context.clone()));
        }
        let mut all: BTreeMap<String, Vec<IpAddr>> = {
            let known = context.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            known.iter().map(|(name, known)| (name.clone(), known.addresses.clone())).collect()
        };
        let Some(own) = all.remove(&*context.node) else { continue };
        let endpoints = match host::node_addresses(own.clone()).await {
            Ok(on_links) => nodes::tunnel_endpoints(&own, &on_links),
            Err(why) => {
                tracing::warn!(error = %why, "cannot read the node's links; overlay tunnels stay unchanged");
                continue;
            }
        };
        let underlay =
            Underlay { reserved_vni: config.vxlan.vni, port: config.vxlan.port, endpoints, nodes: all };
        context.handle.submit(Event::Underlay(underlay));
    }
}
