//! Pods of other nodes that may leave the cluster by this one: where it is among the nodes of a gateway, the pods of the gateway's
//! namespaces are watched, and of no others.

mod brief;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use brief::Brief;
use knit_engine::Event;
use knit_kube::Seen;
use knit_kube::kube::Api;
use knit_kube::kube::runtime::watcher;
use tokio::task::JoinHandle;

use super::Shared;

/// What is to be watched is looked at again this often: a loop that began anew may know less.
const LOOK: Duration = Duration::from_secs(30);
/// So many pods are listed with one answer: an answer is in memory as a whole.
const PAGE: u32 = 200;

/// Watches the pods of each namespace that leaves by this node, for as long as it does.
pub(super) async fn follow(shared: Shared) {
    let (mut watched, told) = (BTreeMap::<String, JoinHandle<()>>::new(), Told::default());
    loop {
        let _ = tokio::time::timeout(LOOK, shared.gateways.notified()).await;
        let node = shared.node.to_string();
        let Ok(asked) = shared.handle.ask(move |one| one.state().leaving_by(&node)).await else { continue };
        watched.retain(|namespace, task| {
            let stays = asked.contains(namespace) && !task.is_finished();
            if !stays {
                task.abort();
                locked(&told).remove(namespace);
            }
            stays
        });
        for namespace in asked {
            let watch = || tokio::spawn(one(shared.clone(), namespace.clone(), Arc::clone(&told)));
            watched.entry(namespace.clone()).or_insert_with(watch);
        }
        // What it was told before a gateway came, or before it began anew, it does not know.
        locked(&told).iter().for_each(|(namespace, addresses)| feed(&shared, namespace, addresses));
    }
}

/// Watches the pods of one namespace. While the API server is away, what it told last holds.
async fn one(shared: Shared, namespace: String, told: Told) {
    let api: Api<Brief> = Api::namespaced(shared.client.clone(), &namespace);
    let config = watcher::Config::default().page_size(PAGE);
    let mut known = Known::default();
    let what = format!("pods of namespace {namespace}");
    let tell = |seen: Seen<Brief>| {
        known.take_in(seen, &shared.node);
        let addresses = known.addresses();
        let before = locked(&told).insert(namespace.clone(), addresses.clone());
        if before.as_ref() != Some(&addresses) {
            feed(&shared, &namespace, &addresses);
        }
    };
    knit_kube::follow(&what, api, config, tell).await;
}

/// What the loop was told last, by namespace.
type Told = Arc<Mutex<BTreeMap<String, BTreeSet<IpAddr>>>>;

fn locked(told: &Told) -> MutexGuard<'_, BTreeMap<String, BTreeSet<IpAddr>>> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Only the loop knows whether it is news.
fn feed(shared: &Shared, namespace: &str, addresses: &BTreeSet<IpAddr>) {
    let (namespace, addresses) = (namespace.to_owned(), addresses.clone());
    shared.handle.feed(move |_| vec![Event::Elsewhere { namespace, addresses }]);
}

/// The addresses of each pod that has any on another node, by the pod's name.
#[derive(Debug, Default)]
struct Known(BTreeMap<String, Vec<IpAddr>>);

impl Known {
    fn take_in(&mut self, seen: Seen<Brief>, own: &str) {
        match seen {
            Seen::Listed(all) => {
                self.0.clear();
                all.into_iter().for_each(|pod| self.put(pod, own));
            }
            Seen::Applied(pod) => self.put(pod, own),
            Seen::Deleted(pod) => drop(self.0.remove(&pod.name())),
        }
    }

    /// A pod that ended has addresses in its status that are others' by now; this node's own are known better.
    fn put(&mut self, pod: Brief, own: &str) {
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

    fn pod(name: &str, node: &str, phase: &str, host_network: bool) -> Brief {
        let addresses = [format!("10.1.2.{}", name.len()), format!("fd01:2::{}", name.len())];
        let ips: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"nodeName": node, "hostNetwork": host_network, "containers": []},
            "status": {"phase": phase, "podIPs": ips},
        }))
        .unwrap()
    }

    fn shown(known: &Known) -> Vec<String> {
        known.addresses().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_pods_that_run_on_other_nodes_count() {
        let mut known = Known::default();
        let all = vec![
            pod("a", "node2", "Running", false),
            pod("bb", "node1", "Running", false),
            pod("ccc", "node2", "Succeeded", false),
            pod("dddd", "node2", "Running", true),
        ];
        known.take_in(Seen::Listed(all), "node1");
        assert_eq!(shown(&known), ["10.1.2.1", "fd01:2::1"]);
        known.take_in(Seen::Applied(pod("eeeee", "node3", "Pending", false)), "node1");
        assert_eq!(shown(&known), ["10.1.2.1", "10.1.2.5", "fd01:2::1", "fd01:2::5"]);
        // It ends, and another may have its address.
        known.take_in(Seen::Applied(pod("a", "node2", "Failed", false)), "node1");
        assert_eq!(shown(&known), ["10.1.2.5", "fd01:2::5"]);
        known.take_in(Seen::Deleted(pod("eeeee", "node3", "Running", false)), "node1");
        assert_eq!(shown(&known), [""; 0]);
    }
}
