//! Wire format and robustness of the messages of both packages.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod fuzz_messages;
mod kni_wire;
mod knix_wire;
mod random_wire;
