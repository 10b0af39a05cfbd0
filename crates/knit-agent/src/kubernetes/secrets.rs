//! Keys from Secrets: those that a pod of this node needs, and no others.
//!
//! The agent has no right to read any Secret by itself. Whoever wants it to use one grants exactly that one, by a Role in its
//! namespace; each is then watched by its name. What it holds goes to [`Fetched`], and the pods that need it are compared.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use knit_engine::{Event, Unit};
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{self, Api};
use knit_kube::{Seen, follow_with};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::Shared;
use crate::keys::{Fetched, Known, SecretName};

/// Changes often come in groups: so long after the first it is looked what is needed.
const GROUP: Duration = Duration::from_millis(5);
/// From one look to the next it is at least this long: the loop is asked about all pods.
const PAUSE: Duration = Duration::from_millis(200);

/// One Secret that is watched, until this is dropped.
struct Watch(JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Watches what is needed for as long as it is polled.
pub(super) async fn follow(shared: Shared, fetched: Arc<Fetched>) {
    let mut version = shared.handle.version();
    let mut watches: BTreeMap<SecretName, Watch> = BTreeMap::new();
    loop {
        if let Ok(needed) = shared.handle.ask(|node| node.state().secrets_needed()).await {
            watches.retain(|name, _| needed.contains_key(name));
            for name in needed.into_keys() {
                watches.entry(name).or_insert_with_key(|name| {
                    // What was known of it before nobody needed it may be old.
                    fetched.forget(name);
                    Watch(tokio::spawn(watch(shared.clone(), Arc::clone(&fetched), name.clone())))
                });
            }
        }
        let rested = Instant::now() + PAUSE;
        if version.changed().await.is_err() {
            return;
        }
        sleep_until(rested.max(Instant::now() + GROUP)).await;
        version.mark_unchanged();
    }
}

async fn watch(shared: Shared, fetched: Arc<Fetched>, name: SecretName) {
    let api: Api<Secret> = Api::namespaced(shared.client.clone(), &name.0);
    // By its name: so that a right to this one Secret is enough.
    let config = watcher::Config::default().fields(&format!("metadata.name={}", name.1));
    let what = format!("secret {}/{}", name.0, name.1);
    follow_with(&what, api, config, |heard| {
        let Some(known) = read(heard) else { return };
        if !fetched.set(&name, known) {
            return;
        }
        let name = name.clone();
        shared.handle.feed(move |state| {
            let units = state.secrets_needed().remove(&name).unwrap_or_default();
            vec![Event::Compare(units.into_iter().map(Unit::Sandbox).collect())]
        });
        shared.tell.notify_one();
    })
    .await;
}

/// What is known by now; nothing, where what was known stays.
fn read(heard: Result<Seen<Secret>, &watcher::Error>) -> Option<Known> {
    Some(match heard {
        Ok(Seen::Listed(secrets)) => secrets.first().map_or(Known::Missing, there),
        Ok(Seen::Applied(secret)) => there(&secret),
        Ok(Seen::Deleted(_)) => Known::Missing,
        Err(
            watcher::Error::InitialListFailed(kube::Error::Api(why))
            | watcher::Error::WatchStartFailed(kube::Error::Api(why)),
        ) if why.code == 403 => Known::Refused(why.message.clone()),
        Err(_) => return None,
    })
}

fn there(secret: &Secret) -> Known {
    let entries = secret.data.iter().flatten();
    Known::there(entries.map(|(name, bytes)| (name, bytes.0.as_slice())))
}
