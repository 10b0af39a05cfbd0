//! Secrets that an API server keeps: in memory only, and only those that a pod of this node needs.
//!
//! Nothing of them is ever on disk. An agent that begins anew while the API server is away does without: what stands
//! stays, and is compared when the Secret is known again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use knit_engine::NoKey;
use knit_model::problem::Reason;
use knit_model::{KeyRef, PrivateKey};

/// A Secret by namespace and name.
pub type SecretName = (String, String);

/// What is known of a Secret.
#[derive(Clone, PartialEq, Eq)]
pub enum Known {
    /// It is there, with these entries: a key, or why the entry is none.
    There(BTreeMap<String, Result<PrivateKey, String>>),
    /// It is not there.
    Missing,
    /// The agent may not read it, in the API server's words.
    Refused(String),
}

/// The Secrets that are known.
#[derive(Default)]
pub struct Fetched {
    known: Mutex<BTreeMap<SecretName, Known>>,
}

impl Known {
    /// The entries of a Secret. What is no key is not kept.
    pub fn there<'a>(entries: impl IntoIterator<Item = (&'a String, &'a [u8])>) -> Self {
        let read = |bytes: &[u8]| {
            let text = std::str::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
            PrivateKey::parse(text).map_err(|why| why.to_string())
        };
        Self::There(entries.into_iter().map(|(name, bytes)| (name.clone(), read(bytes))).collect())
    }
}

impl Fetched {
    /// A Secret is known to be so. Says whether that is news.
    pub fn set(&self, name: &SecretName, known: Known) -> bool {
        let old = self.known().insert(name.clone(), known.clone());
        old.is_none_or(|old| old != known)
    }

    /// Nobody needs a Secret any more.
    pub fn forget(&self, name: &SecretName) {
        self.known().remove(name);
    }

    /// Whether it is known by now what a Secret holds, or that it cannot be had.
    pub fn is_known(&self, name: &SecretName) -> bool {
        self.known().contains_key(name)
    }

    /// The key, if it is there; or why it cannot be used, in words.
    pub(super) fn find(&self, wanted: &KeyRef) -> Result<Option<PrivateKey>, NoKey> {
        let KeyRef::Secret { namespace, name, key } = wanted else { return Ok(None) };
        match self.known().get(&(namespace.clone(), name.clone())) {
            None => Err(NoKey {
                reason: Reason::NotReady,
                why: format!("{wanted}: the API server has not answered yet"),
            }),
            Some(Known::Missing) => Ok(None),
            Some(Known::Refused(why)) => Err(NoKey {
                reason: Reason::NotAllowed,
                why: format!(
                    "{wanted}: the agent may not read this Secret; a Role with get, list and watch of it, bound to the agent's ServiceAccount, lets it ({why})"
                ),
            }),
            Some(Known::There(entries)) => match entries.get(key) {
                None => Ok(None),
                Some(Ok(key)) => Ok(Some(key.clone())),
                Some(Err(why)) => {
                    Err(NoKey { reason: Reason::InvalidValue, why: format!("{wanted}: {why}") })
                }
            },
        }
    }

    /// Every key that is known.
    pub(super) fn all(&self) -> Vec<PrivateKey> {
        let known = self.known();
        let entries = known.values().filter_map(|known| match known {
            Known::There(entries) => Some(entries.values()),
            Known::Missing | Known::Refused(_) => None,
        });
        entries.flatten().filter_map(|key| key.as_ref().ok().cloned()).collect()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<SecretName, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Fetched {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_set().entries(self.known().keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_says_what_it_holds_or_why_not_and_never_its_text() {
        let fetched = Fetched::default();
        let name = ("shop".to_owned(), "tunnel".to_owned());
        let key = |key: &str| KeyRef::Secret {
            namespace: "shop".to_owned(),
            name: "tunnel".to_owned(),
            key: key.to_owned(),
        };
        let why = |wanted: &str| fetched.find(&key(wanted)).err().map(|no_key| (no_key.reason, no_key.why));
        assert_eq!(why("private").unwrap().0, Reason::NotReady);
        assert!(fetched.set(&name, Known::Refused("secrets is forbidden".to_owned())));
        assert!(!fetched.set(&name, Known::Refused("secrets is forbidden".to_owned())), "no news");
        let (reason, words) = why("private").unwrap();
        assert_eq!(reason, Reason::NotAllowed);
        assert!(words.starts_with("key private of Secret tunnel in namespace shop: the agent may not read"));

        assert!(fetched.set(&name, Known::Missing));
        assert_eq!(why("private"), None);
        assert!(fetched.find(&key("private")).unwrap().is_none());

        let (good, bad) = ("private".to_owned(), "bad".to_owned());
        let text = b"dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=\n";
        assert!(fetched.set(&name, Known::there([(&good, &text[..]), (&bad, &b"not so secret"[..])])));
        assert!(fetched.find(&key("private")).unwrap().is_some());
        assert!(fetched.find(&key("other")).unwrap().is_none());
        let (reason, words) = why("bad").unwrap();
        assert_eq!(reason, Reason::InvalidValue);
        assert!(!words.contains("not so") && !format!("{fetched:?}").contains("dwdt"), "{words}");
        assert_eq!(fetched.all().len(), 1);

        fetched.forget(&name);
        assert!(!fetched.is_known(&name));
    }
}
