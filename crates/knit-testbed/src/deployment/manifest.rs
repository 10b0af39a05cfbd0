//! The agent's DaemonSet, with the patches of a deployment as kustomize applies them.

use serde_json::Value;

use super::Deployed;

const BESIDE: &str = include_str!("../../../../deploy/beside/agent.yaml");
const PRIMARY: &str = include_str!("../../../../deploy/primary/agent.patch.yaml");
const ATTACHMENTS: &str = include_str!("../../../../deploy/attachments/agent.patch.yaml");

/// The lists whose entries are merged, with the field that identifies an entry. Other lists are replaced.
const MERGE_KEYS: [(&str, &str); 4] =
    [("containers", "name"), ("env", "name"), ("volumes", "name"), ("volumeMounts", "mountPath")];

/// The pod of the DaemonSet.
pub(super) fn pod_spec(deployed: Deployed) -> Value {
    let patches: &[&str] = match deployed {
        Deployed::Beside => &[],
        Deployed::Primary => &[PRIMARY],
        Deployed::PrimaryWithAttachments => &[PRIMARY, ATTACHMENTS],
    };
    let mut object = daemon_set(BESIDE);
    for patch in patches {
        merge(&mut object, daemon_set(patch));
    }
    object["spec"]["template"]["spec"].take()
}

/// The only DaemonSet of a file.
fn daemon_set(text: &str) -> Value {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).expect("a manifest is YAML");
    documents.into_iter().find(|object| object["kind"] == "DaemonSet").expect("a manifest with a DaemonSet")
}

/// A strategic merge patch.
fn merge(target: &mut Value, patch: Value) {
    let (Value::Object(target), Value::Object(patch)) = (target, patch) else {
        unreachable!("objects are merged")
    };
    for (field, value) in patch {
        let key = MERGE_KEYS.iter().find(|(list, _)| *list == field).map(|(_, key)| *key);
        match (target.get_mut(&field), key, value) {
            (Some(Value::Array(entries)), Some(key), Value::Array(patches)) => {
                patches.into_iter().for_each(|patch| merge_entry(entries, key, patch));
            }
            (Some(known @ Value::Object(_)), _, value @ Value::Object(_)) => merge(known, value),
            (_, _, value) => drop(target.insert(field, value)),
        }
    }
}

fn merge_entry(entries: &mut Vec<Value>, key: &str, patch: Value) {
    match entries.iter_mut().find(|entry| entry[key] == patch[key]) {
        Some(entry) => merge(entry, patch),
        None => entries.push(patch),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn entries_with_a_key_are_merged_and_other_lists_are_replaced() {
        let mut object =
            json!({"containers": [{"name": "a", "args": ["x", "y"], "env": [{"name": "K", "value": "1"}]}]});
        let env = json!([{"name": "K", "value": "2"}, {"name": "L", "value": "3"}]);
        merge(&mut object, json!({"containers": [{"name": "a", "args": ["z"], "env": env}, {"name": "b"}]}));
        assert_eq!(object, json!({"containers": [{"name": "a", "args": ["z"], "env": env}, {"name": "b"}]}));
    }
}
