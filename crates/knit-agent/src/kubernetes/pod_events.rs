//! Events of pods: derived from differences between two versions of a pod's status.

use knit_crds::states::{AppliedObject, PodNetworkStateStatus, ProblemState};
use knit_kube::Severity;

/// One Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodEvent {
    pub(super) severity: Severity,
    pub(super) reason: String,
    pub(super) note: String,
}

/// The Events for a change of a pod's status.
pub(super) fn diff(
    old: Option<&PodNetworkStateStatus>,
    new: Option<&PodNetworkStateStatus>,
) -> Vec<PodEvent> {
    let of = |state: Option<&PodNetworkStateStatus>| state.map_or(Vec::new(), |state| state.objects.clone());
    let (old, new) = (of(old), of(new));
    let mut events = Vec::new();
    for now in &new {
        let before = old.iter().find(|before| is_same(before, now));
        let had = |problem: &ProblemState| before.is_some_and(|before| before.problems.contains(problem));
        for problem in now.problems.iter().filter(|problem| !had(problem)) {
            let note = format!("{}: {}", title(now), problem.message);
            events.push(PodEvent { severity: Severity::Warning, reason: problem.reason.clone(), note });
        }
        let had_warning = |warning: &String| before.is_some_and(|before| before.warnings.contains(warning));
        for warning in now.warnings.iter().filter(|warning| !had_warning(warning)) {
            let note = format!("{}: {warning}", title(now));
            events.push(PodEvent { severity: Severity::Warning, reason: "NetworkWarning".to_owned(), note });
        }
        let is_new = before.is_none_or(|before| !before.ready || before.interfaces != now.interfaces);
        if now.ready && is_new {
            let note = format!("{}: {}", title(now), what(now));
            events.push(PodEvent {
                severity: Severity::Normal,
                reason: "NetworkConfigured".to_owned(),
                note,
            });
        }
    }
    for gone in old.iter().filter(|before| !new.iter().any(|now| is_same(before, now))) {
        let note = format!("{}: its configuration was removed", title(gone));
        events.push(PodEvent { severity: Severity::Normal, reason: "NetworkRemoved".to_owned(), note });
    }
    events
}

fn is_same(one: &AppliedObject, other: &AppliedObject) -> bool {
    one.kind == other.kind && one.name == other.name && one.uid == other.uid
}

fn title(object: &AppliedObject) -> String {
    format!("{}/{}", object.kind.to_lowercase(), object.name)
}

fn what(object: &AppliedObject) -> String {
    let links = object.interfaces.iter().map(|link| match &link.interface.addresses[..] {
        [] => link.interface.name.clone(),
        addresses => format!("{} {}", link.interface.name, addresses.join(",")),
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

    fn events(old: Option<&PodNetworkStateStatus>, new: Option<&PodNetworkStateStatus>) -> Vec<String> {
        diff(old, new).into_iter().map(|event| format!("{}: {}", event.reason, event.note)).collect()
    }

    #[test]
    fn each_change_causes_one_event() {
        let blocked = state(json!([{"kind": "PodConfig", "name": "a", "ready": false,
            "problems": [{"reason": "NotOwned", "message": "link pcbr0 exists"}]}]));
        let ready = state(json!([{"kind": "PodConfig", "name": "a", "ready": true,
            "interfaces": [{"field": "", "name": "pc01", "addresses": ["10.0.0.2/24"], "ready": true}]}]));
        assert_eq!(events(None, Some(&blocked)), ["NotOwned: podconfig/a: link pcbr0 exists"]);
        assert_eq!(events(Some(&blocked), Some(&blocked)), [""; 0]);
        assert_eq!(
            events(Some(&blocked), Some(&ready)),
            ["NetworkConfigured: podconfig/a: pc01 10.0.0.2/24"]
        );
        assert_eq!(events(Some(&ready), Some(&ready)), [""; 0]);
        let mut warned = ready.clone();
        warned.objects[0].warnings = vec!["node2 holds its block".to_owned()];
        assert_eq!(
            events(Some(&ready), Some(&warned)),
            ["NetworkWarning: podconfig/a: node2 holds its block"]
        );
        assert_eq!(events(Some(&warned), Some(&warned)), [""; 0]);
        assert_eq!(
            events(Some(&ready), None),
            ["NetworkRemoved: podconfig/a: its configuration was removed"]
        );
    }
}
