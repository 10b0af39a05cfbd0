//! Objects and sandboxes that people give by hand: the commands of one machine, for a node that this agent has.

use std::sync::{Arc, Mutex, PoisonError};

use knit_kni::v1::standalone_server::Standalone as Service;
use knit_kni::{Reason, Refusal, v1};
use tonic::{Request, Response, Status};

use super::{Services, answer};
use crate::config::Profile;
use crate::daemon::Handle;
use crate::error::{Error, Result};
use crate::standalone::{Standalone, desk};

/// Held by whoever is being served.
#[derive(Clone, Default)]
pub(super) struct Desk(Arc<Mutex<()>>);

impl Services {
    /// Carries a request out on a thread of its own. Once begun it goes on to its end, also when nobody waits any more: a
    /// change is made wholly or not at all.
    async fn serve_desk<Q: Send + 'static, A: Send + 'static>(
        &self,
        request: Request<Q>,
        serve: fn(&mut Standalone<Handle>, Q) -> Result<A>,
    ) -> Result<Response<A>, Status> {
        let call = self.call_id(request.metadata());
        if self.about.profile != Profile::Standalone.name() {
            let message = "this node's objects come from the API server: use kubectl";
            return Err(Refusal::new(Reason::NotAllowed, message).call(&call.0).into());
        }
        let (handle, desk) = (self.handle.clone(), self.desk.clone());
        let done = tokio::task::spawn_blocking(move || {
            let _turn = desk.0.lock().unwrap_or_else(PoisonError::into_inner);
            serve(&mut Standalone::of(handle), request.into_inner())
        });
        match done.await {
            Ok(Ok(done)) => Ok(answer(&call, done)),
            Ok(Err(why)) => Err(Refusal::new(reason(&why), why.to_string()).call(&call.0).into()),
            Err(why) => Err(Refusal::new(Reason::Internal, why.to_string()).call(&call.0).into()),
        }
    }
}

/// Why a request was refused, as a stable word.
fn reason(why: &Error) -> Reason {
    match why {
        Error::Invalid { .. } | Error::Request { .. } | Error::Parse { .. } => Reason::InvalidValue,
        Error::SandboxExists { .. } => Reason::AlreadyPresent,
        Error::NoSandbox { .. } | Error::NothingToUndo => Reason::NotFound,
        Error::NotYours { .. } | Error::Called { .. } => Reason::Conflict,
        Error::Ending => Reason::Busy,
        Error::Kernel(_) => Reason::KernelRefused,
        _ => Reason::Internal,
    }
}

/// Every method hands its request to the function of its name.
macro_rules! served {
    ($($name:ident($request:ident) -> $answer:ident;)*) => {
        #[tonic::async_trait]
        impl Service for Services {
            $(
                async fn $name(&self, request: Request<v1::$request>) -> Result<Response<v1::$answer>, Status> {
                    self.serve_desk(request, desk::$name).await
                }
            )*
        }
    };
}

served! {
    apply(ApplyRequest) -> ApplyResponse;
    delete_objects(DeleteObjectsRequest) -> DeleteObjectsResponse;
    undo(UndoRequest) -> UndoResponse;
    list_objects(ListObjectsRequest) -> ListObjectsResponse;
    get_status(GetStatusRequest) -> GetStatusResponse;
    add_sandbox(AddSandboxRequest) -> AddSandboxResponse;
    label_sandbox(LabelSandboxRequest) -> LabelSandboxResponse;
    end_sandbox(EndSandboxRequest) -> EndSandboxResponse;
    list_sandboxes(ListSandboxesRequest) -> ListSandboxesResponse;
}
