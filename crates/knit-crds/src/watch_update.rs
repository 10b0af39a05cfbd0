//! Updates of a watch, as plain data.

/// An update of a watch.
#[derive(Clone, Debug)]
pub enum WatchUpdate<K> {
    /// All objects at one moment: objects that are not listed are deleted.
    Listed(Vec<K>),
    /// An object was added or modified.
    Applied(K),
    /// An object was deleted.
    Deleted(K),
}

impl<K> WatchUpdate<K> {
    /// Converts the objects.
    pub fn map<T>(self, mut to: impl FnMut(K) -> T) -> WatchUpdate<T> {
        match self {
            Self::Listed(all) => WatchUpdate::Listed(all.into_iter().map(to).collect()),
            Self::Applied(one) => WatchUpdate::Applied(to(one)),
            Self::Deleted(one) => WatchUpdate::Deleted(to(one)),
        }
    }

    /// Converts the objects and drops those that cannot be converted.
    pub fn filter_map<T>(self, mut to: impl FnMut(K) -> Option<T>) -> Option<WatchUpdate<T>> {
        Some(match self {
            Self::Listed(all) => WatchUpdate::Listed(all.into_iter().filter_map(to).collect()),
            Self::Applied(one) => WatchUpdate::Applied(to(one)?),
            Self::Deleted(one) => WatchUpdate::Deleted(to(one)?),
        })
    }
}
