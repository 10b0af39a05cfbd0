//! Quotas that apply to all nodes together: feeds their claims into the loop and writes this node's claim.
//!
//! [`knit_engine::quota`] decides what is claimed. A claim is written in one request, which the API server rejects if the object has changed
//! since it was read.

use std::time::Duration;

use knit_crds::kinds::{NetworkQuota, UsedCounts};
use knit_engine::quota::{ClaimRequest, KIND, QuotaClaims, QuotaEvent};
use knit_engine::{Event, ObjectKey};
use knit_kube::kube::api::{DynamicObject, Patch, PatchParams};
use knit_kube::kube::{self, Api, ResourceExt};
use knit_kube::{FIELD_MANAGER, WatchUpdate};
use knit_model::quota::ResourceCounts;
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::Context;

/// Delay after a failed request.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Converts a watch event for the engine. Invalid quotas are skipped: the engine does not know them either.
pub(super) fn event(node: &str, seen: WatchUpdate<DynamicObject>) -> Option<QuotaEvent> {
    let seen = seen.filter_map(|found| found.try_parse::<NetworkQuota>().ok())?;
    Some(match seen {
        WatchUpdate::Listed(all) => QuotaEvent::Listed(all.iter().map(|quota| read(node, quota)).collect()),
        WatchUpdate::Applied(quota) => QuotaEvent::Applied(read(node, &quota)),
        WatchUpdate::Deleted(quota) => QuotaEvent::Deleted(key_of(&quota)),
    })
}

/// Writes this node's claim. A failed request may have succeeded, so it is repeated unchanged until it has a result.
pub(super) async fn claim(context: Context, request: ClaimRequest) {
    let mut is_late = false;
    loop {
        let why = match timeout(REQUEST_TIMEOUT, write(&context, &request)).await {
            Ok(Ok(written)) => {
                let written = QuotaEvent::ClaimWritten(read(&context.node, &written));
                context.handle.submit(Event::Quotas(written));
                return;
            }
            // The quota was changed or deleted: the watch delivers it.
            Ok(Err(kube::Error::Api(why))) if [404, 409].contains(&why.code) => return,
            Ok(Err(why)) => why.to_string(),
            Err(_) => format!("no response from the API server within {} s", REQUEST_TIMEOUT.as_secs()),
        };
        if !std::mem::replace(&mut is_late, true) {
            tracing::warn!(quota = %request.key, why, "cannot claim the quota; retrying");
        }
        sleep(RETRY_INTERVAL).await;
        let (key, version) = (request.key.clone(), request.version);
        let is_claiming =
            context.handle.query(move |node| node.state().is_claiming_quota(&key, version)).await;
        if !is_claiming.unwrap_or_default() {
            return;
        }
    }
}

async fn write(context: &Context, request: &ClaimRequest) -> kube::Result<NetworkQuota> {
    let claim = (!request.claim.is_zero()).then(|| UsedCounts::from(request.claim));
    let patch = json!({
        "metadata": {"resourceVersion": request.version.to_string()},
        "status": {"claims": {&*context.node: claim}, "used": UsedCounts::from(request.used)},
    });
    let api: Api<NetworkQuota> = Api::namespaced(context.client.clone(), &request.key.namespace);
    let params =
        PatchParams { field_manager: Some(format!("{FIELD_MANAGER}-agent")), ..PatchParams::default() };
    api.patch_status(&request.key.name, &params, &Patch::Merge(&patch)).await
}

/// Converts a quota for the engine.
fn read(node: &str, quota: &NetworkQuota) -> QuotaClaims {
    let claims = quota.status.as_ref().map(|status| &status.claims);
    let (mut own, mut others) = (ResourceCounts::default(), ResourceCounts::default());
    for (name, claim) in claims.into_iter().flatten() {
        let of = if name == node { &mut own } else { &mut others };
        *of = *of + ResourceCounts::from(*claim);
    }
    QuotaClaims {
        key: key_of(quota),
        uid: quota.uid().unwrap_or_default(),
        version: quota.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default(),
        hard: quota.spec.hard().counts(),
        own,
        others,
    }
}

fn key_of(quota: &NetworkQuota) -> ObjectKey {
    ObjectKey {
        kind: KIND.to_owned(),
        namespace: quota.namespace().unwrap_or_default(),
        name: quota.name_any(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_of_a_node_are_separated_from_those_of_others() {
        let found = json!({
            "metadata": {"name": "most", "namespace": "shop", "uid": "u1", "resourceVersion": "17"},
            "spec": {"interfaces": 9},
            "status": {"claims": {
                "node1": {"interfaces": 2, "addresses": 3, "bridges": 1},
                "node2": {"interfaces": 4, "addresses": 4, "bridges": 1},
                "node3": {"interfaces": 1, "addresses": 1, "bridges": 1},
            }},
        });
        let found: DynamicObject = serde_json::from_value(found).unwrap();
        let Some(QuotaEvent::Applied(claims)) = event("node1", WatchUpdate::Applied(found)) else { panic!() };
        let counts = |interfaces, addresses, bridges| ResourceCounts { interfaces, addresses, bridges };
        let key = ObjectKey { kind: KIND.to_owned(), namespace: "shop".to_owned(), name: "most".to_owned() };
        let expected = QuotaClaims {
            key,
            uid: "u1".to_owned(),
            version: 17,
            hard: counts(9, u64::MAX, u64::MAX),
            own: counts(2, 3, 1),
            others: counts(5, 5, 2),
        };
        assert_eq!(claims, expected);
    }
}
