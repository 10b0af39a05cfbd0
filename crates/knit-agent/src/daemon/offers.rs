//! The way from the loop to those who offer sockets, and back.

use std::sync::mpsc::Sender;

use super::Message;
use crate::error::Result;
use crate::sockets::Desk;

/// Starts the thread that offers sockets; what becomes of them is told to the loop.
pub(super) fn start(sender: &Sender<Message>) -> Result<Desk> {
    let to = sender.clone();
    Desk::start(move |life, offered| {
        // The loop is gone: then nobody waits.
        let _ = to.send(Message::Offered { life, offered });
    })
}
