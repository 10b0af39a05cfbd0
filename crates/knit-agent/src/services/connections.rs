//! Connections of the agent's sockets: a bounded number at once, whatever clients do.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{Stream, unfold};
use nix::sys::resource::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::server::{Connected, UdsConnectInfo};

/// Concurrent connections of the KNI socket; further ones are closed at once. A runtime needs one, each command one more.
const MAX_CONNECTIONS: usize = 256;
/// File descriptors that connections leave to the agent: for namespaces, its journal, netlink, and what it connects to.
const RESERVED_DESCRIPTORS: u64 = 128;
/// Delay after a connection could not be accepted: file descriptors may be exhausted.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// How many connections a socket may have, at most `max`. Both sockets together leave descriptors to the agent, which cannot write its
/// state without any.
pub(super) fn connection_limit(max: usize) -> usize {
    let (allowed, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((0, 0));
    let share = usize::try_from(allowed.saturating_sub(RESERVED_DESCRIPTORS) / 2).unwrap_or(usize::MAX);
    share.clamp(1, max)
}

/// A connection, which counts until it is closed.
pub(super) struct Connection {
    stream: UnixStream,
    _permit: OwnedSemaphorePermit,
}

/// Accepts connections. After a failed accept it pauses: the server retries at once.
pub(super) fn accept(listener: UnixListener) -> impl Stream<Item = Result<Connection, Infallible>> {
    let limit = connection_limit(MAX_CONNECTIONS);
    let permits = Arc::new(Semaphore::new(limit));
    unfold((listener, permits, false), move |(listener, permits, mut is_full)| async move {
        let mut is_failing = false;
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(why) => {
                    // Once, not for each attempt.
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(error = %why, "cannot accept a connection of the KNI socket");
                    }
                    tokio::time::sleep(RETRY_INTERVAL).await;
                    continue;
                }
            };
            if let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
                let connection = Connection { stream, _permit: permit };
                return Some((Ok(connection), (listener, permits, false)));
            }
            if !std::mem::replace(&mut is_full, true) {
                tracing::warn!(limit, "rejecting connections: too many are open");
            }
        }
    })
}

impl Connected for Connection {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
