//! The calls of the CNI shim, framed without HTTP/2: see `api/knit/v1/frame.proto`.
//!
//! Each connection is one task. Closing it before the reply cancels the call.

use std::sync::Arc;
use std::time::Duration;

use knit_kni::call::{self, CallIdLayer};
use knit_kni::frame::{self, HEADER_LEN};
use knit_kni::v1::agent_server::Agent;
use knit_kni::v1::{FramedCall, FramedReply};
use knit_kni::{Reason, RpcError};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tonic::{Request, Response, Status};

use super::connections::connection_limit;
use super::{MAX_REQUEST, Services, check_credentials};

/// Concurrent connections; the next one waits.
const MAX_CONNECTIONS: usize = 1_024;
/// A longer call is buffered only while all of them together stay within [`MAX_BUFFERED_KIB`].
const SMALL_CALL: usize = 64 << 10;
/// Upper bound of long calls that are being received, in KiB; the next one waits.
const MAX_BUFFERED_KIB: usize = 16 << 10;
/// Idle timeout of a connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

impl Services {
    /// Serves the socket until `stop`. Calls in flight are completed first.
    pub async fn serve_frames(self, listener: UnixListener, mut stop: watch::Receiver<bool>) {
        let calls = CallIdLayer::new(&format!("cni-{:x}", self.info.started.0 & 0xffff_ffff));
        let limit = connection_limit(MAX_CONNECTIONS);
        let permits = Arc::new(Semaphore::new(limit));
        let buffers = Arc::new(Semaphore::new(MAX_BUFFERED_KIB));
        loop {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (services, calls, buffers) = (self.clone(), calls.clone(), Arc::clone(&buffers));
                    tokio::spawn(async move {
                        // A client that disconnects within a frame needs no reply.
                        let _ = services.serve_connection(stream, &calls, &buffers).await;
                        drop(permit);
                    });
                }
                // Out of file descriptors, for example: it may pass.
                Err(why) => {
                    tracing::warn!(error = %why, "cannot accept a connection of the CNI shim");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        // All permits are free once every call is completed.
        let _ = permits.acquire_many(u32::try_from(limit).unwrap_or(u32::MAX)).await;
    }

    async fn serve_connection(
        &self,
        mut stream: UnixStream,
        calls: &CallIdLayer,
        buffers: &Semaphore,
    ) -> std::io::Result<()> {
        if let Err(status) = check_credentials(stream.peer_cred().ok(), self.handle.metrics()) {
            return stream.write_all(&frame::encode(&frame::reply::<FramedReply>(Err(status)))).await;
        }
        loop {
            let read = tokio::time::timeout(IDLE_TIMEOUT, read(&mut stream, buffers));
            let Ok(read) = read.await else { return Ok(()) };
            let reply = match read? {
                Ok(call) => {
                    let mut closed = [0];
                    tokio::select! {
                        reply = self.reply_to(&call, calls) => reply,
                        // More data before the reply, or end of file: either way the call is cancelled.
                        _ = stream.read(&mut closed) => return Ok(()),
                    }
                }
                // Frame boundaries are lost.
                Err(status) => {
                    let reply = frame::reply::<FramedReply>(Err(status));
                    return stream.write_all(&frame::encode(&reply)).await;
                }
            };
            stream.write_all(&frame::encode(&reply)).await?;
        }
    }

    async fn reply_to(&self, call: &FramedCall, calls: &CallIdLayer) -> FramedReply {
        let id = calls.id_or_new(&call.call_id);
        let late = async {
            if call.deadline_ms == 0 {
                return std::future::pending().await;
            }
            tokio::time::sleep(Duration::from_millis(call.deadline_ms.into())).await;
        };
        tokio::select! {
            reply = self.dispatch(call, &id) => reply,
            () = late => {
                let message = format!("{} took longer than {} ms", call.method, call.deadline_ms);
                let refusal = RpcError::new(Reason::DeadlineExceeded, message).call(&id);
                frame::reply::<FramedReply>(Err(refusal.into()))
            }
        }
    }

    async fn dispatch(&self, call: &FramedCall, id: &str) -> FramedReply {
        match call.method.as_str() {
            "Attach" => dispatch_to(call, id, |request| Agent::attach(self, request)).await,
            "Detach" => dispatch_to(call, id, |request| Agent::detach(self, request)).await,
            "CollectGarbage" => dispatch_to(call, id, |request| Agent::collect_garbage(self, request)).await,
            "GetReadiness" => dispatch_to(call, id, |request| Agent::get_readiness(self, request)).await,
            "CheckPod" => dispatch_to(call, id, |request| Agent::check_pod(self, request)).await,
            "GetPod" => dispatch_to(call, id, |request| Agent::get_pod(self, request)).await,
            other => {
                let message = format!("unknown method `{}`", other.escape_debug());
                let refusal = RpcError::new(Reason::Unsupported, message).field("method").call(id);
                frame::reply::<FramedReply>(Err(refusal.into()))
            }
        }
    }
}

/// Dispatches a call to its method.
async fn dispatch_to<Q, A, F>(
    call: &FramedCall,
    id: &str,
    method: impl FnOnce(Request<Q>) -> F,
) -> FramedReply
where
    Q: Message + Default,
    A: Message,
    F: Future<Output = Result<Response<A>, Status>>,
{
    let work = async {
        let mut request = Request::new(frame::request(call)?);
        call::set_id(request.metadata_mut(), id);
        method(request).await.map(Response::into_inner)
    };
    frame::reply(call::run_with_id(id, &call.method, work).await)
}

/// Reads the next call; an error status for an invalid one. The end of the connection is an I/O error.
async fn read(stream: &mut UnixStream, buffers: &Semaphore) -> std::io::Result<Result<FramedCall, Status>> {
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header).await?;
    let Some(length) = frame::payload_len(header, MAX_REQUEST) else {
        let message = format!("the call is longer than {MAX_REQUEST} bytes");
        return Ok(Err(RpcError::new(Reason::InvalidValue, message).field("length").into()));
    };
    let kib = if length > SMALL_CALL { length.div_ceil(1 << 10) } else { 0 };
    // Held until the call is decoded. The semaphore is never closed.
    let _buffer = buffers.acquire_many(u32::try_from(kib).unwrap_or(u32::MAX)).await;
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(FramedCall::decode(bytes.as_slice()).map_err(|why| {
        let message = format!("invalid call: {why}");
        RpcError::new(Reason::InvalidValue, message).into()
    }))
}
