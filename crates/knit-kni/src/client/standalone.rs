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

crate::standalone_calls!(calls);
