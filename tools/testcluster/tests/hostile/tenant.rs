//! A tenant with every tenant role that Knit documents, and Kubernetes' role `admin` in its own namespace.

mod addresses;
mod authority;
mod closed_ranges;
mod definitions;
mod load;
mod names;
mod parents;
mod ranges;
mod routes;
mod sockets;
mod tunnels;
