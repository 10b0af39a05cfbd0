//! What people are told below a pod, when what it has changes.

use knit_crds::states::{AppliedObject, PodNetworkStateStatus};
use knit_kube::Severity;

/// One thing to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) severity: Severity,
    pub(super) reason: String,
    pub(super) note: String,
}

/// What there is to tell about a pod that had one thing and has another.
pub(super) fn between(old: Option<&PodNetworkStateStatus>, new: Option<&PodNetworkStateStatus>) -> Vec<Word> {
    let of = |state: Option<&PodNetworkStateStatus>| state.map_or(Vec::new(), |state| state.objects.clone());
    let (old, new) = (of(old), of(new));
    let mut words = Vec::new();
    for now in &new {
        let before = old.iter().find(|before| is_same(before, now));
        let had = |message: &str| {
            before.is_some_and(|before| before.problems.iter().any(|old| old.message == message))
        };
        for problem in now.problems.iter().filter(|problem| !had(&problem.message)) {
            let note = format!("{}: {}", title(now), problem.message);
            words.push(Word { severity: Severity::Warning, reason: problem.reason.clone(), note });
        }
        let knew = |warning: &String| before.is_some_and(|before| before.warnings.contains(warning));
        for warning in now.warnings.iter().filter(|warning| !knew(warning)) {
            let note = format!("{}: {warning}", title(now));
            words.push(Word { severity: Severity::Warning, reason: "NetworkWarning".to_owned(), note });
        }
        let is_news = before.is_none_or(|before| !before.ready || before.interfaces != now.interfaces);
        if now.ready && is_news {
            let note = format!("{}: {}", title(now), what(now));
            words.push(Word { severity: Severity::Normal, reason: "NetworkConfigured".to_owned(), note });
        }
    }
    for gone in old.iter().filter(|before| !new.iter().any(|now| is_same(before, now))) {
        let note = format!("{}: everything of it was taken back", title(gone));
        words.push(Word { severity: Severity::Normal, reason: "NetworkRemoved".to_owned(), note });
    }
    words
}

fn is_same(one: &AppliedObject, other: &AppliedObject) -> bool {
    one.kind == other.kind && one.name == other.name && one.uid == other.uid
}

fn title(object: &AppliedObject) -> String {
    format!("{}/{}", object.kind.to_lowercase(), object.name)
}

fn what(object: &AppliedObject) -> String {
    let links = object.interfaces.iter().map(|link| match &link.addresses[..] {
        [] => link.name.clone(),
        addresses => format!("{} {}", link.name, addresses.join(",")),
    });
    let items = object.items.iter().map(|item| item.what.clone());
    let all: Vec<String> = links.chain(items).collect();
    all.join("; ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn state(objects: serde_json::Value) -> PodNetworkStateStatus {
        serde_json::from_value(json!({"node": "n", "objects": objects})).unwrap()
    }

    fn told(old: Option<&PodNetworkStateStatus>, new: Option<&PodNetworkStateStatus>) -> Vec<String> {
        between(old, new).into_iter().map(|word| format!("{}: {}", word.reason, word.note)).collect()
    }

    #[test]
    fn each_change_is_told_once() {
        let blocked = state(json!([{"kind": "PodConfig", "name": "a", "ready": false,
            "problems": [{"reason": "NotOwned", "message": "link pcbr0 exists"}]}]));
        let stands = state(json!([{"kind": "PodConfig", "name": "a", "ready": true,
            "interfaces": [{"field": "", "name": "pc01", "addresses": ["10.0.0.2/24"], "ready": true}]}]));
        assert_eq!(told(None, Some(&blocked)), ["NotOwned: podconfig/a: link pcbr0 exists"]);
        assert_eq!(told(Some(&blocked), Some(&blocked)), [""; 0]);
        assert_eq!(told(Some(&blocked), Some(&stands)), ["NetworkConfigured: podconfig/a: pc01 10.0.0.2/24"]);
        assert_eq!(told(Some(&stands), Some(&stands)), [""; 0]);
        let mut warned = stands.clone();
        warned.objects[0].warnings = vec!["node2 holds its block".to_owned()];
        assert_eq!(
            told(Some(&stands), Some(&warned)),
            ["NetworkWarning: podconfig/a: node2 holds its block"]
        );
        assert_eq!(told(Some(&warned), Some(&warned)), [""; 0]);
        assert_eq!(
            told(Some(&stands), None),
            ["NetworkRemoved: podconfig/a: everything of it was taken back"]
        );
    }
}
