//! The methods of the standalone service.

/// Calls a macro with every method of the standalone service: its description, name, request and response.
#[macro_export]
macro_rules! standalone_calls {
    ($do:ident) => {
        $do! {
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
    };
}
