//! What follows from the answers: whether Knit can be installed here, and by whom.

use knit_crds::crds;
use serde_json::Value;

use super::Verdict::{Fine, Note, Unknown, Wrong};
use super::look::{NAMESPACE, Said, Seen};
use super::ranges::{self, Ranges};
use super::{Check, Report, Verdict, nodes};

/// The oldest API server whose rules know addresses and ranges, and that has admission policies.
const OLDEST: (u32, u32) = (1, 31);
/// The oldest one that Knit is made for.
const MEANT: (u32, u32) = (1, 33);
const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";

/// Everything that was found, and what to do about it.
pub fn judge(seen: &Seen) -> Report {
    let ranges = Ranges::find(seen);
    let mut checks = vec![version(&seen.version), rights(seen), kinds(&seen.definitions)];
    checks.push(namespace(&seen.namespace));
    checks.push(policies(&seen.policies));
    checks.extend(nodes::checks(seen));
    checks.extend(ranges::checks(seen, &ranges));
    let ready = checks.iter().all(|check| check.verdict != Wrong);
    Report { server: seen.server.clone(), ready, ranges, checks }
}

fn version(version: &Value) -> Check {
    const NAME: &str = "api-server";
    let found = version["gitVersion"].as_str().unwrap_or("unknown").to_owned();
    match nodes::release(&found) {
        Some(number) if number >= MEANT => Check::fine(NAME, found),
        Some(number) if number >= OLDEST => {
            let advice = format!("Knit is made for Kubernetes {}.{} or newer", MEANT.0, MEANT.1);
            Check::new(NAME, Note, found, advice)
        }
        Some(_) => {
            let advice = format!(
                "Knit's kinds need Kubernetes {}.{} or newer: older ones have no rules for addresses",
                OLDEST.0, OLDEST.1
            );
            Check::new(NAME, Wrong, found, advice)
        }
        None => Check::new(NAME, Unknown, found, "the version says no number"),
    }
}

/// Whether the caller may install Knit.
fn rights(seen: &Seen) -> Check {
    let denied: Vec<&str> =
        seen.rights.iter().filter(|right| !right.allowed).map(|right| right.resource.as_str()).collect();
    if denied.is_empty() {
        return Check::fine("rights", "you may install Knit");
    }
    let found = format!("you may not create {}", denied.join(", "));
    Check::new("rights", Wrong, found, "install as an admin of the cluster")
}

/// Whether the kinds are those of this version.
fn kinds(definitions: &Said) -> Check {
    const NAME: &str = "kinds";
    if let Said::Refused(why) = definitions {
        return Check::new(
            NAME,
            Unknown,
            why.clone(),
            "ask as someone who may list CustomResourceDefinitions",
        );
    }
    let ours = crds();
    let mut missing = Vec::new();
    let mut differ = Vec::new();
    for definition in &ours {
        let name = definition.metadata.name.clone().unwrap_or_default();
        let there = definitions.items().find(|there| there["metadata"]["name"] == name.as_str());
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap_or_default();
        let plural = &definition.spec.names.plural;
        match there.map(|there| difference(&there["spec"]["versions"][0]["schema"], &schema, "")) {
            None => missing.push(plural.clone()),
            Some(Some(path)) => {
                differ.push(format!("{plural} ({})", path.trim_start_matches(".openAPIV3Schema.")))
            }
            Some(None) => {}
        }
    }
    if !differ.is_empty() {
        let found = format!("{} of another version, such as {}", differ.len(), differ[0]);
        return Check::new(NAME, Wrong, found, "kubectl apply --server-side -f deploy/crds");
    }
    match missing.len() {
        0 => Check::fine(NAME, format!("{} are there, all of this version", ours.len())),
        all if all == ours.len() => Check::fine(NAME, "none yet: installing brings them"),
        _ => {
            let found = format!("missing: {}", missing.join(", "));
            Check::new(NAME, Wrong, found, "kubectl apply --server-side -f deploy/crds")
        }
    }
}

/// The first thing that `ours` says and `there` does not, by its path. An API server adds what has a default.
fn difference(there: &Value, ours: &Value, path: &str) -> Option<String> {
    match (there, ours) {
        (Value::Object(there), Value::Object(ours)) => ours.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            there.get(key).map_or(Some(path.clone()), |there| difference(there, value, &path))
        }),
        (Value::Array(there), Value::Array(ours)) if there.len() == ours.len() => {
            there.iter().zip(ours).find_map(|(there, ours)| difference(there, ours, path))
        }
        // 0 and 0.0 are the same bound.
        (Value::Number(there), Value::Number(ours)) if there.as_f64() == ours.as_f64() => None,
        (there, ours) => (there != ours).then(|| path.to_owned()),
    }
}

/// Whether the agent's pods would be let in.
fn namespace(namespace: &Said) -> Check {
    const NAME: &str = "pod-security";
    let value = match namespace {
        Said::Here(value) => value,
        Said::Absent => {
            return Check::fine(
                NAME,
                format!("no namespace {NAMESPACE} yet: installing makes it as it must be"),
            );
        }
        Said::Refused(why) => {
            return Check::new(NAME, Unknown, why.clone(), "ask as someone who may get namespaces");
        }
    };
    let level = value["metadata"]["labels"][POD_SECURITY].as_str();
    match level {
        Some("privileged") => Check::fine(NAME, format!("namespace {NAMESPACE} takes the agent's pods")),
        level => {
            let verdict = level.map_or(Note, |_| Wrong);
            let found = format!(
                "namespace {NAMESPACE} has {POD_SECURITY}={}",
                level.unwrap_or("(the cluster's default)")
            );
            let advice = format!(
                "the agent works in the node's network: kubectl label namespace {NAMESPACE} {POD_SECURITY}=privileged --overwrite"
            );
            Check::new(NAME, verdict, found, advice)
        }
    }
}

fn policies(policies: &Said) -> Check {
    const NAME: &str = "admission";
    let verdict: Verdict = match policies {
        Said::Refused(why) => {
            return Check::new(
                NAME,
                Unknown,
                why.clone(),
                "ask as someone who may list ValidatingAdmissionPolicies",
            );
        }
        Said::Absent => {
            let advice = "ranges of the cluster and closed uplinks are refused on nodes only, not when an object is written";
            return Check::new(NAME, Note, "the API server has no ValidatingAdmissionPolicies", advice);
        }
        Said::Here(_) => Fine,
    };
    let ours = policies.items().filter_map(|policy| policy["metadata"]["name"].as_str());
    let count = ours.filter(|name| name.starts_with("knit-")).count();
    let found =
        if count == 0 { "no policies of Knit's yet".into() } else { format!("{count} policies of Knit's") };
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
    fn an_old_api_server_is_named_with_what_it_lacks() {
        assert_eq!(version(&json!({"gitVersion": "v1.36.4"})).verdict, Fine);
        assert_eq!(version(&json!({"gitVersion": "v1.33.0-gke.1"})).verdict, Fine);
        assert_eq!(version(&json!({"gitVersion": "v1.32.9"})).verdict, Note);
        assert_eq!(version(&json!({"gitVersion": "v1.30.9"})).verdict, Wrong);
        assert_eq!(version(&json!({})).verdict, Unknown);
    }

    #[test]
    fn a_namespace_that_refuses_the_agent_is_wrong() {
        let with = |labels: Value| namespace(&Said::Here(json!({"metadata": {"labels": labels}}))).verdict;
        assert_eq!(with(json!({POD_SECURITY: "privileged"})), Fine);
        assert_eq!(with(json!({POD_SECURITY: "restricted"})), Wrong);
        assert_eq!(with(json!({})), Note);
        assert_eq!(namespace(&Said::Absent).verdict, Fine);
    }

    #[test]
    fn kinds_of_another_version_are_told_from_those_of_this_one() {
        let all = |change: fn(&mut Value)| {
            let mut items: Vec<Value> = crds().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
            items.iter_mut().for_each(change);
            kinds(&Said::Here(json!({ "items": items })))
        };
        assert_eq!(all(|_| {}).verdict, Fine);
        // What an API server adds is no other version; what is not there is.
        assert_eq!(
            all(|crd| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-added"] = true.into())
                .verdict,
            Fine
        );
        let older = all(|crd| {
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] =
                json!({});
        });
        assert_eq!(older.verdict, Wrong);
        assert_eq!(kinds(&Said::Here(json!({"items": []}))).verdict, Fine);
        let one = json!({"items": [serde_json::to_value(&crds()[0]).unwrap()]});
        assert!(kinds(&Said::Here(one)).found.starts_with("missing: "));
    }
}
