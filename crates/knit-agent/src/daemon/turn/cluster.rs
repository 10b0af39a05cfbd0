//! The cluster's network, as the configuration says.

use knit_engine::Event;

use super::super::Cluster;
use super::Turn;
use crate::error::{Error, Result};

impl Turn<'_> {
    /// At the start: a network that pods are on stays as they know it, whatever the configuration says by now. One that
    /// the API server tells of stays until it does.
    pub(super) fn begin_cluster(&mut self, cluster: Option<Cluster>) -> Result<()> {
        let known = self.node.state().objects.get(&knit_engine::cluster::key()).cloned();
        self.options.cluster = known.map(Cluster);
        if self.options.is_cluster_told {
            return Ok(());
        }
        match self.change_cluster(cluster) {
            Err(why @ Error::InUse { .. }) => {
                tracing::error!(%why, "the cluster network stays as it was");
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Has the cluster's network as the configuration says.
    fn set_cluster(&mut self, cluster: Option<&Cluster>) -> Result<()> {
        let known = self.node.state().objects.get(&knit_engine::cluster::key());
        match cluster {
            None if known.is_none() => Ok(()),
            None => self.hear(Event::ObjectDeleted(knit_engine::cluster::key())),
            Some(Cluster(object)) if known.is_some_and(|known| known.manifest == object.manifest) => Ok(()),
            Some(cluster) => self.hear(cluster.applied()),
        }
    }

    /// Ranges that pods have addresses of stay theirs, and so does their MTU; other ranges come and go, and so do the ways to
    /// other nodes.
    pub(super) fn change_cluster(&mut self, cluster: Option<Cluster>) -> Result<()> {
        let state = self.node.state();
        let on_it = |there: &knit_engine::Attachment| {
            state.cluster().is_some_and(|network| network.is(&there.tenant, &there.network))
        };
        let is_used = state.called.all().any(on_it);
        let cluster = match (cluster, &self.options.cluster) {
            // What the node has room for may have become another. Pods find that out by themselves where it matters.
            (Some(new), Some(old)) if is_used && self.options.is_cluster_told => Some(new.with_mtu_of(old)),
            (cluster, _) => cluster,
        };
        let manifest = |cluster: &Option<Cluster>| cluster.as_ref().map(|one| one.0.manifest.clone());
        if manifest(&cluster) == manifest(&self.options.cluster) {
            return Ok(());
        }
        // Blocks of pools come and go.
        let is_pooled = [&cluster, &self.options.cluster].into_iter().flatten().any(Cluster::is_pooled);
        let for_pods = |cluster: &Option<Cluster>| Some(cluster.as_ref()?.for_pods(is_pooled));
        let (id, ranges) = (knit_engine::cluster::network_id(), cluster.as_ref().map(Cluster::ranges));
        let loses_none = || {
            let mut held =
                state.leases.iter().filter(|(network, _, lease)| *network == id && lease.is_live());
            held.all(|(_, address, _)| ranges.iter().flatten().any(|range| range.contains(&address)))
        };
        if (for_pods(&cluster) != for_pods(&self.options.cluster) || !loses_none()) && is_used {
            let what = "clusterNetwork: it cannot change while pods are on it".to_owned();
            return Err(Error::InUse { what });
        }
        self.set_cluster(cluster.as_ref())?;
        self.options.cluster = cluster;
        Ok(())
    }
}
