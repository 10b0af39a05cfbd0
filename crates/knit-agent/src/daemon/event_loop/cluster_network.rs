//! Changes of the cluster network.

use knit_engine::Event;

use super::super::ClusterNetworkObject;
use super::EventLoop;
use crate::error::{Error, Result};

impl EventLoop<'_> {
    /// At the start: a network in use stays as recorded, regardless of the configuration. One that is determined from the API server stays
    /// until the API server has answered.
    pub(super) fn restore_cluster_network(&mut self, cluster: Option<ClusterNetworkObject>) -> Result<()> {
        let known = self.node.state().objects.get(&knit_engine::cluster::key()).cloned();
        self.options.cluster = known.map(ClusterNetworkObject);
        if self.options.cluster_network_from_api {
            return Ok(());
        }
        match self.change_cluster_network(cluster) {
            Err(why @ Error::InUse { .. }) => {
                tracing::error!(error = %why, "the cluster network keeps its recorded configuration");
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Applies the cluster network.
    fn apply_cluster_network(&mut self, cluster: Option<&ClusterNetworkObject>) -> Result<()> {
        let known = self.node.state().objects.get(&knit_engine::cluster::key());
        match cluster {
            None if known.is_none() => Ok(()),
            None => self.handle(Event::ObjectDeleted(knit_engine::cluster::key())),
            Some(ClusterNetworkObject(object))
                if known.is_some_and(|known| known.manifest == object.manifest) =>
            {
                Ok(())
            }
            Some(cluster) => self.handle(cluster.applied()),
        }
    }

    /// Ranges with live leases and the MTU of running pods cannot change; other ranges and the routes to other nodes can.
    pub(super) fn change_cluster_network(&mut self, cluster: Option<ClusterNetworkObject>) -> Result<()> {
        let state = self.node.state();
        let is_on_network = |attachment: &knit_engine::Attachment| {
            state.cluster().is_some_and(|network| network.is(&attachment.tenant, &attachment.network))
        };
        let is_used = state.attachments.all().any(is_on_network);
        let cluster = match (cluster, &self.options.cluster) {
            // Running pods keep their MTU: path MTU discovery handles a smaller one.
            (Some(new), Some(old)) if is_used && self.options.cluster_network_from_api => {
                Some(new.with_mtu_of(old))
            }
            (cluster, _) => cluster,
        };
        let manifest =
            |cluster: &Option<ClusterNetworkObject>| cluster.as_ref().map(|one| one.0.manifest.clone());
        if manifest(&cluster) == manifest(&self.options.cluster) {
            return Ok(());
        }
        // Blocks of pools change at any time.
        let is_pooled =
            [&cluster, &self.options.cluster].into_iter().flatten().any(ClusterNetworkObject::is_pooled);
        let for_pods = |cluster: &Option<ClusterNetworkObject>| Some(cluster.as_ref()?.for_pods(is_pooled));
        let (id, ranges) =
            (knit_engine::cluster::network_id(), cluster.as_ref().map(ClusterNetworkObject::ranges));
        let loses_none = || {
            let mut held =
                state.leases.iter().filter(|(network, _, lease)| *network == id && lease.is_live());
            held.all(|(_, address, _)| ranges.iter().flatten().any(|range| range.contains(&address)))
        };
        if (for_pods(&cluster) != for_pods(&self.options.cluster) || !loses_none()) && is_used {
            let what = "clusterNetwork: it cannot change while pods use it".to_owned();
            return Err(Error::InUse { what });
        }
        self.apply_cluster_network(cluster.as_ref())?;
        self.options.cluster = cluster;
        Ok(())
    }
}
