//! Client of the extension registry.

use tonic::Response;

use super::Client;
use crate::error::Error;
use crate::v1;
use crate::v1::extension_registry_client::ExtensionRegistryClient;

/// A client method for each method of the registry.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $method:ident($request:ident) -> $answer:ident;)*) => {
        impl Client {
            $(
                $(#[$doc])*
                pub async fn $name(&mut self, request: v1::$request) -> Result<v1::$answer, Error> {
                    let request = self.request(request);
                    let answer = ExtensionRegistryClient::new(self.channel.clone()).$method(request).await;
                    answer.map(Response::into_inner).map_err(|status| Error::from_status(&self.socket, status))
                }
            )*
        }
    };
}

calls! {
    /// Registers an extension.
    register_extension = register(RegisterRequest) -> RegisterResponse;
    /// Removes an extension.
    deregister_extension = deregister(DeregisterRequest) -> DeregisterResponse;
    /// Lists extensions.
    list_extensions = list(ListExtensionsRequest) -> ListExtensionsResponse;
    /// Returns one extension, and the pods that it missed.
    get_extension = get(GetExtensionRequest) -> GetExtensionResponse;
}
