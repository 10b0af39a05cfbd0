//! A compromised node: the token of its agent, which is bound to the node and the agent's pod, and is read from its disk.

mod cluster;
mod own_state;
mod pods;
mod states;
