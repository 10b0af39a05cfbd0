//! Hashes data while it is written, so that nothing is read twice.

use std::io::{Result, Write};

use sha2::{Digest, Sha256};

/// A writer that passes on, counts and hashes everything.
pub struct HashingWriter<W> {
    inner: W,
    hash: Sha256,
    size: u64,
}

impl<W: Write> HashingWriter<W> {
    /// Wraps a writer.
    pub fn new(inner: W) -> Self {
        Self { inner, hash: Sha256::new(), size: 0 }
    }

    /// The inner writer, the digest (`sha256:...`) and the size of the written data.
    pub fn finish(self) -> (W, String, u64) {
        (self.inner, format_digest(self.hash), self.size)
    }
}

impl<W: Write> Write for HashingWriter<W> {
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

/// The digest of these bytes, as in image manifests.
pub fn of(bytes: &[u8]) -> String {
    format_digest(Sha256::new_with_prefix(bytes))
}

fn format_digest(hash: Sha256) -> String {
    format!("sha256:{:x}", hash.finalize())
}
