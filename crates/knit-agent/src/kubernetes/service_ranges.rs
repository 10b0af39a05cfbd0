//! The ranges of Services, from ServiceCIDRs: no network of a tenant may overlap them.

use std::collections::BTreeMap;

use ipnet::IpNet;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use knit_engine::Event;
use knit_kube::WatchUpdate;
use knit_kube::kube::Api;
use knit_kube::kube::runtime::watcher;

use super::{Context, informers};

/// Watches all ServiceCIDRs. While the API server is unavailable, the last known ranges stay, also across a restart.
pub(super) async fn run(context: Context) {
    let mut known = BTreeMap::new();
    let submit = |seen: WatchUpdate<ServiceCIDR>| {
        store(&mut known, seen);
        let mut ranges: Vec<IpNet> = known.values().flatten().copied().collect();
        ranges.sort_unstable();
        context.handle.submit(Event::ServiceRanges(ranges));
    };
    let api: Api<ServiceCIDR> = Api::all(context.client.clone());
    informers::watch(&context.handle, "servicecidrs", api, watcher::Config::default(), submit).await;
}

/// Stores the ranges of each ServiceCIDR by its name. A cluster has a handful of them.
fn store(known: &mut BTreeMap<String, Vec<IpNet>>, seen: WatchUpdate<ServiceCIDR>) {
    let read = |one: ServiceCIDR| {
        let ranges = one.spec.and_then(|spec| spec.cidrs).unwrap_or_default();
        let ranges = ranges.iter().filter_map(|range| range.parse().ok()).collect();
        (one.metadata.name.unwrap_or_default(), ranges)
    };
    match seen {
        WatchUpdate::Listed(all) => *known = all.into_iter().map(read).collect(),
        WatchUpdate::Applied(one) => known.extend([read(one)]),
        WatchUpdate::Deleted(one) => drop(known.remove(&read(one).0)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ranges_follow_the_objects() {
        let object = |name: &str, cidrs: &[&str]| -> ServiceCIDR {
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"cidrs": cidrs}})).unwrap()
        };
        let mut known = BTreeMap::new();
        let mut ranges = |seen| {
            store(&mut known, seen);
            known.values().flatten().map(ToString::to_string).collect::<Vec<_>>()
        };
        let first = object("kubernetes", &["10.96.0.0/16", "fd00:96::/112", "nonsense"]);
        assert_eq!(ranges(WatchUpdate::Listed(vec![first])), ["10.96.0.0/16", "fd00:96::/112"]);
        let more = || object("more", &["10.97.0.0/24"]);
        assert_eq!(ranges(WatchUpdate::Applied(more())).len(), 3);
        assert_eq!(ranges(WatchUpdate::Deleted(more())).len(), 2);
    }
}
