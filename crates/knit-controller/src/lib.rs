//! Knit for a whole cluster. What happens on a node is done by that node's agent; here is what no single node can say.
//!
//! - the status of an object, from what all agents say about pods and nodes ([`rollup`]);
//! - finalizers, which go when no node has anything of an object any more;
//! - `PodConfig.sampleDeployment`;
//! - states of nodes and pods that are gone, and blocks of addresses of nodes that are;
//! - labels of nodes, which say what each can offer to pods ([`labels`]);
//! - and the end of it all ([`uninstall`]).
//!
//! What is decided is [`step`]: events in, effects out, with no I/O in it. [`run`] has the API server and the clock;
//! [`health`] tells the kubelet how it is.

mod blocks;
mod effects;
pub mod health;
mod known;
pub mod labels;
pub mod lease;
pub mod rollup;
pub mod run;
pub mod sample;
pub mod step;
pub mod uninstall;

pub use known::{HeldBlock, Known, State};
pub use step::{Effect, Event, step};
