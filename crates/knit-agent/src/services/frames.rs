//! The same calls without HTTP/2, for the CNI shim: `api/knit/v1/frame.proto` says how.
//!
//! A connection is one task. Whoever closes it before the answer is there has cancelled the call.

use std::sync::Arc;
use std::time::Duration;

use knit_kni::call::{self, Calls};
use knit_kni::frame::{self, HEADER};
use knit_kni::v1::agent_server::Agent;
use knit_kni::v1::{FramedCall, FramedReply};
use knit_kni::{Reason, Refusal};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tonic::{Request, Response, Status};

use super::{MAX_REQUEST, Services, check_credentials};

/// So many connections are served at once; the next one waits.
const CONNECTIONS: usize = 1_024;
/// A connection that says nothing is closed after this long.
const SILENCE: Duration = Duration::from_secs(30);

impl Services {
    /// Serves the socket until told to stop. Calls that are under way are answered first.
    pub async fn serve_frames(self, listener: UnixListener, mut stop: watch::Receiver<bool>) {
        let calls = Calls::new(&format!("cni-{:x}", self.about.started.0 & 0xffff_ffff));
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok(seat) = Arc::clone(&room).acquire_owned().await else { return };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (services, calls) = (self.clone(), calls.clone());
                    tokio::spawn(async move {
                        // Whoever goes away in the middle of a frame has nothing to be told.
                        let _ = services.converse(stream, &calls).await;
                        drop(seat);
                    });
                }
                // Out of descriptors, say: it may pass.
                Err(why) => {
                    tracing::warn!(%why, "a connection of the CNI shim could not be taken");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        // All seats are free once every call is answered.
        let _ = room.acquire_many(u32::try_from(CONNECTIONS).unwrap_or(u32::MAX)).await;
    }

    async fn converse(&self, mut stream: UnixStream, calls: &Calls) -> std::io::Result<()> {
        if let Err(status) = check_credentials(stream.peer_cred().ok(), self.handle.metrics()) {
            return stream.write_all(&frame::encode(&frame::reply::<FramedReply>(Err(status)))).await;
        }
        loop {
            let Ok(read) = tokio::time::timeout(SILENCE, read(&mut stream)).await else { return Ok(()) };
            let reply = match read? {
                Ok(call) => {
                    let mut closed = [0];
                    tokio::select! {
                        reply = self.answer_frame(&call, calls) => reply,
                        // More before the answer, or nothing any more: either way nobody waits for this call.
                        _ = stream.read(&mut closed) => return Ok(()),
                    }
                }
                // What follows cannot be told apart any more.
                Err(status) => {
                    let reply = frame::reply::<FramedReply>(Err(status));
                    return stream.write_all(&frame::encode(&reply)).await;
                }
            };
            stream.write_all(&frame::encode(&reply)).await?;
        }
    }

    async fn answer_frame(&self, call: &FramedCall, calls: &Calls) -> FramedReply {
        let id = calls.choose(&call.call_id);
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
                let refusal = Refusal::new(Reason::DeadlineExceeded, message).call(&id);
                frame::reply::<FramedReply>(Err(refusal.into()))
            }
        }
    }

    async fn dispatch(&self, call: &FramedCall, id: &str) -> FramedReply {
        match call.method.as_str() {
            "Attach" => carry(call, id, |request| Agent::attach(self, request)).await,
            "Detach" => carry(call, id, |request| Agent::detach(self, request)).await,
            "CollectGarbage" => carry(call, id, |request| Agent::collect_garbage(self, request)).await,
            "GetReadiness" => carry(call, id, |request| Agent::get_readiness(self, request)).await,
            "CheckPod" => carry(call, id, |request| Agent::check_pod(self, request)).await,
            "GetPod" => carry(call, id, |request| Agent::get_pod(self, request)).await,
            other => {
                let message = format!("there is no method `{}` here", other.escape_debug());
                let refusal = Refusal::new(Reason::Unsupported, message).field("method").call(id);
                frame::reply::<FramedReply>(Err(refusal.into()))
            }
        }
    }
}

/// Hands a call to its method.
async fn carry<Q, A, F>(call: &FramedCall, id: &str, method: impl FnOnce(Request<Q>) -> F) -> FramedReply
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
    frame::reply(call::work(id, &call.method, work).await)
}

/// The next call; a refusal of what is none. The connection's end is an error like any other.
async fn read(stream: &mut UnixStream) -> std::io::Result<Result<FramedCall, Status>> {
    let mut header = [0; HEADER];
    stream.read_exact(&mut header).await?;
    let Some(length) = frame::length(header, MAX_REQUEST) else {
        let message = format!("a call has at most {MAX_REQUEST} bytes, and this one more");
        return Ok(Err(Refusal::new(Reason::InvalidValue, message).field("length").into()));
    };
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(FramedCall::decode(bytes.as_slice()).map_err(|why| {
        let message = format!("these bytes are no call: {why}");
        Refusal::new(Reason::InvalidValue, message).into()
    }))
}
