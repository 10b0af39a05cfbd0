//! Watches.

use std::fmt::Debug;

use futures_util::StreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// What a watch tells.
#[derive(Clone, Debug)]
pub enum Seen<K> {
    /// All objects there are, as of one moment: what was known and is not among them is gone.
    Listed(Vec<K>),
    /// One is new, or has changed.
    Applied(K),
    /// One is gone.
    Deleted(K),
}

/// Watches for as long as it is polled. An API server that is away, or refuses, is asked again with growing pauses; until
/// it answers nothing is told.
pub async fn follow<K>(what: &str, api: Api<K>, config: watcher::Config, mut tell: impl FnMut(Seen<K>))
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let tell = |heard: Result<Seen<K>, &watcher::Error>| {
        if let Ok(seen) = heard {
            tell(seen);
        }
    };
    follow_with(what, api, config, tell).await;
}

/// The same, and each failure is told, too.
pub async fn follow_with<K>(
    what: &str,
    api: Api<K>,
    config: watcher::Config,
    mut tell: impl FnMut(Result<Seen<K>, &watcher::Error>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut stream = std::pin::pin!(watcher(api, config).default_backoff());
    let mut list = Vec::new();
    let mut is_away = false;
    while let Some(next) = stream.next().await {
        let event = match next {
            Ok(event) => event,
            Err(why) => {
                if !is_away {
                    tracing::warn!(what, %why, "cannot be watched: what is known stays, and it is tried again");
                }
                is_away = true;
                tell(Err(&why));
                continue;
            }
        };
        if std::mem::take(&mut is_away) {
            tracing::info!(what, "is watched again");
        }
        match event {
            watcher::Event::Init => list.clear(),
            watcher::Event::InitApply(object) => list.push(object),
            watcher::Event::InitDone => tell(Ok(Seen::Listed(std::mem::take(&mut list)))),
            watcher::Event::Apply(object) => tell(Ok(Seen::Applied(object))),
            watcher::Event::Delete(object) => tell(Ok(Seen::Deleted(object))),
        }
    }
}

impl<K> Seen<K> {
    /// The same in other words.
    pub fn map<T>(self, mut to: impl FnMut(K) -> T) -> Seen<T> {
        match self {
            Self::Listed(all) => Seen::Listed(all.into_iter().map(to).collect()),
            Self::Applied(one) => Seen::Applied(to(one)),
            Self::Deleted(one) => Seen::Deleted(to(one)),
        }
    }

    /// The same in other words, without what cannot be put into them.
    pub fn filter_map<T>(self, mut to: impl FnMut(K) -> Option<T>) -> Option<Seen<T>> {
        Some(match self {
            Self::Listed(all) => Seen::Listed(all.into_iter().filter_map(to).collect()),
            Self::Applied(one) => Seen::Applied(to(one)?),
            Self::Deleted(one) => Seen::Deleted(to(one)?),
        })
    }
}
