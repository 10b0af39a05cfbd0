//! The local API: changes of objects and sandboxes by the commands of one machine, on the agent's node.

use std::sync::{Arc, Mutex, PoisonError};

use knit_kni::v1::standalone_server::Standalone as Service;
use knit_kni::{Reason, RpcError, v1};
use tonic::{Request, Response, Status};

use super::{Services, answer};
use crate::config::Profile;
use crate::daemon::Handle;
use crate::error::{Error, Result};
use crate::standalone::{Standalone, local_api};

/// Held while a request is served.
#[derive(Clone, Default)]
pub(super) struct LocalApiLock(Arc<Mutex<()>>);

impl Services {
    /// Serves a request on a blocking thread. Once started it runs to its end, even if the client is gone.
    async fn serve_local<Q: Send + 'static, A: Send + 'static>(
        &self,
        request: Request<Q>,
        serve: fn(&mut Standalone<Handle>, Q) -> Result<A>,
    ) -> Result<Response<A>, Status> {
        let call = self.call_id(request.metadata());
        if self.info.profile != Profile::Standalone.name() {
            let message = "the objects of this node come from the API server, use kubectl";
            return Err(RpcError::new(Reason::NotAllowed, message).call(&call.0).into());
        }
        let (handle, lock) = (self.handle.clone(), self.local_api.clone());
        let done = tokio::task::spawn_blocking(move || {
            let _turn = lock.0.lock().unwrap_or_else(PoisonError::into_inner);
            serve(&mut Standalone::of(handle), request.into_inner())
        });
        match done.await {
            Ok(Ok(done)) => Ok(answer(&call, done)),
            Ok(Err(why)) => Err(RpcError::new(reason(&why), why.to_string()).call(&call.0).into()),
            Err(why) => Err(RpcError::new(Reason::Internal, why.to_string()).call(&call.0).into()),
        }
    }
}

/// The stable reason of an error.
fn reason(why: &Error) -> Reason {
    match why {
        Error::Invalid { .. } | Error::Request { .. } | Error::Parse { .. } => Reason::InvalidValue,
        Error::SandboxExists { .. } => Reason::AlreadyPresent,
        Error::NoSandbox { .. } | Error::NothingToUndo => Reason::NotFound,
        Error::NotOwned { .. } | Error::OwnedByCall { .. } => Reason::Conflict,
        Error::Ending => Reason::Busy,
        Error::Kernel(_) => Reason::KernelError,
        _ => Reason::Internal,
    }
}

/// Every method calls the function of its name.
macro_rules! served {
    ($($(#[$doc:meta])* $name:ident($request:ident) -> $answer:ident;)*) => {
        #[tonic::async_trait]
        impl Service for Services {
            $(
                async fn $name(&self, request: Request<v1::$request>) -> Result<Response<v1::$answer>, Status> {
                    self.serve_local(request, local_api::$name).await
                }
            )*
        }
    };
}

knit_kni::standalone_calls!(served);
