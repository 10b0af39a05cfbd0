//! MultiNetworkPolicies (`k8s.cni.cncf.io`): NetworkPolicies about additional networks.

use serde_json::Value;

use crate::network_policy;
use crate::policy::{Policy, PolicyId};

/// The API group.
pub const GROUP: &str = "k8s.cni.cncf.io";
/// The API versions, the newest first. Their specifications are read alike.
pub const VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];
/// The kind.
pub const KIND: &str = "MultiNetworkPolicy";
/// Its plural name.
pub const PLURAL: &str = "multi-networkpolicies";
/// The annotation with the networks that a policy is about, separated by commas.
pub const POLICY_FOR: &str = "k8s.v1.cni.cncf.io/policy-for";

const DEFINITION: &str = "NetworkAttachmentDefinition";

/// Translates a MultiNetworkPolicy: the value of [`POLICY_FOR`], and its `spec`. A specification that cannot be read allows
/// nothing; the warnings say why.
pub fn translate(id: PolicyId, policy_for: Option<&str>, spec: &Value) -> (Policy, Vec<String>) {
    let names = policy_for.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty());
    let (networks, unread): (Vec<_>, Vec<_>) =
        names.map(|name| network(name, &id.namespace)).partition(Result::is_ok);
    let networks: std::collections::BTreeSet<String> = networks.into_iter().flatten().collect();
    let (policy, warning) = network_policy::translate(id, spec);
    let mut warnings: Vec<String> = warning.into_iter().collect();
    warnings.extend(unread.into_iter().filter_map(Result::err).map(|why| format!("{}: {why}", policy.id)));
    if networks.is_empty() {
        warnings.push(format!("{} is about no network: its annotation {POLICY_FOR} names none", policy.id));
    }
    (Policy { networks: Some(networks), ..policy }, warnings)
}

/// A network as `Kind/namespace/name`. Without a kind, which starts with a capital letter, it is a
/// NetworkAttachmentDefinition; without a namespace, it is in the policy's.
fn network(text: &str, own: &str) -> Result<String, String> {
    let parts: Vec<&str> = text.split('/').collect();
    let is_kind = |part: &str| part.starts_with(|first: char| first.is_ascii_uppercase());
    let parts = match parts[..] {
        [kind, namespace, name] if is_kind(kind) => [kind, namespace, name],
        [kind, name] if is_kind(kind) => [kind, own, name],
        [namespace, name] => [DEFINITION, namespace, name],
        [name] if !is_kind(name) => [DEFINITION, own, name],
        _ => ["", "", ""],
    };
    if parts.contains(&"") {
        return Err(format!("`{text}` in the annotation {POLICY_FOR} is not a network"));
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn networks(policy_for: Option<&str>) -> (Vec<String>, usize) {
        let id = PolicyId::multi_network("shop", "p");
        let (policy, warnings) = translate(id, policy_for, &json!({"podSelector": {}}));
        (policy.networks.unwrap().into_iter().collect(), warnings.len())
    }

    #[test]
    fn a_network_is_a_definition_unless_it_has_a_kind() {
        let (all, warnings) = networks(Some("blue, other/red,VirtualNetwork/green,Macvlan/other/lan"));
        let expected = [
            "Macvlan/other/lan",
            "NetworkAttachmentDefinition/other/red",
            "NetworkAttachmentDefinition/shop/blue",
            "VirtualNetwork/shop/green",
        ];
        assert_eq!((all.iter().map(String::as_str).collect::<Vec<_>>(), warnings), (expected.to_vec(), 0));
    }

    #[test]
    fn a_policy_without_networks_is_about_none_and_warns() {
        assert_eq!(networks(None), (Vec::new(), 1));
        assert_eq!(networks(Some(" ,")), (Vec::new(), 1));
        assert_eq!(networks(Some("a/b/c/d, Bridge")), (Vec::new(), 3));
        assert_eq!(networks(Some("a//c,blue")), (vec![format!("{DEFINITION}/shop/blue")], 1));
    }

    #[test]
    fn a_specification_that_cannot_be_read_allows_nothing() {
        let id = PolicyId::multi_network("shop", "p");
        let spec = json!({"podSelector": {}, "ingress": [{"from": [{}]}]});
        let (policy, warnings) = translate(id, Some("blue"), &spec);
        assert_eq!((policy.ingress, policy.egress), (Some(Vec::new()), Some(Vec::new())));
        assert_eq!((policy.networks.unwrap().len(), warnings.len()), (1, 1));
    }
}
