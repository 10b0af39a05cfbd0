//! The annotation of policies and Namespaces that requests logs of dropped packets.
//!
//! These events come before those of the objects, so that the rules are written once.

use k8s_openapi::api::core::v1::Namespace;
use knit_engine::Event;
use knit_engine::policies::PolicyEvent;
use knit_engine::policies::drop_logs::DropLogEvent;
use knit_kube::WatchUpdate;
use knit_kube::kube::ResourceExt;
use knit_policy::{DropLogTarget, PolicyId, PolicyKind, logs_drops};

use crate::host;

/// Which policies of a kind request logs.
pub(super) fn of_policies<T: ResourceExt>(
    kind: PolicyKind,
    id: impl Fn(&T) -> PolicyId,
    seen: &WatchUpdate<T>,
) -> Event {
    let target = |one: &T| DropLogTarget::Policy(id(one));
    event(match seen {
        WatchUpdate::Listed(all) => {
            DropLogEvent::PoliciesListed(kind, all.iter().filter(|one| requests(*one)).map(id).collect())
        }
        WatchUpdate::Applied(one) => DropLogEvent::Changed { target: target(one), enabled: requests(one) },
        WatchUpdate::Deleted(one) => DropLogEvent::Changed { target: target(one), enabled: false },
    })
}

/// Which namespaces request logs.
pub(in crate::kubernetes) fn of_namespaces(seen: &WatchUpdate<Namespace>) -> Event {
    let target = |one: &Namespace| DropLogTarget::Namespace(one.name_any());
    event(match seen {
        WatchUpdate::Listed(all) => DropLogEvent::NamespacesListed(
            all.iter().filter(|one| requests(*one)).map(ResourceExt::name_any).collect(),
        ),
        WatchUpdate::Applied(one) => DropLogEvent::Changed { target: target(one), enabled: requests(one) },
        WatchUpdate::Deleted(one) => DropLogEvent::Changed { target: target(one), enabled: false },
    })
}

fn event(event: DropLogEvent) -> Event {
    Event::Policies(PolicyEvent::DropLogs(event))
}

fn requests<T: ResourceExt>(object: &T) -> bool {
    logs_drops(object.annotations()) && host::can_log_drops()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::networking::v1::NetworkPolicy;
    use knit_policy::LOG_DROPS_ANNOTATION;
    use serde_json::json;

    use super::*;

    fn object<T: serde::de::DeserializeOwned>(name: &str, value: &str) -> T {
        let annotations = json!({ LOG_DROPS_ANNOTATION: value });
        let metadata = json!({"name": name, "namespace": "shop", "annotations": annotations});
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn drop_logs(event: Event) -> DropLogEvent {
        let Event::Policies(PolicyEvent::DropLogs(event)) = event else { panic!("{event:?}") };
        event
    }

    #[test]
    fn objects_without_the_annotation_request_no_logs() {
        let id = |one: &NetworkPolicy| PolicyId::namespaced("shop", one.name_any());
        let policies =
            |seen: WatchUpdate<NetworkPolicy>| drop_logs(of_policies(PolicyKind::NetworkPolicy, id, &seen));
        let listed = policies(WatchUpdate::Listed(vec![object("a", "false"), object("b", "")]));
        assert_eq!(listed, DropLogEvent::PoliciesListed(PolicyKind::NetworkPolicy, [].into()));
        let target = DropLogTarget::Policy(PolicyId::namespaced("shop", "a"));
        let off = DropLogEvent::Changed { target, enabled: false };
        assert_eq!(policies(WatchUpdate::Applied(object("a", "false"))), off);
        assert_eq!(policies(WatchUpdate::Deleted(object("a", "true"))), off);
        let namespaces = |seen: WatchUpdate<Namespace>| drop_logs(of_namespaces(&seen));
        let target = DropLogTarget::Namespace("lab".to_owned());
        let off = DropLogEvent::Changed { target, enabled: false };
        assert_eq!(namespaces(WatchUpdate::Applied(object("lab", "false"))), off);
        assert_eq!(
            namespaces(WatchUpdate::Listed(vec![object("lab", "no")])),
            DropLogEvent::NamespacesListed([].into())
        );
    }
}
