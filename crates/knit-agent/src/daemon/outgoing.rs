//! Calls to extensions: made on a thread of their own, bounded in number and in time, never on the loop's.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use knit_engine::extension::{NotDone, Told};
use knit_kni::kni::knix_client::KnixClient;
use knit_kni::v1::extension_client::ExtensionClient;
use knit_kni::{call, kni, v1};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

use super::Message;
use crate::error::{Error, Result};
use crate::metrics::Metrics;

/// So many calls are under way at once; more of them wait.
const AT_ONCE: usize = 64;
/// An answer is small.
const LARGEST: usize = 64 << 10;
/// What an extension may say to those after it.
const MOST_DATA: (usize, usize) = (64, 16 << 10);

/// A call to an extension, in the words of its service.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// The id of the call.
    pub(crate) id: String,
    /// The extension's name.
    pub(crate) extension: String,
    /// When it is called, as people read it.
    pub(crate) phase: &'static str,
    /// Where it listens.
    pub(crate) socket: PathBuf,
    /// How long it may take.
    pub(crate) deadline: Duration,
    /// What is said.
    pub(crate) words: Words,
}

/// What is said to an extension.
#[derive(Debug)]
pub(crate) enum Words {
    Before(Box<v1::BeforeAttachRequest>),
    After(Box<v1::AfterAttachRequest>),
    Detached(Box<v1::AfterDetachRequest>),
    Knix(Box<kni::PostAttachInterfaceRequest>),
}

/// The way to the thread that calls extensions.
pub(super) struct Callers {
    queue: mpsc::UnboundedSender<(u64, Outgoing)>,
}

impl Callers {
    /// Starts the thread. What comes of a call is told to the loop.
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

    /// Has an extension called, for this life of the node.
    pub(super) fn call(&self, life: u64, outgoing: Outgoing) {
        // The thread lives as long as this end of the queue.
        let _ = self.queue.send((life, outgoing));
    }
}

async fn serve(
    mut calls: mpsc::UnboundedReceiver<(u64, Outgoing)>,
    to: Sender<Message>,
    metrics: Arc<Metrics>,
) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    while let Some((life, outgoing)) = calls.recv().await {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (to, metrics) = (to.clone(), Arc::clone(&metrics));
        tokio::spawn(async move {
            let (id, extension, phase) = (outgoing.id.clone(), outgoing.extension.clone(), outgoing.phase);
            let began = Instant::now();
            let told = carry_out(outgoing).await;
            metrics.extension(&extension, phase, told.is_ok(), began.elapsed());
            if let Err(not) = &told {
                tracing::warn!(extension, phase, call = id, "an extension failed: {}", not.why);
            }
            // The loop is gone: then nobody waits.
            let _ = to.send(Message::Invoked { life, id, told });
            drop(place);
        });
    }
}

async fn carry_out(outgoing: Outgoing) -> Told {
    let Outgoing { id, socket, deadline, words, .. } = outgoing;
    let late = || format!("it did not answer within {} ms", deadline.as_millis());
    let until = tokio::time::Instant::now() + deadline;
    let channel = match tokio::time::timeout_at(until, connect(socket.clone())).await {
        Ok(Ok(channel)) => channel,
        Ok(Err(why)) => return Err(NotDone { why, reached: false }),
        Err(_) => return Err(NotDone { why: late(), reached: false }),
    };
    match tokio::time::timeout_at(until, say(channel, &id, words, deadline)).await {
        Ok(Ok(data)) => check(data),
        // The far side knows the deadline, too, and may be the first to give up.
        Ok(Err(status)) if gave_up(&status, until) => Err(NotDone { why: late(), reached: true }),
        Ok(Err(status)) => Err(NotDone { why: status_words(&status), reached: true }),
        Err(_) => Err(NotDone { why: late(), reached: true }),
    }
}

fn gave_up(status: &tonic::Status, until: tokio::time::Instant) -> bool {
    let is_late = matches!(status.code(), tonic::Code::Cancelled | tonic::Code::DeadlineExceeded);
    is_late && tokio::time::Instant::now() + Duration::from_millis(50) >= until
}

/// A connection to whoever listens there now: one for each call, so that it is never that of a process that is gone.
async fn connect(socket: PathBuf) -> std::result::Result<Channel, String> {
    let stream = UnixStream::connect(&socket).await;
    let stream = stream.map_err(|why| format!("nobody answers on {}: {why}", socket.display()))?;
    let user = stream.peer_cred().map_err(|why| format!("{}: {why}", socket.display()))?.uid();
    if user != 0 && user != nix::unistd::geteuid().as_raw() {
        return Err(format!("user {user} listens on {}: only root may", socket.display()));
    }
    let mut stream = Some(stream);
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().map(TokioIo::new);
        async move { stream.ok_or_else(|| std::io::Error::other("the connection was lost")) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    let channel = endpoint.connect_with_connector(connector).await;
    channel.map_err(|why| format!("{}: {why}", socket.display()))
}

async fn say(
    channel: Channel,
    id: &str,
    words: Words,
    deadline: Duration,
) -> std::result::Result<BTreeMap<String, String>, tonic::Status> {
    fn request<T>(message: T, id: &str, deadline: Duration) -> Request<T> {
        let mut request = Request::new(message);
        call::set_id(request.metadata_mut(), id);
        request.set_timeout(deadline);
        request
    }
    let mut extension = ExtensionClient::new(channel.clone()).max_decoding_message_size(LARGEST);
    match words {
        Words::Before(said) => {
            Ok(extension.before_attach(request(*said, id, deadline)).await?.into_inner().data)
        }
        Words::After(said) => {
            Ok(extension.after_attach(request(*said, id, deadline)).await?.into_inner().data)
        }
        Words::Detached(said) => {
            extension.after_detach(request(*said, id, deadline)).await.map(|_| BTreeMap::new())
        }
        Words::Knix(said) => {
            let mut knix = KnixClient::new(channel).max_decoding_message_size(LARGEST);
            Ok(knix.post_attach_interface(request(*said, id, deadline)).await?.into_inner().extradata)
        }
    }
}

fn check(data: BTreeMap<String, String>) -> Told {
    let size: usize = data.iter().map(|(key, value)| key.len() + value.len()).sum();
    if data.len() > MOST_DATA.0 || size > MOST_DATA.1 {
        let why = format!(
            "it returned {} entries with {size} bytes, and may return {} with {}",
            data.len(),
            MOST_DATA.0,
            MOST_DATA.1
        );
        return Err(NotDone { why, reached: true });
    }
    Ok(data)
}

fn status_words(status: &tonic::Status) -> String {
    let said: String = status.message().chars().filter(|letter| !letter.is_control()).take(500).collect();
    if said.is_empty() { format!("{:?}", status.code()) } else { format!("{said} ({:?})", status.code()) }
}
