//! Informers: the watches and the container runtime connection that feed the loop.
//!
//! Until each of them has synced once, an unowned link may belong to an object that is not known yet. So the loop removes no strays before
//! all informers have synced.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use knit_kube::WatchUpdate;
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::Context;
use crate::daemon::Handle;

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
