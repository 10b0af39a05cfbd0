//! Secret keys: the kernel room asks for them when it has to give one to the kernel, and nowhere keeps them on disk.

use std::fmt;

use knit_model::{PrivateKey, PublicKey, SecretKey};

use crate::error::{Context, Error, Result};
use crate::kernel::Room;

/// Whoever holds the secret keys that plans only name.
pub trait Secrets: fmt::Debug + Send + Sync {
    /// The key, by where it comes from, or by the public key that belongs to it. Otherwise why there is none, in words.
    fn key(&self, wanted: &SecretKey) -> Result<PrivateKey, String>;
}

/// Nobody holds a key.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSecrets;

impl Secrets for NoSecrets {
    fn key(&self, _wanted: &SecretKey) -> Result<PrivateKey, String> {
        Err("no keys are kept here".to_owned())
    }
}

impl Room<'_> {
    /// The key that a plan names. One that was just seen in the kernel is known, so that it can be given back even if
    /// its source is gone.
    pub(crate) fn secret(&self, wanted: &SecretKey, context: &Context) -> Result<PrivateKey> {
        if wanted.public == Some(PublicKey::NONE) {
            return Ok(PrivateKey::from_bytes([0; 32]));
        }
        if let Some(seen) = wanted.public.and_then(|public| self.kernel.seen_keys.get(&public)) {
            return Ok(seen.clone());
        }
        let no_key = |why: String| Error::NoKey { context: context.clone(), why };
        let key = self.kernel.secrets.key(wanted).map_err(no_key)?;
        match wanted.public {
            Some(public) if key.public() != public => {
                let source = wanted.from.as_ref().map(ToString::to_string).unwrap_or_default();
                Err(no_key(format!("{source} is another one by now, not that of public key {public}")))
            }
            _ => Ok(key),
        }
    }

    /// Keeps a key in mind that the kernel has shown.
    pub(crate) fn remember(&mut self, key: PrivateKey) {
        self.kernel.seen_keys.insert(key.public(), key);
    }
}
