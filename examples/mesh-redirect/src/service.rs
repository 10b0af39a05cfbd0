//! What the agent calls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use knit_kni::v1;
use knit_kni::v1::extension_server::Extension;
use tonic::{Request, Response, Status};

use crate::redirect::{self, Redirect};

/// The mesh's part of each attach.
pub struct Mesh {
    port: u16,
    /// For tests: the process kills itself at this moment, counted from its start.
    die_at: Option<usize>,
    moments: AtomicUsize,
}

impl Mesh {
    /// A mesh whose proxies listen on this port.
    pub fn new(port: u16) -> Self {
        let asked = std::env::var("MESH_REDIRECT_DIE_AT").ok().filter(|_| cfg!(debug_assertions));
        Self { port, die_at: asked.and_then(|number| number.parse().ok()), moments: AtomicUsize::new(0) }
    }

    /// A moment at which a test may have this process die.
    fn moment(&self) {
        if self.die_at == Some(self.moments.fetch_add(1, Ordering::SeqCst)) {
            // Nobody survives this signal, so nothing follows it.
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
        }
    }

    fn redirect(&self, call: Option<v1::ExtensionCall>) -> Result<Redirect, Status> {
        let call = call.ok_or_else(|| Status::invalid_argument("the call is missing"))?;
        let pod = call.pod.ok_or_else(|| Status::invalid_argument("the pod is missing"))?;
        Ok(Redirect { netns: pod.netns_path, cookie: pod.netns_cookie, port: self.port })
    }
}

/// Namespaces are entered on a thread of its own, never on one of the runtime.
async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> Result<T, Status> {
    let (done, result) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || done.send(work()));
    let result = result.await.map_err(|_| Status::internal("the thread is gone"))?;
    result.map_err(|why| Status::failed_precondition(format!("{why:#}")))
}

#[tonic::async_trait]
impl Extension for Mesh {
    async fn before_attach(
        &self,
        request: Request<v1::BeforeAttachRequest>,
    ) -> Result<Response<v1::BeforeAttachResponse>, Status> {
        self.moment();
        // Whether the redirect could be made is known before anything is changed.
        self.redirect(request.into_inner().call)?;
        on_a_thread(redirect::check).await?;
        Ok(Response::new(v1::BeforeAttachResponse::default()))
    }

    async fn after_attach(
        &self,
        request: Request<v1::AfterAttachRequest>,
    ) -> Result<Response<v1::AfterAttachResponse>, Status> {
        self.moment();
        let redirect = self.redirect(request.into_inner().call)?;
        let data = BTreeMap::from([
            ("proxy-port".to_owned(), redirect.port.to_string()),
            ("table".to_owned(), redirect.table()),
        ]);
        on_a_thread(move || redirect.ensure()).await?;
        self.moment();
        Ok(Response::new(v1::AfterAttachResponse { data }))
    }

    async fn after_detach(
        &self,
        request: Request<v1::AfterDetachRequest>,
    ) -> Result<Response<v1::AfterDetachResponse>, Status> {
        self.moment();
        let redirect = self.redirect(request.into_inner().call)?;
        on_a_thread(move || redirect.remove()).await?;
        self.moment();
        Ok(Response::new(v1::AfterDetachResponse {}))
    }
}
