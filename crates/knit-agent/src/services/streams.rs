//! Streams of responses: a bounded number of them at once, because each keeps what its reader has not read.

use std::sync::Arc;

use knit_kni::{Reason, RpcError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Concurrent streams of all connections.
const MAX_STREAMS: usize = 128;

/// The open streams.
#[derive(Clone)]
pub(super) struct OpenStreams(Arc<Semaphore>);

/// A stream that counts until this is dropped.
pub(super) struct StreamPermit {
    _permit: OwnedSemaphorePermit,
}

impl Default for OpenStreams {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_STREAMS)))
    }
}

impl OpenStreams {
    /// Counts one more stream.
    pub(super) fn open(&self) -> Result<StreamPermit, RpcError> {
        let permit = Arc::clone(&self.0).try_acquire_owned().map_err(|_| {
            let message = format!("{MAX_STREAMS} streams are open: close some, or try again later");
            RpcError::new(Reason::Busy, message)
        })?;
        Ok(StreamPermit { _permit: permit })
    }
}
