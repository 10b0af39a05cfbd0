//! Private keys: requested when they have to be written to the kernel, and never stored on disk by this crate.

use std::fmt;

use knit_model::{PrivateKey, PublicKey, SecretKey};

use crate::error::{Context, Error, Result};
use crate::kernel::Session;

/// A source of the private keys that plans refer to.
pub trait PrivateKeySource: fmt::Debug + Send + Sync {
    /// The key by its reference, or by its public key; otherwise the reason why it is missing.
    fn key(&self, key_ref: &SecretKey) -> Result<PrivateKey, String>;
}

/// A source without keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPrivateKeys;

impl PrivateKeySource for NoPrivateKeys {
    fn key(&self, _key_ref: &SecretKey) -> Result<PrivateKey, String> {
        Err("no private keys are available".to_owned())
    }
}

impl Session<'_> {
    /// The key that a plan refers to. Keys read from the kernel are cached, so that a rollback can restore them even
    /// if their source is gone.
    pub(crate) fn private_key(&self, key_ref: &SecretKey, context: &Context) -> Result<PrivateKey> {
        if key_ref.public == Some(PublicKey::NONE) {
            return Ok(PrivateKey::from_bytes([0; 32]));
        }
        if let Some(seen) = key_ref.public.and_then(|public| self.kernel.observed_keys.get(&public)) {
            return Ok(seen.clone());
        }
        let no_key = |reason: String| Error::MissingKey { context: context.clone(), reason };
        let key = self.kernel.key_source.key(key_ref).map_err(no_key)?;
        match key_ref.public {
            Some(public) if key.public() != public => {
                let source = key_ref.source.as_ref().map(ToString::to_string).unwrap_or_default();
                Err(no_key(format!("{source} has changed: it no longer belongs to public key {public}")))
            }
            _ => Ok(key),
        }
    }

    /// Caches a key read from the kernel.
    pub(crate) fn remember_key(&mut self, key: PrivateKey) {
        self.kernel.observed_keys.insert(key.public(), key);
    }
}
