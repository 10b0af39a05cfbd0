//! The version of what is on disk, and how an older one is read.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// The version of records and snapshots, and how to read older ones. The caller owns both, as it owns the types.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The version that is written.
    pub version: u32,
    /// Turns a value of an older version into one of this version. It is never called for this version.
    pub migrate: Migrate,
}

/// Turns a value of version `from` into one of the current version, or says why that cannot be done.
pub type Migrate = fn(from: u32, part: Part, value: Value) -> Result<Value, String>;

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A record of the journal.
    Record,
    /// A snapshot.
    Snapshot,
}

impl Format {
    /// The first version: there is nothing older.
    pub const fn first() -> Self {
        Self { version: 1, migrate: |from, _, _| Err(format!("there is no format {from}")) }
    }

    pub(crate) fn decode<T: DeserializeOwned>(
        &self,
        from: u32,
        part: Part,
        json: &[u8],
    ) -> Result<T, String> {
        let words = |error: serde_json::Error| error.to_string();
        if from == self.version {
            return serde_json::from_slice(json).map_err(words);
        }
        let value = serde_json::from_slice(json).map_err(words)?;
        serde_json::from_value((self.migrate)(from, part, value)?).map_err(words)
    }
}
