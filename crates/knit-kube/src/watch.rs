//! Watches.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::StreamExt as _;
use knit_crds::WatchUpdate;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

/// Delay before a new list where the API server cannot continue a watch.
const RELIST_DELAY: Duration = Duration::from_secs(1);

/// Watches while it is polled. Failures are retried with backoff and not reported.
pub async fn watch<K>(
    what: &str,
    api: Api<K>,
    config: watcher::Config,
    mut handle: impl FnMut(WatchUpdate<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let handle = |result: Result<WatchUpdate<K>, &watcher::Error>| {
        if let Ok(update) = result {
            handle(update);
        }
    };
    watch_with_errors(what, api, config, handle).await;
}

/// [`watch`] that also reports failures.
pub async fn watch_with_errors<K>(
    what: &str,
    api: Api<K>,
    config: watcher::Config,
    mut handle: impl FnMut(Result<WatchUpdate<K>, &watcher::Error>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let start = || watcher(api.clone(), config.clone()).default_backoff().boxed();
    let mut stream = start();
    let mut list = Vec::new();
    let mut is_failing = false;
    while let Some(next) = stream.next().await {
        let event = match next {
            Ok(event) => event,
            Err(why) => {
                if !is_failing {
                    tracing::warn!(what, %why, "watch failed; retrying");
                }
                is_failing = true;
                handle(Err(&why));
                if is_expired(&why) {
                    sleep(RELIST_DELAY).await;
                    stream = start();
                }
                continue;
            }
        };
        if std::mem::take(&mut is_failing) {
            tracing::info!(what, "watch recovered");
        }
        match event {
            watcher::Event::Init => list.clear(),
            watcher::Event::InitApply(object) => list.push(object),
            watcher::Event::InitDone => handle(Ok(WatchUpdate::Listed(std::mem::take(&mut list)))),
            watcher::Event::Apply(object) => handle(Ok(WatchUpdate::Applied(object))),
            watcher::Event::Delete(object) => handle(Ok(WatchUpdate::Deleted(object))),
        }
    }
}

/// Whether the API server answered a watch with 410 Gone: the version at which it was to continue is too old. If this is the response and
/// not an event of the stream, `kube` retries the same version for ever; otherwise it lists after a pause that grew while the server was
/// away.
fn is_expired(why: &watcher::Error) -> bool {
    match why {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) | watcher::Error::WatchError(status) => {
            status.code == 410
        }
        _ => false,
    }
}
