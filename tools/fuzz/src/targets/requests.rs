//! Requests of clients and of the container runtime.

use knit_agent::services::decode::{METHODS, event, framed};

use super::engine::Node;

/// The first byte selects the method; what follows is the message. With any other first byte it is a framed call.
pub(super) fn requests(data: &[u8]) {
    let Some((selector, message)) = data.split_first() else { return };
    let event = match METHODS.get(usize::from(*selector)) {
        Some(method) => event(method, message),
        None => framed(message),
    };
    if let Ok(event) = event {
        Node::default().handle(event);
    }
}

/// The bytes of a connection.
pub(super) fn nri(data: &[u8]) {
    if let Ok(pods) = knit_nri::decode(data) {
        // A shorter read loses only pods.
        let shorter = knit_nri::decode(&data[..data.len().saturating_sub(1)]).unwrap_or_default();
        assert!(pods.starts_with(&shorter));
    }
}
