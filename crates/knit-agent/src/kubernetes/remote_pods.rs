//! Pods of other nodes whose egress gateway may be this node: for each gateway that lists this node, the pods of its namespaces are
//! watched.

mod pod_summary;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use knit_engine::Event;
use knit_kube::WatchUpdate;
use knit_kube::kube::Api;
use knit_kube::kube::runtime::watcher;
use pod_summary::PodSummary;
use tokio::task::JoinHandle;

use super::{Context, informers};

/// How often the set of watched namespaces is computed again: the loop may have reopened its state.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);
/// Page size of lists: a page is in memory as a whole.
const PAGE_SIZE: u32 = 200;

/// Watches the pods of each namespace whose egress gateway may be this node.
pub(super) async fn run(context: Context) {
    let (mut watched, fed) = (BTreeMap::<String, JoinHandle<()>>::new(), FedAddresses::default());
    loop {
        let _ = tokio::time::timeout(RESYNC_INTERVAL, context.gateways_changed.notified()).await;
        let node = context.node.to_string();
        let Ok(namespaces) = context.handle.query(move |one| one.state().egress_namespaces(&node)).await
        else {
            continue;
        };
        watched.retain(|namespace, task| {
            let stays = namespaces.contains(namespace) && !task.is_finished();
            if !stays {
                task.abort();
                locked(&fed).remove(namespace);
            }
            stays
        });
        for namespace in namespaces {
            let watch =
                || tokio::spawn(watch_namespace(context.clone(), namespace.clone(), Arc::clone(&fed)));
            watched.entry(namespace.clone()).or_insert_with(watch);
        }
        // The loop drops addresses from before a gateway existed, and after it reopened its state.
        locked(&fed).iter().for_each(|(namespace, addresses)| feed(&context, namespace, addresses));
    }
}

/// Watches the pods of one namespace. While the API server is unavailable, the last known addresses stay.
async fn watch_namespace(context: Context, namespace: String, fed: FedAddresses) {
    let api: Api<PodSummary> = Api::namespaced(context.client.clone(), &namespace);
    let config = watcher::Config::default().page_size(PAGE_SIZE);
    let mut known = RemotePods::default();
    let what = format!("pods of namespace {namespace}");
    let handle = |seen: WatchUpdate<PodSummary>| {
        known.handle(seen, &context.node);
        let addresses = known.addresses();
        let before = locked(&fed).insert(namespace.clone(), addresses.clone());
        if before.as_ref() != Some(&addresses) {
            feed(&context, &namespace, &addresses);
        }
    };
    informers::watch(&context.handle, &what, api, config, handle).await;
}

/// The addresses fed to the loop last, by namespace.
type FedAddresses = Arc<Mutex<BTreeMap<String, BTreeSet<IpAddr>>>>;

fn locked(fed: &FedAddresses) -> MutexGuard<'_, BTreeMap<String, BTreeSet<IpAddr>>> {
    fed.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Feeds the addresses unconditionally: only the loop knows whether they changed.
fn feed(context: &Context, namespace: &str, addresses: &BTreeSet<IpAddr>) {
    let (namespace, addresses) = (namespace.to_owned(), addresses.clone());
    context.handle.submit(Event::RemotePods { namespace, addresses });
}

/// The addresses of each pod on other nodes, by the pod's name.
#[derive(Debug, Default)]
struct RemotePods(BTreeMap<String, Vec<IpAddr>>);

impl RemotePods {
    fn handle(&mut self, seen: WatchUpdate<PodSummary>, own: &str) {
        match seen {
            WatchUpdate::Listed(all) => {
                self.0.clear();
                all.into_iter().for_each(|pod| self.put(pod, own));
            }
            WatchUpdate::Applied(pod) => self.put(pod, own),
            WatchUpdate::Deleted(pod) => drop(self.0.remove(&pod.name())),
        }
    }

    /// Addresses in the status of an ended pod may belong to others by now; pods of this node are known from the engine.
    fn put(&mut self, pod: PodSummary, own: &str) {
        match pod.addresses_unless_on(own) {
            Some(addresses) => self.0.insert(pod.name(), addresses),
            None => self.0.remove(&pod.name()),
        };
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        self.0.values().flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: &str, phase: &str, host_network: bool) -> PodSummary {
        let addresses = [format!("10.1.2.{}", name.len()), format!("fd01:2::{}", name.len())];
        let ips: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"nodeName": node, "hostNetwork": host_network, "containers": []},
            "status": {"phase": phase, "podIPs": ips},
        }))
        .unwrap()
    }

    fn shown(known: &RemotePods) -> Vec<String> {
        known.addresses().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_live_pods_of_other_nodes_count() {
        let mut known = RemotePods::default();
        let all = vec![
            pod("a", "node2", "Running", false),
            pod("bb", "node1", "Running", false),
            pod("ccc", "node2", "Succeeded", false),
            pod("dddd", "node2", "Running", true),
        ];
        known.handle(WatchUpdate::Listed(all), "node1");
        assert_eq!(shown(&known), ["10.1.2.1", "fd01:2::1"]);
        known.handle(WatchUpdate::Applied(pod("eeeee", "node3", "Pending", false)), "node1");
        assert_eq!(shown(&known), ["10.1.2.1", "10.1.2.5", "fd01:2::1", "fd01:2::5"]);
        // It ends, and its address may be reused.
        known.handle(WatchUpdate::Applied(pod("a", "node2", "Failed", false)), "node1");
        assert_eq!(shown(&known), ["10.1.2.5", "fd01:2::5"]);
        known.handle(WatchUpdate::Deleted(pod("eeeee", "node3", "Running", false)), "node1");
        assert_eq!(shown(&known), [""; 0]);
    }
}
