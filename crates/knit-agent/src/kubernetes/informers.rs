//! Informers: the watches and the container runtime connection that feed the loop.
//!
//! Until each of them has synced once, an unowned link may belong to an object that is not known yet. So the loop removes no strays before
//! all informers have synced.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use knit_kube::WatchUpdate;
use knit_kube::kube::core::ApiResource;
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{self, Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::Context;
use crate::daemon::Handle;

/// How often an API server without a CRD is checked for it.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(10);
/// Delay after a failed request.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// A kind whose CRD may not be installed.
pub(super) struct OptionalKind {
    pub(super) group: &'static str,
    /// The versions that Knit reads, the newest first.
    pub(super) versions: &'static [&'static str],
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
}

impl OptionalKind {
    /// Waits until it is installed. `absent` is called each time it is not.
    pub(super) async fn wait(&self, client: &Client, mut absent: impl FnMut()) -> ApiResource {
        loop {
            match self.discover(client).await {
                Ok(Some(resource)) => return resource,
                Ok(None) => {
                    absent();
                    sleep(DISCOVERY_INTERVAL).await;
                }
                Err(why) => {
                    tracing::debug!(error = %why, kind = self.kind, "cannot discover the CRD");
                    sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }

    async fn discover(&self, client: &Client) -> kube::Result<Option<ApiResource>> {
        for version in self.versions {
            let api_version = format!("{}/{version}", self.group);
            let found = match client.list_api_group_resources(&api_version).await {
                Ok(all) => all.resources.iter().any(|one| one.name == self.plural),
                Err(kube::Error::Api(why)) if why.code == 404 => false,
                Err(why) => return Err(why),
            };
            if found {
                return Ok(Some(ApiResource {
                    group: self.group.to_owned(),
                    version: (*version).to_owned(),
                    api_version,
                    kind: self.kind.to_owned(),
                    plural: self.plural.to_owned(),
                }));
            }
        }
        Ok(None)
    }
}

/// One source of objects or pods.
pub(super) struct Informer {
    handle: Handle,
    unsynced: Arc<AtomicUsize>,
    is_unsynced: bool,
}

impl Context {
    /// A new informer.
    pub(super) fn informer(&self) -> Informer {
        Informer { handle: self.handle.clone(), unsynced: Arc::clone(&self.unsynced), is_unsynced: true }
    }
}

impl Informer {
    /// Marks this informer as synced. Only the first call counts.
    pub(super) fn mark_synced(&mut self) {
        if std::mem::take(&mut self.is_unsynced) && self.unsynced.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.handle.mark_synced();
        }
    }

    /// Watches a resource. The informer has synced with the first list.
    pub(super) async fn run<K>(
        mut self,
        what: &str,
        api: Api<K>,
        config: watcher::Config,
        mut handle: impl FnMut(WatchUpdate<K>),
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let loop_handle = self.handle.clone();
        let handle = |seen: WatchUpdate<K>| {
            let is_list = matches!(seen, WatchUpdate::Listed(_));
            handle(seen);
            if is_list {
                self.mark_synced();
            }
        };
        watch(&loop_handle, what, api, config, handle).await;
    }
}

/// Watches a resource. It is listed again when the loop has reopened its state, which does not contain what was watched.
pub(super) async fn watch<K>(
    loop_handle: &Handle,
    what: &str,
    api: Api<K>,
    config: watcher::Config,
    mut handle: impl FnMut(WatchUpdate<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut reopened = loop_handle.reopened();
    loop {
        reopened.mark_unchanged();
        tokio::select! {
            () = knit_kube::watch(what, api.clone(), config.clone(), &mut handle) => return,
            changed = reopened.changed() => if changed.is_err() { return },
        }
    }
}
