//! The ranges that the cluster's admin opens to tenants, from the ClusterRanges object.

use ipnet::IpNet;
use knit_engine::Event;
use knit_kube::WatchUpdate;
use knit_kube::kube::Api;
use knit_kube::kube::api::DynamicObject;
use knit_kube::kube::runtime::watcher;
use serde_json::Value;

use super::informers::OptionalKind;
use super::{Context, informers};

const CLUSTER_RANGES: OptionalKind = OptionalKind {
    group: "podnetwork.opdev.io",
    versions: &["v1alpha1"],
    kind: "ClusterRanges",
    plural: "clusterranges",
};

/// Selects the only object of its kind that is valid.
const NAME: &str = "metadata.name=cluster";

/// Watches ClusterRanges. While the API server is unavailable, the last known ranges stay, also across a restart.
pub(super) async fn run(context: Context) {
    let submit = |ranges| context.handle.submit(Event::TenantRanges(ranges));
    let resource = CLUSTER_RANGES.wait(&context.client, || submit(None)).await;
    let submit = |seen| submit(opened(&seen));
    let api: Api<DynamicObject> = Api::all_with(context.client.clone(), &resource);
    let config = watcher::Config::default().fields(NAME);
    informers::watch(&context.handle, "clusterranges", api, config, submit).await;
}

/// The ranges that are open to tenants; `None` if the agent's configuration determines them.
fn opened(seen: &WatchUpdate<DynamicObject>) -> Option<Vec<IpNet>> {
    let object = match seen {
        WatchUpdate::Listed(all) => all.first()?,
        WatchUpdate::Applied(object) => object,
        WatchUpdate::Deleted(_) => return None,
    };
    let ranges = object.data["spec"]["tenants"].as_array()?;
    // What the schema should have rejected opens nothing.
    Some(ranges.iter().filter_map(Value::as_str).filter_map(|range| range.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_object_decides_only_if_it_lists_ranges_of_tenants() {
        let object = |spec: Value| -> DynamicObject {
            serde_json::from_value(json!({"metadata": {"name": "cluster"}, "spec": spec})).unwrap()
        };
        let listed = |spec: Value| {
            let ranges = opened(&WatchUpdate::Applied(object(spec)))?;
            Some(ranges.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(listed(json!({"pods": ["10.244.0.0/16"]})), None);
        assert_eq!(listed(json!({"tenants": []})), Some(Vec::new()));
        assert_eq!(listed(json!({"tenants": ["nonsense"]})), Some(Vec::new()));
        let some = json!({"tenants": ["10.10.0.0/16", "fd00:10::/48"]});
        assert_eq!(listed(some.clone()).unwrap(), ["10.10.0.0/16", "fd00:10::/48"]);
        assert_eq!(opened(&WatchUpdate::Listed(vec![object(some.clone())])).unwrap().len(), 2);
        assert_eq!(opened(&WatchUpdate::Listed(Vec::new())), None);
        assert_eq!(opened(&WatchUpdate::Deleted(object(some))), None);
    }
}
