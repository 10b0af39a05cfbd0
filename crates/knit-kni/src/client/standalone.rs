//! Objects and sandboxes of one machine, for the commands that people type.

use tonic::Response;

use super::Client;
use crate::error::Error;
use crate::v1::standalone_client::StandaloneClient;
use crate::{MAX_MESSAGE, v1};

/// One method of the client for each method of the service.
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
                    answer.map(Response::into_inner).map_err(|status| Error::of(&self.socket, status))
                }
            )*
        }
    };
}

calls! {
    /// Makes the node look as objects say.
    apply(ApplyRequest) -> ApplyResponse;
    /// Deletes objects.
    delete_objects(DeleteObjectsRequest) -> DeleteObjectsResponse;
    /// Goes back to the objects before the last change.
    undo(UndoRequest) -> UndoResponse;
    /// Objects with their status.
    list_objects(ListObjectsRequest) -> ListObjectsResponse;
    /// What Knit has made, what is in the way, and what someone changed by hand.
    get_status(GetStatusRequest) -> GetStatusResponse;
    /// Has a sandbox known.
    add_sandbox(AddSandboxRequest) -> AddSandboxResponse;
    /// Changes a sandbox's labels.
    label_sandbox(LabelSandboxRequest) -> LabelSandboxResponse;
    /// Takes everything of a sandbox back, and ends it.
    end_sandbox(EndSandboxRequest) -> EndSandboxResponse;
    /// Sandboxes with their interfaces.
    list_sandboxes(ListSandboxesRequest) -> ListSandboxesResponse;
}
