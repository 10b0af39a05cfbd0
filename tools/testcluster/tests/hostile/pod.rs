//! Programs in the tenant's pods: one with the runtime's default capabilities, one with NET_ADMIN in its own network namespace.

mod configuration;
mod control;
mod discovery;
mod sources;
