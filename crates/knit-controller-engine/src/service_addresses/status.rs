//! The status and the Events of a Service.

use jiff::Timestamp;
use knit_model::provenance::ObjectRef;
use serde_json::{Value, json};

use super::service::{Assignment, CONDITION, ServiceInfo};
use super::severity;
use crate::state::Name;
use crate::step::Effect;

/// The fields of the status that Knit owns. Those that are left out are removed.
pub(super) fn manifest(name: &Name, info: &ServiceInfo, desired: &Assignment, now: i64) -> Value {
    let mut status = json!({});
    if let Some((is_assigned, reason, message)) = &desired.condition {
        let last = info.condition.as_ref().filter(|last| last.is_assigned == *is_assigned);
        let now = || Timestamp::from_millisecond(now / 1_000 * 1_000).unwrap_or_default().to_string();
        status["conditions"] = json!([{
            "type": CONDITION,
            "status": if *is_assigned { "True" } else { "False" },
            "reason": reason,
            "message": message,
            "lastTransitionTime": last.map_or_else(now, |last| last.since.clone()),
        }]);
    }
    if !desired.addresses.is_empty() {
        let ingress = desired.addresses.iter().map(|address| json!({"ip": address, "ipMode": "VIP"}));
        status["loadBalancer"] = json!({"ingress": ingress.collect::<Vec<_>>()});
    }
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name.1, "namespace": name.0, "resourceVersion": info.version},
        "status": status,
    })
}

/// The Event about a change.
pub(super) fn event(
    name: &Name,
    info: &ServiceInfo,
    before: &Assignment,
    desired: &Assignment,
) -> Option<Effect> {
    let (is_assigned, reason, note) = match &desired.condition {
        Some(condition) => condition.clone(),
        None if before.addresses.is_empty() => return None,
        None => {
            let addresses: Vec<String> = before.addresses.iter().map(ToString::to_string).collect();
            (true, "AddressReleased".to_owned(), format!("{} released", addresses.join(", ")))
        }
    };
    let object = ObjectRef {
        kind: "Service".to_owned(),
        namespace: name.0.clone(),
        name: name.1.clone(),
        uid: info.uid.clone(),
        generation: 0,
    };
    Some(Effect::PublishEvent { object, severity: severity(is_assigned), reason, note })
}
