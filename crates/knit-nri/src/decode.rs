//! Decodes the bytes that a runtime sends, without a connection.

use crate::mux::{
    self, FRAME_HEADER_LEN, PLUGIN_CONNECTION, REQUEST, RESPONSE, RUNTIME_CONNECTION, Reassembler,
};
use crate::protocol::{self, PluginRequest, SynchronizeBatches};
use crate::{Error, PodSandbox};

/// Decodes frames until the bytes end. Returns the sandboxes that they report. Fuzz tests call it: the session reads the same
/// frames from a socket.
pub fn decode(mut bytes: &[u8]) -> Result<Vec<PodSandbox>, Error> {
    let (mut reassembler, mut batches) = (Reassembler::default(), SynchronizeBatches::default());
    let mut pods = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER_LEN>() {
        let (connection, length) = mux::parse_frame_header(*header)?;
        let Some((frame, rest)) = rest.split_at_checked(length) else { break };
        bytes = rest;
        for message in reassembler.push(connection, frame)? {
            match (message.connection, message.kind) {
                (PLUGIN_CONNECTION, REQUEST) => match PluginRequest::read(&message.payload)? {
                    PluginRequest::RunPodSandbox(pod) | PluginRequest::RemovePodSandbox(pod) => {
                        pods.push(pod)
                    }
                    PluginRequest::Synchronize(some, more) => {
                        pods.extend(batches.add(some, more)?.into_iter().flatten());
                    }
                    PluginRequest::Configure(_) | PluginRequest::Ignored | PluginRequest::Unknown(_) => {}
                },
                (RUNTIME_CONNECTION, RESPONSE) => protocol::check_response(&message.payload)?,
                _ => {}
            }
        }
    }
    Ok(pods)
}
