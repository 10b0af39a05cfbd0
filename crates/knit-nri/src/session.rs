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

use crate::answers::{self, Asked, Gathered};
use crate::frames::{self, CLOSED, FRAME, Message, PLUGIN, Parts, REQUEST, RESPONSE, RUNTIME};
use crate::proto::nri::RegisterPluginRequest;
use crate::proto::ttrpc::Request;
use crate::{Error, Plugin};

/// The plugin's name, as the runtime's log has it.
const NAME: &str = "knit";
/// Its place among other plugins.
const INDEX: &str = "75";
/// How long the runtime may take to register the plugin.
const REGISTERED: Duration = Duration::from_secs(5);
/// So many pods are waited for at once; further ones wait in the socket.
const AT_ONCE: usize = 64;
/// The first stream that a client opens.
const FIRST: u32 = 1;

type Writer = Arc<Mutex<OwnedWriteHalf>>;

/// Registers at the runtime, and answers it until the connection ends.
pub async fn serve<P: Plugin>(socket: &Path, plugin: Arc<P>) -> Result<Infallible, Error> {
    let connected = UnixStream::connect(socket).await;
    let stream = connected.map_err(|source| Error::Connect { socket: socket.to_owned(), source })?;
    let (mut reader, writer) = stream.into_split();
    let writer: Writer = Arc::new(Mutex::new(writer));
    write(&writer, registration()).await?;
    let mut session = Session {
        plugin,
        writer,
        parts: Parts::default(),
        gathered: Gathered::default(),
        is_registered: false,
        waiting: JoinSet::new(),
    };
    let registered = timeout(REGISTERED, session.register(&mut reader)).await;
    registered.map_err(|_| Error::Silent { within: REGISTERED })??;
    loop {
        session.next(&mut reader).await?;
    }
}

struct Session<P> {
    plugin: Arc<P>,
    writer: Writer,
    parts: Parts,
    gathered: Gathered,
    is_registered: bool,
    /// Pods that the runtime waits for. They end with the connection.
    waiting: JoinSet<()>,
}

impl<P: Plugin> Session<P> {
    /// The runtime may call before it has answered.
    async fn register(&mut self, reader: &mut OwnedReadHalf) -> Result<(), Error> {
        while !self.is_registered {
            self.next(reader).await?;
        }
        Ok(())
    }

    /// Hears one frame.
    async fn next(&mut self, reader: &mut OwnedReadHalf) -> Result<(), Error> {
        let ended = |source| Error::Ended { source };
        let mut header = [0; FRAME];
        reader.read_exact(&mut header).await.map_err(ended)?;
        let (connection, length) = frames::frame(header)?;
        let mut bytes = vec![0; length];
        reader.read_exact(&mut bytes).await.map_err(ended)?;
        for message in self.parts.take(connection, &bytes)? {
            self.hear(message).await?;
        }
        Ok(())
    }

    async fn hear(&mut self, message: Message) -> Result<(), Error> {
        match (message.connection, message.kind) {
            (PLUGIN, REQUEST) => self.answer(message.stream, Asked::read(&message.payload)?).await,
            (RUNTIME, RESPONSE) => {
                answers::outcome(&message.payload)?;
                self.is_registered = true;
                Ok(())
            }
            // Neither side streams anything.
            (connection, kind) => {
                Err(Error::Unclear { what: format!("a message of type {kind} on connection {connection}") })
            }
        }
    }

    async fn answer(&mut self, stream: u32, asked: Asked) -> Result<(), Error> {
        let payload = match asked {
            Asked::Starts(pod) => {
                while self.waiting.try_join_next().is_some() {}
                if self.waiting.len() >= AT_ONCE {
                    self.waiting.join_next().await;
                }
                let (plugin, writer) = (Arc::clone(&self.plugin), Arc::clone(&self.writer));
                self.waiting.spawn(async move {
                    plugin.starts(pod).await;
                    // Whoever reads notices that the connection ended.
                    let _ = write(&writer, response(stream, answers::done())).await;
                });
                return Ok(());
            }
            Asked::Configure(runtime) => {
                self.plugin.configured(runtime);
                answers::configured()
            }
            Asked::Synchronize(pods, more) => {
                if let Some(all) = self.gathered.add(pods, more)? {
                    self.plugin.synchronized(all);
                }
                answers::synchronized(more)
            }
            Asked::Removed(pod) => {
                self.plugin.removed(pod);
                answers::done()
            }
            Asked::Nothing => answers::done(),
            Asked::Unknown(method) => answers::unknown(&method),
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
    Message { connection: RUNTIME, stream: FIRST, kind: REQUEST, flags: CLOSED, payload }
}

fn response(stream: u32, payload: Vec<u8>) -> Message {
    Message { connection: PLUGIN, stream, kind: RESPONSE, flags: 0, payload }
}

async fn write(writer: &Writer, message: Message) -> Result<(), Error> {
    let written = writer.lock().await.write_all(&message.bytes()).await;
    written.map_err(|source| Error::Ended { source })
}
