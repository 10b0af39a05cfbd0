//! The gRPC service that the agent calls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use knit_kni::v1;
use knit_kni::v1::extension_server::Extension;
use tonic::{Request, Response, Status};

use crate::redirect::{self, Redirect};

/// Sets up the redirect of each attached pod.
pub struct Mesh {
    port: u16,
    /// For tests: the process kills itself at this fault point.
    kill_at: Option<usize>,
    fault_points: AtomicUsize,
}

impl Mesh {
    /// `port` is the port of the proxies.
    pub fn new(port: u16) -> Self {
        let kill_at = std::env::var("MESH_REDIRECT_KILL_AT").ok().filter(|_| cfg!(debug_assertions));
        Self {
            port,
            kill_at: kill_at.and_then(|number| number.parse().ok()),
            fault_points: AtomicUsize::new(0),
        }
    }

    /// A point at which a test may kill this process.
    fn fault_point(&self) {
        if self.kill_at == Some(self.fault_points.fetch_add(1, Ordering::SeqCst)) {
            // SIGKILL cannot be handled, so `raise` does not return.
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
        }
    }

    fn redirect(&self, call: Option<v1::ExtensionCall>) -> Result<Redirect, Status> {
        let call = call.ok_or_else(|| Status::invalid_argument("the call is missing"))?;
        let pod = call.pod.ok_or_else(|| Status::invalid_argument("the pod is missing"))?;
        Ok(Redirect { netns: pod.netns_path, cookie: pod.netns_cookie, port: self.port })
    }
}

/// Runs work that enters a network namespace on a dedicated thread, not on a thread of the runtime.
async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> Result<T, Status> {
    let (done, result) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || done.send(work()));
    let result = result.await.map_err(|_| Status::internal("the worker thread panicked"))?;
    result.map_err(|error| Status::failed_precondition(format!("{error:#}")))
}

#[tonic::async_trait]
impl Extension for Mesh {
    async fn before_attach(
        &self,
        request: Request<v1::BeforeAttachRequest>,
    ) -> Result<Response<v1::BeforeAttachResponse>, Status> {
        self.fault_point();
        // Fails before anything is changed if the redirect cannot be created.
        self.redirect(request.into_inner().call)?;
        on_thread(redirect::check).await?;
        Ok(Response::new(v1::BeforeAttachResponse::default()))
    }

    async fn after_attach(
        &self,
        request: Request<v1::AfterAttachRequest>,
    ) -> Result<Response<v1::AfterAttachResponse>, Status> {
        self.fault_point();
        let redirect = self.redirect(request.into_inner().call)?;
        let data = BTreeMap::from([
            ("proxy-port".to_owned(), redirect.port.to_string()),
            ("table".to_owned(), redirect.table()),
        ]);
        on_thread(move || redirect.ensure()).await?;
        self.fault_point();
        Ok(Response::new(v1::AfterAttachResponse { data }))
    }

    async fn after_detach(
        &self,
        request: Request<v1::AfterDetachRequest>,
    ) -> Result<Response<v1::AfterDetachResponse>, Status> {
        self.fault_point();
        let redirect = self.redirect(request.into_inner().call)?;
        on_thread(move || redirect.remove()).await?;
        self.fault_point();
        Ok(Response::new(v1::AfterDetachResponse {}))
    }
}
