//! Secrets from an API server: kept only in memory, and only those that a pod of this node needs.
//!
//! They are never written to disk. An agent that restarts while the API server is unavailable works without them: existing tunnels stay,
//! and are compared when the Secret is known again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use knit_engine::KeyError;
use knit_model::problem::Reason;
use knit_model::{KeyRef, PrivateKey};

/// A Secret by namespace and name.
pub type SecretName = (String, String);

/// What is known of a Secret.
#[derive(Clone, PartialEq, Eq)]
pub enum SecretState {
    /// It exists, with these entries: a key, or why the entry is not a key.
    Present(BTreeMap<String, Result<PrivateKey, String>>),
    /// It does not exist.
    Missing,
    /// The agent may not read it, with the API server's message.
    Forbidden(String),
}

/// The known Secrets.
#[derive(Default)]
pub struct ApiSecrets {
    known: Mutex<BTreeMap<SecretName, SecretState>>,
}

impl SecretState {
    /// Parses the entries of a Secret. Entries that are not keys are dropped.
    pub fn present<'a>(entries: impl IntoIterator<Item = (&'a String, &'a [u8])>) -> Self {
        let read = |bytes: &[u8]| {
            let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
            PrivateKey::parse(text).map_err(|why| why.to_string())
        };
        Self::Present(entries.into_iter().map(|(name, bytes)| (name.clone(), read(bytes))).collect())
    }
}

impl ApiSecrets {
    /// Stores a Secret. Returns whether it changed.
    pub fn set(&self, name: &SecretName, known: SecretState) -> bool {
        let old = self.known().insert(name.clone(), known.clone());
        old.is_none_or(|old| old != known)
    }

    /// Removes a Secret that is no longer needed.
    pub fn forget(&self, name: &SecretName) {
        self.known().remove(name);
    }

    /// Whether the API server has answered for a Secret.
    pub fn is_known(&self, name: &SecretName) -> bool {
        self.known().contains_key(name)
    }

    /// The key, if it exists.
    pub(super) fn find(&self, requested: &KeyRef) -> Result<Option<PrivateKey>, KeyError> {
        let KeyRef::Secret { namespace, name, key } = requested else { return Ok(None) };
        match self.known().get(&(namespace.clone(), name.clone())) {
            None => Err(KeyError {
                reason: Reason::NotReady,
                message: format!("{requested}: waiting for the API server"),
            }),
            Some(SecretState::Missing) => Ok(None),
            Some(SecretState::Forbidden(why)) => Err(KeyError {
                reason: Reason::NotAllowed,
                message: format!(
                    "{requested}: the agent may not read this Secret: bind a Role with get, list and watch of it to the agent's ServiceAccount ({why})"
                ),
            }),
            Some(SecretState::Present(entries)) => match entries.get(key) {
                None => Ok(None),
                Some(Ok(key)) => Ok(Some(key.clone())),
                Some(Err(why)) => {
                    Err(KeyError { reason: Reason::InvalidValue, message: format!("{requested}: {why}") })
                }
            },
        }
    }

    /// Every known key.
    pub(super) fn all(&self) -> Vec<PrivateKey> {
        let known = self.known();
        let entries = known.values().filter_map(|known| match known {
            SecretState::Present(entries) => Some(entries.values()),
            SecretState::Missing | SecretState::Forbidden(_) => None,
        });
        entries.flatten().filter_map(|key| key.as_ref().ok().cloned()).collect()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<SecretName, SecretState>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ApiSecrets {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_set().entries(self.known().keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_secret_but_never_its_content() {
        let secrets = ApiSecrets::default();
        let name = ("shop".to_owned(), "tunnel".to_owned());
        let key = |key: &str| KeyRef::Secret {
            namespace: "shop".to_owned(),
            name: "tunnel".to_owned(),
            key: key.to_owned(),
        };
        let why = |requested: &str| {
            secrets.find(&key(requested)).err().map(|no_key| (no_key.reason, no_key.message))
        };
        assert_eq!(why("private").unwrap().0, Reason::NotReady);
        assert!(secrets.set(&name, SecretState::Forbidden("secrets is forbidden".to_owned())));
        assert!(!secrets.set(&name, SecretState::Forbidden("secrets is forbidden".to_owned())), "unchanged");
        let (reason, message) = why("private").unwrap();
        assert_eq!(reason, Reason::NotAllowed);
        assert!(
            message.starts_with("key private of Secret tunnel in namespace shop: the agent may not read")
        );

        assert!(secrets.set(&name, SecretState::Missing));
        assert_eq!(why("private"), None);
        assert!(secrets.find(&key("private")).unwrap().is_none());

        let (good, bad) = ("private".to_owned(), "bad".to_owned());
        let text = b"dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=\n";
        assert!(
            secrets.set(&name, SecretState::present([(&good, &text[..]), (&bad, &b"not so secret"[..])]))
        );
        assert!(secrets.find(&key("private")).unwrap().is_some());
        assert!(secrets.find(&key("other")).unwrap().is_none());
        let (reason, message) = why("bad").unwrap();
        assert_eq!(reason, Reason::InvalidValue);
        assert!(!message.contains("not so") && !format!("{secrets:?}").contains("dwdt"), "{message}");
        assert_eq!(secrets.all().len(), 1);

        secrets.forget(&name);
        assert!(!secrets.is_known(&name));
    }
}
