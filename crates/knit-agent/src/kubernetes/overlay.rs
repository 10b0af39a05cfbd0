//! The underlay of overlay networks: the tunnel endpoints of this node, from its links to the loop.
//!
//! With the profile `beside` nodes are watched only once there is an overlay network.

use std::time::Duration;

use knit_engine::Event;
use knit_engine::overlay::TunnelConfig;
use tokio::time::timeout;

use super::{Context, nodes};
use crate::config::{ClusterNetworkConfig, Profile};
use crate::host;

/// How often the node's own links are read again.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);

/// Submits the tunnel endpoints to the loop whenever networks, blocks or this node change.
pub(super) async fn run(context: Context, profile: Profile, config: ClusterNetworkConfig) {
    let mut is_watched = profile == Profile::Primary;
    loop {
        let _ = timeout(RESYNC_INTERVAL, context.overlay_changed.notified()).await;
        let is_needed = context.handle.query(|node| node.state().has_overlay_networks()).await;
        if !is_needed.unwrap_or_default() {
            continue;
        }
        if !std::mem::replace(&mut is_watched, true) {
            tokio::spawn(nodes::watch_nodes(context.clone(), |_| ()));
        }
        let Some(own) = context.network_inputs.own_node() else { continue };
        let endpoints = match host::node_addresses(own.addresses.clone()).await {
            Ok(on_links) => nodes::tunnel_endpoints(&own.addresses, &on_links),
            Err(why) => {
                tracing::warn!(error = %why, "cannot read the node's links; overlay tunnels stay unchanged");
                continue;
            }
        };
        let tunnels = TunnelConfig { reserved_vni: config.vxlan.vni, port: config.vxlan.port, endpoints };
        context.handle.submit(Event::TunnelEndpoints(tunnels));
    }
}
