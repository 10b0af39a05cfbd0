//! Checks of what Knit as the cluster network needs, and of what it does not implement.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Check;
use super::Verdict::{Pass, Unknown, Warn};
use super::cluster::{ApiAnswer, ClusterFacts};

/// The name of the DaemonSet of kube-proxy.
const KUBE_PROXY: &str = "kube-proxy";

/// The checks of the profile `primary`.
pub fn checks(facts: &ClusterFacts) -> Vec<Check> {
    vec![network_policies(&facts.network_policies), kube_proxy(&facts.daemonsets, &facts.kube_proxy_pods)]
}

/// Knit does not enforce NetworkPolicies.
fn network_policies(policies: &ApiAnswer) -> Check {
    const NAME: &str = "network-policy";
    const NOT_ENFORCED: &str = "Knit does not enforce NetworkPolicy yet: every pod can reach every other pod";
    if let ApiAnswer::Denied(message) = policies {
        let advice = format!("{NOT_ENFORCED}; the check requires permission to list NetworkPolicies");
        return Check::new(NAME, Unknown, message.clone(), advice);
    }
    let namespaces: BTreeSet<&str> =
        policies.items().filter_map(|policy| policy["metadata"]["namespace"].as_str()).collect();
    match policies.items().count() {
        0 => Check::new(NAME, Pass, "the cluster has no NetworkPolicies", NOT_ENFORCED),
        count => {
            let found = format!("{count} NetworkPolicies in {} namespaces", namespaces.len());
            let advice = format!(
                "{NOT_ENFORCED}; to enforce them, keep a network plugin that does and use the profile `beside`"
            );
            Check::new(NAME, Warn, found, advice)
        }
    }
}

/// Knit does not implement Services: kube-proxy does. It may also run as a process of the node, which the API server
/// does not show.
fn kube_proxy(daemonsets: &ApiAnswer, pods: &ApiAnswer) -> Check {
    const NAME: &str = "kube-proxy";
    const NEEDED: &str = "Services need kube-proxy, also those of DNS and of the API server";
    let number = |set: &Value, field: &str| set["status"][field].as_u64().unwrap_or_default();
    if let Some(set) = daemonsets.items().find(|set| set["metadata"]["name"] == KUBE_PROXY) {
        let (ready, desired) = (number(set, "numberReady"), number(set, "desiredNumberScheduled"));
        let found = format!("DaemonSet {KUBE_PROXY}: {ready} of {desired} pods ready");
        if desired > 0 && ready == desired {
            return Check::pass(NAME, found);
        }
        return Check::new(NAME, Warn, found, NEEDED);
    }
    let count = pods.items().count();
    if count > 0 {
        return Check::pass(NAME, format!("{count} static pods"));
    }
    if let ApiAnswer::Denied(message) = daemonsets {
        return Check::new(NAME, Unknown, message.clone(), "requires permission to list DaemonSets");
    }
    if let ApiAnswer::Denied(message) = pods {
        return Check::new(NAME, Unknown, message.clone(), "requires permission to list pods");
    }
    let advice = format!("{NEEDED}: install it, unless it runs as a process on every node");
    Check::new(NAME, Warn, "neither a DaemonSet nor a pod of kube-proxy", advice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::preflight::Verdict;

    fn list(items: Value) -> ApiAnswer {
        ApiAnswer::Found(json!({ "items": items }))
    }

    #[test]
    fn network_policies_warn_and_their_lack_is_stated_in_general() {
        let policy = |namespace: &str| json!({"metadata": {"namespace": namespace, "name": "deny"}});
        let none = network_policies(&list(json!([])));
        assert_eq!(none.verdict, Verdict::Pass);
        assert!(none.advice.unwrap().contains("does not enforce NetworkPolicy"));
        let some = network_policies(&list(json!([policy("a"), policy("a"), policy("b")])));
        assert_eq!((some.verdict, some.found.as_str()), (Warn, "3 NetworkPolicies in 2 namespaces"));
        let denied = network_policies(&ApiAnswer::Denied("forbidden".to_owned()));
        assert_eq!(denied.verdict, Unknown);
        assert!(denied.advice.unwrap().contains("does not enforce NetworkPolicy"));
    }

    #[test]
    fn a_cluster_without_kube_proxy_warns() {
        let none = || list(json!([]));
        let set = |ready: u64| {
            let status = json!({"numberReady": ready, "desiredNumberScheduled": 2});
            list(json!([{"metadata": {"name": "kube-proxy", "namespace": "kube-system"}, "status": status}]))
        };
        assert_eq!(kube_proxy(&none(), &none()).verdict, Warn);
        assert_eq!(kube_proxy(&set(2), &none()).verdict, Verdict::Pass);
        assert_eq!(kube_proxy(&set(1), &none()).verdict, Warn, "a pod of it is not ready");
        assert_eq!(kube_proxy(&set(0), &none()).verdict, Warn);
        let static_pod = || list(json!([{"metadata": {"name": "kube-proxy-node1"}}]));
        assert_eq!(kube_proxy(&none(), &static_pod()).verdict, Verdict::Pass);
        let denied = || ApiAnswer::Denied("forbidden".to_owned());
        assert_eq!(kube_proxy(&denied(), &none()).verdict, Unknown);
        assert_eq!(kube_proxy(&denied(), &static_pod()).verdict, Verdict::Pass);
    }
}
