//! Connects the event loop with the server of pod sockets.

use std::sync::mpsc::Sender;

use super::Message;
use crate::error::Result;
use crate::sockets::SocketServer;

/// Starts the server; its results are sent to the loop.
pub(super) fn start(sender: &Sender<Message>) -> Result<SocketServer> {
    let to = sender.clone();
    SocketServer::start(move |incarnation, offered| {
        // The loop may have ended.
        let _ = to.send(Message::SocketsOffered { incarnation, offered });
    })
}
