//! Format version and migration.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Format version of records and snapshots, and the migration of older ones. Defined by the caller, like the types.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The current version.
    pub version: u32,
    /// Migrates a value of an older version. Never called for the current version.
    pub migrate: Migrate,
}

/// Migrates a value of version `from` to the current version.
pub type Migrate = fn(from: u32, kind: EntryKind, value: Value) -> Result<Value, String>;

/// Kind of a stored value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A record of the journal.
    Record,
    /// A snapshot.
    Snapshot,
}

impl Format {
    /// The first version, without migration.
    pub const fn initial() -> Self {
        Self { version: 1, migrate: |from, _, _| Err(format!("format {from} does not exist")) }
    }

    pub(crate) fn decode<T: DeserializeOwned>(
        &self,
        from: u32,
        kind: EntryKind,
        json: &[u8],
    ) -> Result<T, String> {
        let message = |error: serde_json::Error| error.to_string();
        if from == self.version {
            return serde_json::from_slice(json).map_err(message);
        }
        let value = serde_json::from_slice(json).map_err(message)?;
        serde_json::from_value((self.migrate)(from, kind, value)?).map_err(message)
    }
}
