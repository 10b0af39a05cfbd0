//! A node in a network namespace, its agent, and fakes of what talks to the agent.

pub mod agent;
pub mod chain;
pub mod cni;
pub mod extension;
pub mod frames;
pub mod guest;
pub mod killed_steps;
pub mod machine;
pub mod nri;
pub mod process_peaks;
