//! One connection to the runtime, from registration to its end.

#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::mux::{
    self, FLAG_CLOSED, FRAME_HEADER_LEN, Message, PLUGIN_CONNECTION, REQUEST, RESPONSE, RUNTIME_CONNECTION,
    Reassembler,
};
use crate::proto::nri::RegisterPluginRequest;
use crate::proto::ttrpc::Request;
use crate::protocol::{self, PluginRequest, SynchronizeBatches};
use crate::{Error, Plugin};

/// The plugin name, as it appears in the runtime's log.
const NAME: &str = "knit";
/// The plugin index, which orders plugins.
const INDEX: &str = "75";
/// The timeout of the registration.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of sandboxes that are handled concurrently; further requests wait in the socket.
const MAX_CONCURRENT: usize = 64;
/// The first stream ID of a client.
const FIRST_STREAM: u32 = 1;

type Writer = Arc<Mutex<OwnedWriteHalf>>;

/// Registers with the runtime, and handles its requests until the connection ends.
pub async fn serve<P: Plugin>(socket: &Path, plugin: Arc<P>) -> Result<Infallible, Error> {
    let connected = UnixStream::connect(socket).await;
    let stream = connected.map_err(|source| Error::Connect { socket: socket.to_owned(), source })?;
    let (mut reader, writer) = stream.into_split();
    let writer: Writer = Arc::new(Mutex::new(writer));
    write(&writer, registration()).await?;
    let mut session = Session {
        plugin,
        writer,
        reassembler: Reassembler::default(),
        batches: SynchronizeBatches::default(),
        is_registered: false,
        pending: JoinSet::new(),
    };
    let registered = timeout(REGISTRATION_TIMEOUT, session.register(&mut reader)).await;
    registered.map_err(|_| Error::RegistrationTimeout { timeout: REGISTRATION_TIMEOUT })??;
    loop {
        session.next(&mut reader).await?;
    }
}

struct Session<P> {
    plugin: Arc<P>,
    writer: Writer,
    reassembler: Reassembler,
    batches: SynchronizeBatches,
    is_registered: bool,
    /// Sandboxes that the runtime waits for. They are dropped with the connection.
    pending: JoinSet<()>,
}

impl<P: Plugin> Session<P> {
    /// Handles requests until the registration is confirmed: the runtime may call before it responds.
    async fn register(&mut self, reader: &mut OwnedReadHalf) -> Result<(), Error> {
        while !self.is_registered {
            self.next(reader).await?;
        }
        Ok(())
    }

    /// Handles one frame.
    async fn next(&mut self, reader: &mut OwnedReadHalf) -> Result<(), Error> {
        let disconnected = |source| Error::Disconnected { source };
        let mut header = [0; FRAME_HEADER_LEN];
        reader.read_exact(&mut header).await.map_err(disconnected)?;
        let (connection, length) = mux::parse_frame_header(header)?;
        let mut bytes = vec![0; length];
        reader.read_exact(&mut bytes).await.map_err(disconnected)?;
        for message in self.reassembler.push(connection, &bytes)? {
            self.handle(message).await?;
        }
        Ok(())
    }

    async fn handle(&mut self, message: Message) -> Result<(), Error> {
        match (message.connection, message.kind) {
            (PLUGIN_CONNECTION, REQUEST) => {
                self.respond(message.stream, PluginRequest::read(&message.payload)?).await
            }
            (RUNTIME_CONNECTION, RESPONSE) => {
                protocol::check_response(&message.payload)?;
                self.is_registered = true;
                Ok(())
            }
            // Neither side uses streaming.
            (connection, kind) => Err(Error::InvalidMessage {
                what: format!("a message of type {kind} on connection {connection}"),
            }),
        }
    }

    async fn respond(&mut self, stream: u32, request: PluginRequest) -> Result<(), Error> {
        let payload = match request {
            PluginRequest::RunPodSandbox(pod) => {
                while self.pending.try_join_next().is_some() {}
                if self.pending.len() >= MAX_CONCURRENT {
                    self.pending.join_next().await;
                }
                let (plugin, writer) = (Arc::clone(&self.plugin), Arc::clone(&self.writer));
                self.pending.spawn(async move {
                    plugin.run_pod_sandbox(pod).await;
                    // The reader detects a closed connection.
                    let _ = write(&writer, response(stream, protocol::empty_response())).await;
                });
                return Ok(());
            }
            PluginRequest::Configure(runtime) => {
                self.plugin.configure(runtime);
                protocol::configure_response()
            }
            PluginRequest::Synchronize(pods, more) => {
                if let Some(all) = self.batches.add(pods, more)? {
                    self.plugin.synchronize(all);
                }
                protocol::synchronize_response(more)
            }
            PluginRequest::RemovePodSandbox(pod) => {
                self.plugin.remove_pod_sandbox(pod);
                protocol::empty_response()
            }
            PluginRequest::Ignored => protocol::empty_response(),
            PluginRequest::Unknown(method) => protocol::unimplemented_response(&method),
        };
        write(&self.writer, response(stream, payload)).await
    }
}

fn registration() -> Message {
    let plugin = RegisterPluginRequest { plugin_name: NAME.to_owned(), plugin_idx: INDEX.to_owned() };
    let request = Request {
        service: "nri.pkg.api.v1alpha1.Runtime".to_owned(),
        method: "RegisterPlugin".to_owned(),
        payload: plugin.encode_to_vec(),
    };
    let payload = request.encode_to_vec();
    Message {
        connection: RUNTIME_CONNECTION,
        stream: FIRST_STREAM,
        kind: REQUEST,
        flags: FLAG_CLOSED,
        payload,
    }
}

fn response(stream: u32, payload: Vec<u8>) -> Message {
    Message { connection: PLUGIN_CONNECTION, stream, kind: RESPONSE, flags: 0, payload }
}

async fn write(writer: &Writer, message: Message) -> Result<(), Error> {
    let written = writer.lock().await.write_all(&message.encode()).await;
    written.map_err(|source| Error::Disconnected { source })
}
