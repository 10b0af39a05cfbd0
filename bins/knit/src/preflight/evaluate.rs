//! Evaluates the facts: whether Knit can be installed, and by the caller.

use knit_crds::crds;
use serde_json::Value;

use super::Verdict::{Fail, Pass, Unknown, Warn};
use super::cluster::{ApiAnswer, ClusterFacts, NAMESPACE};
use super::ranges::{self, Ranges};
use super::{Check, Profile, Report, Verdict, nodes, primary};

/// The oldest API server with the CEL functions for IP addresses and with ValidatingAdmissionPolicies.
const MIN_VERSION: (u32, u32) = (1, 31);
/// The oldest supported API server.
const SUPPORTED_VERSION: (u32, u32) = (1, 33);
const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";

/// Runs all checks of a profile.
pub fn evaluate(facts: &ClusterFacts, profile: Profile) -> Report {
    let ranges = Ranges::find(facts);
    let mut checks = vec![version(&facts.version), permissions(facts), crd_check(&facts.definitions)];
    checks.push(namespace(&facts.namespace));
    checks.push(policies(&facts.policies));
    checks.extend(nodes::checks(facts, profile));
    if profile == Profile::Primary {
        checks.extend(primary::checks(facts));
    }
    checks.extend(ranges::checks(facts, &ranges));
    let ready = checks.iter().all(|check| check.verdict != Fail);
    Report { server: facts.server.clone(), ready, ranges, checks }
}

fn version(version: &Value) -> Check {
    const NAME: &str = "api-server";
    let found = version["gitVersion"].as_str().unwrap_or("unknown").to_owned();
    match nodes::release(&found) {
        Some(number) if number >= SUPPORTED_VERSION => Check::pass(NAME, found),
        Some(number) if number >= MIN_VERSION => {
            let advice =
                format!("Knit supports Kubernetes {}.{} or newer", SUPPORTED_VERSION.0, SUPPORTED_VERSION.1);
            Check::new(NAME, Warn, found, advice)
        }
        Some(_) => {
            let advice = format!(
                "upgrade to Kubernetes {}.{} or newer: older versions have no CEL functions for IP addresses",
                MIN_VERSION.0, MIN_VERSION.1
            );
            Check::new(NAME, Fail, found, advice)
        }
        None => Check::new(NAME, Unknown, found, "cannot parse the version"),
    }
}

/// Whether the caller may install Knit.
fn permissions(facts: &ClusterFacts) -> Check {
    let denied: Vec<&str> = facts
        .permissions
        .iter()
        .filter(|permission| !permission.allowed)
        .map(|permission| permission.resource.as_str())
        .collect();
    if denied.is_empty() {
        return Check::pass("permissions", "you may install Knit");
    }
    let found = format!("you may not create {}", denied.join(", "));
    Check::new("permissions", Fail, found, "install as a cluster administrator")
}

/// Whether the installed CRDs are those of this version.
fn crd_check(definitions: &ApiAnswer) -> Check {
    const NAME: &str = "crds";
    if let ApiAnswer::Denied(message) = definitions {
        return Check::new(
            NAME,
            Unknown,
            message.clone(),
            "requires permission to list CustomResourceDefinitions",
        );
    }
    let ours = crds();
    let mut missing = Vec::new();
    let mut outdated = Vec::new();
    for definition in &ours {
        let name = definition.metadata.name.clone().unwrap_or_default();
        let installed = definitions.items().find(|installed| installed["metadata"]["name"] == name.as_str());
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap_or_default();
        let plural = &definition.spec.names.plural;
        match installed.map(|installed| difference(&installed["spec"]["versions"][0]["schema"], &schema, ""))
        {
            None => missing.push(plural.clone()),
            Some(Some(path)) => {
                outdated.push(format!("{plural} ({})", path.trim_start_matches(".openAPIV3Schema.")))
            }
            Some(None) => {}
        }
    }
    if !outdated.is_empty() {
        let found = format!("{} differ from this version, for example {}", outdated.len(), outdated[0]);
        return Check::new(NAME, Fail, found, "kubectl apply --server-side -f deploy/crds");
    }
    match missing.len() {
        0 => Check::pass(NAME, format!("{} installed, all of this version", ours.len())),
        all if all == ours.len() => Check::pass(NAME, "not installed yet"),
        _ => {
            let found = format!("missing: {}", missing.join(", "));
            Check::new(NAME, Fail, found, "kubectl apply --server-side -f deploy/crds")
        }
    }
}

/// The path of the first field of `ours` that `installed` lacks or that differs. API servers add defaults to `installed`.
fn difference(installed: &Value, ours: &Value, path: &str) -> Option<String> {
    match (installed, ours) {
        (Value::Object(installed), Value::Object(ours)) => ours.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            installed.get(key).map_or(Some(path.clone()), |installed| difference(installed, value, &path))
        }),
        (Value::Array(installed), Value::Array(ours)) if installed.len() == ours.len() => {
            installed.iter().zip(ours).find_map(|(installed, ours)| difference(installed, ours, path))
        }
        // 0 and 0.0 are equal.
        (Value::Number(installed), Value::Number(ours)) if installed.as_f64() == ours.as_f64() => None,
        (installed, ours) => (installed != ours).then(|| path.to_owned()),
    }
}

/// Whether Pod Security Admission allows the pods of the agent.
fn namespace(namespace: &ApiAnswer) -> Check {
    const NAME: &str = "pod-security";
    let value = match namespace {
        ApiAnswer::Found(value) => value,
        ApiAnswer::NotFound => {
            return Check::pass(NAME, format!("namespace {NAMESPACE} does not exist yet"));
        }
        ApiAnswer::Denied(message) => {
            return Check::new(NAME, Unknown, message.clone(), "requires permission to get namespaces");
        }
    };
    let level = value["metadata"]["labels"][POD_SECURITY].as_str();
    match level {
        Some("privileged") => Check::pass(NAME, format!("namespace {NAMESPACE} allows privileged pods")),
        level => {
            let verdict = level.map_or(Warn, |_| Fail);
            let found =
                format!("namespace {NAMESPACE} has {POD_SECURITY}={}", level.unwrap_or("(cluster default)"));
            let advice = format!(
                "the agent uses the host network: kubectl label namespace {NAMESPACE} {POD_SECURITY}=privileged --overwrite"
            );
            Check::new(NAME, verdict, found, advice)
        }
    }
}

fn policies(policies: &ApiAnswer) -> Check {
    const NAME: &str = "admission";
    let verdict: Verdict = match policies {
        ApiAnswer::Denied(message) => {
            return Check::new(
                NAME,
                Unknown,
                message.clone(),
                "requires permission to list ValidatingAdmissionPolicies",
            );
        }
        ApiAnswer::NotFound => {
            let advice = "overlaps with cluster ranges and closed uplinks are rejected on nodes only, not at admission";
            return Check::new(NAME, Warn, "the API server has no ValidatingAdmissionPolicies", advice);
        }
        ApiAnswer::Found(_) => Pass,
    };
    let ours = policies.items().filter_map(|policy| policy["metadata"]["name"].as_str());
    let count = ours.filter(|name| name.starts_with("knit-")).count();
    let found = if count == 0 {
        "policies of Knit are not installed yet".into()
    } else {
        format!("{count} policies of Knit")
    };
    Check {
        name: NAME,
        verdict,
        found,
        advice: (count == 0).then(|| "kubectl apply -k deploy/admission".into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_old_api_server_fails() {
        assert_eq!(version(&json!({"gitVersion": "v1.36.4"})).verdict, Pass);
        assert_eq!(version(&json!({"gitVersion": "v1.33.0-gke.1"})).verdict, Pass);
        assert_eq!(version(&json!({"gitVersion": "v1.32.9"})).verdict, Warn);
        assert_eq!(version(&json!({"gitVersion": "v1.30.9"})).verdict, Fail);
        assert_eq!(version(&json!({})).verdict, Unknown);
    }

    #[test]
    fn a_namespace_that_rejects_the_agent_fails() {
        let with =
            |labels: Value| namespace(&ApiAnswer::Found(json!({"metadata": {"labels": labels}}))).verdict;
        assert_eq!(with(json!({POD_SECURITY: "privileged"})), Pass);
        assert_eq!(with(json!({POD_SECURITY: "restricted"})), Fail);
        assert_eq!(with(json!({})), Warn);
        assert_eq!(namespace(&ApiAnswer::NotFound).verdict, Pass);
    }

    #[test]
    fn crds_of_another_version_fail() {
        let all = |change: fn(&mut Value)| {
            let mut items: Vec<Value> = crds().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
            items.iter_mut().for_each(change);
            crd_check(&ApiAnswer::Found(json!({ "items": items })))
        };
        assert_eq!(all(|_| {}).verdict, Pass);
        // Fields that the API server adds are not a difference; missing fields are.
        assert_eq!(
            all(|crd| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-added"] = true.into())
                .verdict,
            Pass
        );
        let older = all(|crd| {
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] =
                json!({});
        });
        assert_eq!(older.verdict, Fail);
        assert_eq!(crd_check(&ApiAnswer::Found(json!({"items": []}))).verdict, Pass);
        let one = json!({"items": [serde_json::to_value(&crds()[0]).unwrap()]});
        assert!(crd_check(&ApiAnswer::Found(one)).found.starts_with("missing: "));
    }
}
