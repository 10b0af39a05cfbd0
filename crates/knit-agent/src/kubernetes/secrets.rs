//! Keys from Secrets that pods of this node need.
//!
//! The agent has no permission to read Secrets by default. A Role in the Secret's namespace grants access to exactly that one; each Secret
//! is watched by name. Its content goes to [`ApiSecrets`], and the pods that need it are compared.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use knit_engine::Event;
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{self, Api};
use knit_kube::{WatchUpdate, watch_with_errors};
use tokio::task::JoinHandle;

use super::Context;
use super::state_follower::StateFollower;
use crate::keys::{ApiSecrets, SecretName, SecretState};

/// Changes come in bursts: they are collected this long.
const SETTLE_TIME: Duration = Duration::from_millis(5);
/// Minimum interval between two queries about all pods.
const MIN_QUERY_INTERVAL: Duration = Duration::from_millis(200);

/// The watch of one Secret; aborted on drop.
struct Watch(JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Watches the needed Secrets.
pub(super) async fn run(context: Context, secrets: Arc<ApiSecrets>) {
    let follower = StateFollower::new(&context.handle, SETTLE_TIME);
    let mut state = follower.with_min_interval(MIN_QUERY_INTERVAL);
    let mut watches: BTreeMap<SecretName, Watch> = BTreeMap::new();
    loop {
        if let Ok(needed) = context.handle.query(|node| node.state().required_secrets()).await {
            watches.retain(|name, _| needed.contains_key(name));
            for name in needed.into_keys() {
                watches.entry(name).or_insert_with_key(|name| {
                    // A value from an earlier watch may be outdated.
                    secrets.forget(name);
                    Watch(tokio::spawn(watch(context.clone(), Arc::clone(&secrets), name.clone())))
                });
            }
        }
        if state.changed(pending(), None).await.is_err() {
            return;
        }
    }
}

async fn watch(context: Context, secrets: Arc<ApiSecrets>, name: SecretName) {
    let api: Api<Secret> = Api::namespaced(context.client.clone(), &name.0);
    // By name: access to this one Secret is enough.
    let config = watcher::Config::default().fields(&format!("metadata.name={}", name.1));
    let what = format!("secret {}/{}", name.0, name.1);
    watch_with_errors(&what, api, config, |event| {
        let Some(state) = read(event) else { return };
        if !secrets.set(&name, state) {
            return;
        }
        let (namespace, name) = name.clone();
        context.handle.submit(Event::SecretChanged { namespace, name });
        context.pods_changed.notify_one();
    })
    .await;
}

/// The new state of the Secret; `None` where the last known one stays.
fn read(event: Result<WatchUpdate<Secret>, &watcher::Error>) -> Option<SecretState> {
    Some(match event {
        Ok(WatchUpdate::Listed(secrets)) => secrets.first().map_or(SecretState::Missing, present),
        Ok(WatchUpdate::Applied(secret)) => present(&secret),
        Ok(WatchUpdate::Deleted(_)) => SecretState::Missing,
        Err(
            watcher::Error::InitialListFailed(kube::Error::Api(why))
            | watcher::Error::WatchStartFailed(kube::Error::Api(why)),
        ) if why.code == 403 => SecretState::Forbidden(why.message.clone()),
        Err(_) => return None,
    })
}

fn present(secret: &Secret) -> SecretState {
    let entries = secret.data.iter().flatten();
    SecretState::present(entries.map(|(name, bytes)| (name, bytes.0.as_slice())))
}
