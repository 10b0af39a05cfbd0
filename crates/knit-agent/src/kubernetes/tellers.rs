//! Those who tell the loop what there is: a watch of each kind, one of the pods, and the container runtime.
//!
//! Until each of them has told everything it knows once, what nobody asks for may only not have been heard of yet. So the
//! loop takes away nothing that it does not know before all of them have.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use knit_kube::Seen;
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::Shared;
use crate::daemon::Handle;

/// One of them.
pub(super) struct Teller {
    handle: Handle,
    silent: Arc<AtomicUsize>,
    is_silent: bool,
}

impl Shared {
    /// For a task that tells, at its beginning.
    pub(super) fn teller(&self) -> Teller {
        Teller { handle: self.handle.clone(), silent: Arc::clone(&self.silent), is_silent: true }
    }
}

impl Teller {
    /// It has told everything it knows. Only the first time matters.
    pub(super) fn told_all(&mut self) {
        if std::mem::take(&mut self.is_silent) && self.silent.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.handle.fed_all();
        }
    }

    /// Watches for as long as it is polled; everything is told with each list.
    pub(super) async fn follow<K>(
        mut self,
        what: &str,
        api: Api<K>,
        config: watcher::Config,
        mut tell: impl FnMut(Seen<K>),
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let tell = |seen: Seen<K>| {
            let is_list = matches!(seen, Seen::Listed(_));
            tell(seen);
            if is_list {
                self.told_all();
            }
        };
        knit_kube::follow(what, api, config, tell).await;
    }
}
