//! sha256 of what passes through, so that nothing is read twice.

use std::io::{Result, Write};

use sha2::{Digest, Sha256};

/// A writer that hands everything on, counts it and hashes it.
pub struct Hashing<W> {
    inner: W,
    hash: Sha256,
    size: u64,
}

impl<W: Write> Hashing<W> {
    /// Begins with nothing written.
    pub fn new(inner: W) -> Self {
        Self { inner, hash: Sha256::new(), size: 0 }
    }

    /// The inner writer, the digest (`sha256:...`) and the size of what passed.
    pub fn finish(self) -> (W, String, u64) {
        (self.inner, name(self.hash), self.size)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> Result<()> {
        self.inner.flush()
    }
}

/// The digest of these bytes, as image manifests write it.
pub fn of(bytes: &[u8]) -> String {
    name(Sha256::new_with_prefix(bytes))
}

fn name(hash: Sha256) -> String {
    format!("sha256:{:x}", hash.finalize())
}
