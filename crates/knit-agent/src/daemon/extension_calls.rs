//! Calls to extensions: made on their own thread with a bounded concurrency and a deadline, never on the loop's thread.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use knit_engine::extension::{InvocationError, InvocationResult};
use knit_kni::kni::knix_client::KnixClient;
use knit_kni::v1::extension_client::ExtensionClient;
use knit_kni::{call, kni, v1};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};
use tonic::Request;
use tonic::transport::Channel;

use super::Message;
use crate::error::{Error, Result};
use crate::metrics::Metrics;

/// Concurrent calls; more of them are queued.
const MAX_CONCURRENT_CALLS: usize = 64;
/// Upper bound of a response, in bytes.
const MAX_RESPONSE: usize = 64 << 10;
/// Upper bound of the data that an extension passes to later ones: entries and bytes.
const MAX_DATA: (usize, usize) = (64, 16 << 10);

/// A call to an extension.
#[derive(Debug)]
pub(crate) struct OutgoingCall {
    /// The call's id.
    pub(crate) id: String,
    /// The extension's name.
    pub(crate) extension: String,
    /// The phase of the call.
    pub(crate) phase: &'static str,
    /// The extension's socket.
    pub(crate) socket: PathBuf,
    /// The deadline of the call.
    pub(crate) deadline: Duration,
    /// The request.
    pub(crate) request: ExtensionRequest,
}

/// A request to an extension.
#[derive(Debug)]
pub(crate) enum ExtensionRequest {
    Before(Box<v1::BeforeAttachRequest>),
    After(Box<v1::AfterAttachRequest>),
    Detached(Box<v1::AfterDetachRequest>),
    Knix(Box<kni::PostAttachInterfaceRequest>),
}

/// Queues calls for the thread that makes them.
pub(super) struct ExtensionCaller {
    queue: mpsc::UnboundedSender<(u64, OutgoingCall)>,
}

impl ExtensionCaller {
    /// Starts the thread. Results are sent to the event loop.
    pub(super) fn start(to: Sender<Message>, metrics: Arc<Metrics>) -> Result<Self> {
        let (queue, calls) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| Error::File { path: "a runtime for extensions".to_owned(), source })?;
        std::thread::Builder::new()
            .name("knit-extensions".to_owned())
            .spawn(move || runtime.block_on(serve(calls, to, metrics)))
            .map_err(|source| Error::File { path: "thread knit-extensions".to_owned(), source })?;
        Ok(Self { queue })
    }

    /// Queues a call, for this incarnation of the node.
    pub(super) fn call(&self, incarnation: u64, outgoing: OutgoingCall) {
        // The thread runs as long as this sender exists.
        let _ = self.queue.send((incarnation, outgoing));
    }
}

async fn serve(
    mut calls: mpsc::UnboundedReceiver<(u64, OutgoingCall)>,
    to: Sender<Message>,
    metrics: Arc<Metrics>,
) {
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_CALLS));
    while let Some((incarnation, outgoing)) = calls.recv().await {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let (to, metrics) = (to.clone(), Arc::clone(&metrics));
        tokio::spawn(async move {
            let (id, extension, phase) = (outgoing.id.clone(), outgoing.extension.clone(), outgoing.phase);
            let started = Instant::now();
            let result = make_call(outgoing).await;
            metrics.extension(&extension, phase, result.is_ok(), started.elapsed());
            if let Err(not) = &result {
                tracing::warn!(extension, phase, call = id, "extension call failed: {}", not.message);
            }
            // The loop may have ended.
            let _ = to.send(Message::ExtensionReplied { incarnation, id, result });
            drop(permit);
        });
    }
}

async fn make_call(outgoing: OutgoingCall) -> InvocationResult {
    let OutgoingCall { id, socket, deadline, request, .. } = outgoing;
    let timeout_message = || format!("no response within {} ms", deadline.as_millis());
    let until = tokio::time::Instant::now() + deadline;
    let channel = match tokio::time::timeout_at(until, connect(socket.clone())).await {
        Ok(Ok(channel)) => channel,
        Ok(Err(why)) => return Err(InvocationError { message: why, reached: false }),
        Err(_) => return Err(InvocationError { message: timeout_message(), reached: false }),
    };
    match tokio::time::timeout_at(until, send(channel, &id, request, deadline)).await {
        Ok(Ok(data)) => check(data),
        // The server knows the deadline too, and may time out first.
        Ok(Err(status)) if is_timeout(&status, until) => {
            Err(InvocationError { message: timeout_message(), reached: true })
        }
        Ok(Err(status)) => Err(InvocationError { message: status_message(&status), reached: true }),
        Err(_) => Err(InvocationError { message: timeout_message(), reached: true }),
    }
}

fn is_timeout(status: &tonic::Status, until: tokio::time::Instant) -> bool {
    let is_late = matches!(status.code(), tonic::Code::Cancelled | tonic::Code::DeadlineExceeded);
    is_late && tokio::time::Instant::now() + Duration::from_millis(50) >= until
}

/// A new connection for each call, so that it never belongs to a process that is gone.
async fn connect(socket: PathBuf) -> std::result::Result<Channel, String> {
    let stream = UnixStream::connect(&socket).await;
    let stream = stream.map_err(|why| format!("cannot connect to {}: {why}", socket.display()))?;
    let user = stream.peer_cred().map_err(|why| format!("{}: {why}", socket.display()))?.uid();
    if user != 0 && user != nix::unistd::geteuid().as_raw() {
        return Err(format!("{} belongs to user {user}: only root may serve extensions", socket.display()));
    }
    let channel = knit_grpc::connect_once(&knit_grpc::endpoint(), stream).await;
    channel.map_err(|why| format!("{}: {why}", socket.display()))
}

async fn send(
    channel: Channel,
    id: &str,
    request_body: ExtensionRequest,
    deadline: Duration,
) -> std::result::Result<BTreeMap<String, String>, tonic::Status> {
    fn request<T>(message: T, id: &str, deadline: Duration) -> Request<T> {
        let mut request = Request::new(message);
        call::set_id(request.metadata_mut(), id);
        request.set_timeout(deadline);
        request
    }
    let mut extension = ExtensionClient::new(channel.clone()).max_decoding_message_size(MAX_RESPONSE);
    match request_body {
        ExtensionRequest::Before(message) => {
            Ok(extension.before_attach(request(*message, id, deadline)).await?.into_inner().data)
        }
        ExtensionRequest::After(message) => {
            Ok(extension.after_attach(request(*message, id, deadline)).await?.into_inner().data)
        }
        ExtensionRequest::Detached(message) => {
            extension.after_detach(request(*message, id, deadline)).await.map(|_| BTreeMap::new())
        }
        ExtensionRequest::Knix(message) => {
            let mut knix = KnixClient::new(channel).max_decoding_message_size(MAX_RESPONSE);
            Ok(knix.post_attach_interface(request(*message, id, deadline)).await?.into_inner().extradata)
        }
    }
}

fn check(data: BTreeMap<String, String>) -> InvocationResult {
    let size: usize = data.iter().map(|(key, value)| key.len() + value.len()).sum();
    if data.len() > MAX_DATA.0 || size > MAX_DATA.1 {
        let why = format!(
            "response has {} entries with {size} bytes, at most {} with {} are allowed",
            data.len(),
            MAX_DATA.0,
            MAX_DATA.1
        );
        return Err(InvocationError { message: why, reached: true });
    }
    Ok(data)
}

fn status_message(status: &tonic::Status) -> String {
    let message: String = status.message().chars().filter(|letter| !letter.is_control()).take(500).collect();
    if message.is_empty() {
        format!("{:?}", status.code())
    } else {
        format!("{message} ({:?})", status.code())
    }
}
