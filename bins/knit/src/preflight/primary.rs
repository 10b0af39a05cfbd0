//! Checks of what Knit as the cluster network needs, and of what it does not implement.

use serde_json::Value;

use super::Check;
use super::Verdict::{Unknown, Warn};
use super::cluster::{ApiAnswer, ClusterFacts};

/// The name of the DaemonSet of kube-proxy.
const KUBE_PROXY: &str = "kube-proxy";

/// The checks of the profile `primary`.
pub fn checks(facts: &ClusterFacts) -> Vec<Check> {
    vec![custom_policies(&facts.custom_policies), kube_proxy(&facts.daemonsets, &facts.kube_proxy_pods)]
}

/// Knit enforces NetworkPolicies, ClusterNetworkPolicies and MultiNetworkPolicies, and no other kind of policy.
fn custom_policies(policies: &[(String, ApiAnswer)]) -> Check {
    const NAME: &str = "network-policy";
    let in_use: Vec<String> = policies
        .iter()
        .map(|(name, answer)| (name, answer.items().count()))
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    if !in_use.is_empty() {
        let advice = "Knit enforces NetworkPolicies, ClusterNetworkPolicies and MultiNetworkPolicies: replace the others, \
                      or keep a network plugin that enforces them and use the profile `beside`";
        return Check::new(NAME, Warn, in_use.join(", "), advice);
    }
    let denied = policies.iter().find_map(|(_, answer)| match answer {
        ApiAnswer::Denied(message) => Some(message.clone()),
        _ => None,
    });
    match denied {
        Some(message) => Check::new(NAME, Unknown, message, "requires permission to list these policies"),
        None => Check::pass(NAME, "no policies of a kind that Knit does not enforce"),
    }
}

/// By default kube-proxy translates Services. It may also run as a process of the node, which the API server does not show.
fn kube_proxy(daemonsets: &ApiAnswer, pods: &ApiAnswer) -> Check {
    const NAME: &str = "kube-proxy";
    const NEEDED: &str = "Services need kube-proxy, also those of DNS and of the API server, or clusterNetwork.serviceProxy: knit";
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
    let advice = format!("{NEEDED}: choose one, unless kube-proxy runs as a process on every node");
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
    fn policies_that_would_not_be_enforced_warn() {
        let kind = |answer: ApiAnswer| ("adminnetworkpolicies.policy.networking.k8s.io".to_owned(), answer);
        let verdict = |all: &[(String, ApiAnswer)]| custom_policies(all).verdict;
        assert_eq!(verdict(&[]), Verdict::Pass);
        assert_eq!(verdict(&[kind(list(json!([])))]), Verdict::Pass);
        let denied = || kind(ApiAnswer::Denied("forbidden".to_owned()));
        assert_eq!(verdict(&[denied()]), Unknown);
        let some = custom_policies(&[denied(), kind(list(json!([{}, {}])))]);
        assert_eq!(
            (some.verdict, some.found.as_str()),
            (Warn, "2 adminnetworkpolicies.policy.networking.k8s.io")
        );
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
