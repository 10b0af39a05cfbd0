//! The cost of an extension: attaches of a pod that it selects and of one that it does not, alternately.

use std::path::Path;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use knit_kni::v1;
use knit_kni::v1::extension_server::{Extension, ExtensionServer};
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::attach::{Pod, alternate};
use crate::kni::agent::Agent;
use knit_report::Report;
use knit_report::Samples;

/// The namespace whose pods the extension selects.
const SELECTED: &str = "meshed";
/// The namespace of the others.
const OTHER: &str = "bench";

const WITHOUT: &str = "KNI: attach";
const WITH: &str = "KNI: attach with an extension";

/// Registers an extension and measures.
pub fn run(report: &mut Report, folder: &Path, agent: &Agent, pods: &[Pod], rounds: usize) -> Result<()> {
    let socket = folder.join("extension.sock");
    let server = ExtensionThread::listen(&socket)?;
    agent.register(v1::ExtensionSpec {
        name: "bench".to_owned(),
        socket: socket.display().to_string(),
        phases: [v1::ExtensionPhase::BeforeAttach, v1::ExtensionPhase::AfterAttach].map(Into::into).to_vec(),
        namespaces: vec![SELECTED.to_owned()],
        ..Default::default()
    })?;
    let [mut without, mut with] = [const { Samples::new() }; 2];
    let (selected, other) = pods.split_at(pods.len() / 2);
    let mut attached: Vec<String> = Vec::new();
    for round in 0..rounds {
        let pod = round % selected.len();
        let ids = [format!("plain-{round}"), format!("meshed-{round}")];
        alternate(
            round,
            || without.time(|| agent.attach_in(OTHER, &ids[0], &other[pod])),
            || with.time(|| agent.attach_in(SELECTED, &ids[1], &selected[pod])),
        )?;
        attached.extend(ids);
        if pod == selected.len() - 1 || round == rounds - 1 {
            attached.drain(..).try_for_each(|id| agent.delete(&id))?;
            agent.settle()?;
        }
    }
    report.add(WITHOUT, &without)?;
    report.add(WITH, &with)?;
    let median = |samples: &Samples| samples.quantile(0.5).unwrap_or_default().as_nanos() as f64 / 1e3;
    report.add_value(
        "extension: own cost, called before and after",
        median(&with) - median(&without),
        "µs",
        None,
    );
    report.compare(WITH, WITHOUT, None)?;
    server.end()
}

/// An extension that does nothing, on its own thread.
struct ExtensionThread {
    end: oneshot::Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl ExtensionThread {
    fn listen(socket: &Path) -> Result<Self> {
        let (end, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _guard = runtime.enter();
            UnixListener::bind(socket).with_context(|| format!("cannot listen on {}", socket.display()))?
        };
        let server = async move {
            let service = Server::builder().add_service(ExtensionServer::new(EmptyExtension));
            // A dropped sender ends it too.
            let ended = async { ended.await.unwrap_or_default() };
            service.serve_with_incoming_shutdown(UnixListenerStream::new(listener), ended).await
        };
        let thread = std::thread::spawn(move || Ok(runtime.block_on(server)?));
        Ok(Self { end, thread })
    }

    fn end(self) -> Result<()> {
        // It may have ended already: then joining returns the error.
        let _ = self.end.send(());
        self.thread.join().map_err(|_| anyhow::anyhow!("the extension panicked"))?
    }
}

struct EmptyExtension;

#[tonic::async_trait]
impl Extension for EmptyExtension {
    async fn before_attach(
        &self,
        _: Request<v1::BeforeAttachRequest>,
    ) -> Result<Response<v1::BeforeAttachResponse>, Status> {
        Ok(Response::new(Default::default()))
    }

    async fn after_attach(
        &self,
        _: Request<v1::AfterAttachRequest>,
    ) -> Result<Response<v1::AfterAttachResponse>, Status> {
        Ok(Response::new(Default::default()))
    }

    async fn after_detach(
        &self,
        _: Request<v1::AfterDetachRequest>,
    ) -> Result<Response<v1::AfterDetachResponse>, Status> {
        Ok(Response::new(Default::default()))
    }
}
