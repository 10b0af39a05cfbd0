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

    /// Ranges that pods have addresses of do not change under them, nor does their MTU. The ways to other nodes do.
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
        let for_pods = |cluster: &Option<Cluster>| cluster.as_ref().map(Cluster::for_pods);
        if for_pods(&cluster) != for_pods(&self.options.cluster) && is_used {
            let what = "clusterNetwork: it cannot change while pods are on it".to_owned();
            return Err(Error::InUse { what });
        }
        self.set_cluster(cluster.as_ref())?;
        self.options.cluster = cluster;
        Ok(())
    }
}
