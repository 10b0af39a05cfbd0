//! A digest of the effects of an event. It is computed for every event of every agent, so it has to be cheap.

use std::collections::hash_map::DefaultHasher;
use std::fmt::{self, Write};
use std::hash::{Hash, Hasher};

use crate::call::CallResult;
use crate::event::{Effect, Record};

/// A number that differs for different effects. It is comparable between programs of the same build only.
#[derive(Clone, Debug, Default)]
pub struct Digest(DefaultHasher);

/// The digest of effects.
pub fn digest(effects: &[Effect]) -> u64 {
    let mut digest = Digest::default();
    digest.add(effects);
    digest.value()
}

/// The CRC-32 of the record's JSON, as the journal computes it.
fn checksum(record: &Record) -> u32 {
    // A record is plain data: the journal contains it as JSON.
    crc32fast::hash(&serde_json::to_vec(record).unwrap_or_default())
}

impl Digest {
    /// Adds effects.
    pub fn add(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Journal(record) => self.add_record(checksum(record)),
                effect => self.add_effect(effect),
            }
        }
    }

    /// Adds a record that is to be journalled. `checksum` is the CRC-32 of its JSON, which the journal computes anyway.
    pub fn add_record(&mut self, checksum: u32) {
        self.0.write_u32(checksum);
    }

    /// Adds another effect.
    pub fn add_effect(&mut self, effect: &Effect) {
        let hasher = &mut self.0;
        std::mem::discriminant(effect).hash(hasher);
        match effect {
            Effect::Observe { unit, request } => (unit, request).hash(hasher),
            // The plan is a part of the record of its start.
            Effect::Apply { unit, plan } => (unit, plan.steps.len()).hash(hasher),
            Effect::ObjectsChanged(objects) => objects.hash(hasher),
            Effect::InspectNetns { call, path }
            | Effect::CreateNetns { call, path }
            | Effect::RemoveNetns { call, path } => (call, path).hash(hasher),
            // Attachments and reports are parts of records.
            Effect::Respond { call, result: CallResult::Attached { sandbox, interfaces } } => {
                (call, &sandbox.id, interfaces.len()).hash(hasher);
            }
            rare => {
                // The hasher accepts any text.
                let _ = write!(HashedText(hasher), "{rare:?}");
            }
        }
    }

    /// The number.
    pub fn value(&self) -> u64 {
        self.0.finish()
    }
}

struct HashedText<'a>(&'a mut DefaultHasher);

impl Write for HashedText<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use knit_model::SandboxId;

    use super::*;
    use crate::call::CallId;
    use crate::event::{ObserveRequest, Unit};
    use crate::state::ObjectKey;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { kind: "Bridge".to_owned(), namespace: "ns".to_owned(), name: name.to_owned() }
    }

    #[test]
    fn the_digest_differs_for_different_effects() {
        let unit = |name: &str| Unit::Sandbox(SandboxId(name.to_owned()));
        let call = || CallId("1".to_owned());
        let observe = |name: &str, vlans: bool| Effect::Observe {
            unit: unit(name),
            request: ObserveRequest { vlans, ..ObserveRequest::default() },
        };
        let all = [
            vec![],
            vec![Effect::Journal(Record::ObjectDeleted(key("a")))],
            vec![Effect::Journal(Record::ObjectDeleted(key("b")))],
            vec![Effect::ObjectsChanged([key("a")].into())],
            vec![observe("a", false)],
            vec![observe("b", false)],
            vec![observe("a", true)],
            vec![observe("a", true), observe("a", false)],
            vec![Effect::InspectNetns { call: call(), path: "/a".to_owned() }],
            vec![Effect::RemoveNetns { call: call(), path: "/a".to_owned() }],
            vec![Effect::Respond { call: call(), result: CallResult::Detached }],
            vec![Effect::Respond { call: call(), result: CallResult::ChainAttached }],
        ];
        let digests: std::collections::BTreeSet<u64> = all.iter().map(|effects| digest(effects)).collect();
        assert_eq!(digests.len(), all.len());
    }
}
