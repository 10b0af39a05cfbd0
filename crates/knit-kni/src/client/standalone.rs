//! Client of the standalone service: objects and sandboxes of one machine.

use tonic::Response;

use super::Client;
use crate::error::Error;
use crate::v1::standalone_client::StandaloneClient;
use crate::{MAX_MESSAGE, v1};

/// A client method for each method of the service.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($request:ident) -> $answer:ident;)*) => {
        impl Client {
            $(
                $(#[$doc])*
                pub async fn $name(&mut self, request: v1::$request) -> Result<v1::$answer, Error> {
                    let request = self.request(request);
                    let mut service = StandaloneClient::new(self.channel.clone())
                        .max_decoding_message_size(MAX_MESSAGE);
                    let answer = service.$name(request).await;
                    answer.map(Response::into_inner).map_err(|status| Error::from_status(&self.socket, status))
                }
            )*
        }
    };
}

calls! {
    /// Applies objects.
    apply(ApplyRequest) -> ApplyResponse;
    /// Deletes objects.
    delete_objects(DeleteObjectsRequest) -> DeleteObjectsResponse;
    /// Reverts the last change of objects.
    undo(UndoRequest) -> UndoResponse;
    /// Lists objects with their status.
    list_objects(ListObjectsRequest) -> ListObjectsResponse;
    /// Returns the applied state, problems and drift.
    get_status(GetStatusRequest) -> GetStatusResponse;
    /// Adds a sandbox.
    add_sandbox(AddSandboxRequest) -> AddSandboxResponse;
    /// Changes a sandbox's labels.
    label_sandbox(LabelSandboxRequest) -> LabelSandboxResponse;
    /// Removes everything from a sandbox, and ends it.
    end_sandbox(EndSandboxRequest) -> EndSandboxResponse;
    /// Lists sandboxes with their interfaces.
    list_sandboxes(ListSandboxesRequest) -> ListSandboxesResponse;
}
