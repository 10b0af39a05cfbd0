//! The objects of tenants and of the administrator, as the nodes that receive them list them.

use std::collections::{BTreeMap, BTreeSet};

use knit_engine::objects::ObjectEvent;
use knit_engine::{Event, StoredObject};
use serde_json::{Value, json};

use super::Cluster;
use crate::api_server::PlantedFault;
use crate::scenario::{Audience, Tenant, pools, required_extension, stored};

/// All objects, each translated once.
pub(crate) struct Objects {
    /// The network and the quota of each tenant.
    tenants: Vec<Vec<StoredObject>>,
    pools: Vec<StoredObject>,
    /// Objects for all nodes.
    shared: Vec<StoredObject>,
}

impl Objects {
    pub(crate) fn new(tenants: &[Tenant], fault: Option<PlantedFault>) -> Self {
        let of_tenant = |tenant: &Tenant| {
            let quota = tenant.quota.as_ref().map(|quota| stored(&quota.manifest));
            std::iter::once(stored(&tenant.network)).chain(quota).collect()
        };
        let mut pools = pools(tenants);
        if fault == Some(PlantedFault::OpenPools) {
            pools.iter_mut().for_each(|pool| pool["spec"]["namespaces"] = json!([]));
        }
        Self {
            tenants: tenants.iter().map(of_tenant).collect(),
            pools: pools.iter().map(stored).collect(),
            shared: vec![stored(&required_extension())],
        }
    }

    /// The manifests of all objects that do not change.
    pub(crate) fn manifests(&self) -> impl Iterator<Item = &Value> + Clone {
        let networks = self.tenants.iter().filter_map(|objects| objects.first());
        networks.chain(&self.pools).chain(&self.shared).map(|object| &object.manifest)
    }
}

impl Cluster {
    /// The objects that a node receives.
    fn objects_of(&self, node: usize) -> Vec<&StoredObject> {
        let view = &self.nodes[node].view;
        let objects = &self.objects;
        if view.is_full {
            return objects.tenants.iter().flatten().chain(&objects.pools).chain(&objects.shared).collect();
        }
        let mine = view.audiences.iter().flat_map(|audience| match *audience {
            Audience::Tenant(tenant) => &objects.tenants[tenant][..],
            Audience::Pool(pool) => std::slice::from_ref(&objects.pools[pool]),
            Audience::FullView => &[],
        });
        mine.chain(&objects.shared).collect()
    }

    /// A new agent receives its objects one by one.
    pub(crate) fn apply_objects(&mut self, node: usize) {
        let objects: Vec<StoredObject> = self.objects_of(node).into_iter().cloned().collect();
        for object in objects {
            self.handle(node, Event::Objects(Box::new(ObjectEvent::Applied(Box::new(object)))));
        }
    }

    /// A restarted agent lists its objects, kind by kind.
    pub(crate) fn list_objects(&mut self, node: usize) {
        let mut kinds: BTreeMap<String, Vec<StoredObject>> = BTreeMap::new();
        for object in self.objects_of(node) {
            kinds.entry(object.object.kind.clone()).or_default().push(object.clone());
        }
        for (kind, objects) in kinds {
            let listed = ObjectEvent::Listed { kind, objects, rejected: Vec::new() };
            self.handle(node, Event::Objects(Box::new(listed)));
        }
    }

    /// The tenant with this namespace.
    pub(crate) fn tenant_of(&self, namespace: &str) -> Option<usize> {
        let tenant = namespace.strip_prefix("tenant-")?.parse().ok()?;
        (tenant < self.tenants.len()).then_some(tenant)
    }

    /// The tenants that may run on a node.
    pub(crate) fn tenants_on(&self, node: usize) -> Vec<usize> {
        let audiences = self.nodes[node].view.audiences.iter();
        let tenants = audiences.filter_map(|audience| match audience {
            Audience::Tenant(tenant) => Some(*tenant),
            Audience::Pool(_) | Audience::FullView => None,
        });
        tenants.collect::<BTreeSet<usize>>().into_iter().collect()
    }
}
