//! The Kubernetes kinds of Knit: their schemas, validation, translation into intents, and status.
//!
//! The same types are read from an API server and from files. A kind is one file below `kinds/` and one line in a list;
//! it defines its fields and their translation into [intents](knit_model::intent). Field values are in [`fields`]: each
//! has its schema, its CEL rules, and the same checks in Rust.

pub mod attachments;
mod document;
pub mod fields;
mod info;
mod interface;
pub mod kinds;
mod link_type;
mod object;
mod port;
mod routing;
mod rules;
mod schema;
mod selector;
mod severity;
pub mod states;
pub mod status;
mod structure;
mod sysctls;
mod translate;
mod tunnel;
mod watch_update;

pub use document::SourceLocation;
pub use info::{Column, KindInfo};
pub use interface::{InterfaceFields, NameFields};
pub use kinds::{Object, ResourceKind, definitions as crds};
pub use link_type::{LinkDetails, LinkMode, LinkType};
pub use object::{ParseError, ParseErrors};
pub use port::PortVlan;
pub use routing::{AddressFamily, NeighbourEntry, PodNextHop, PodRouteScope, PodRule, RouteEntry, RouteType};
pub use schema::manifests;
pub use selector::{LabelCondition, LabelOperator, PodSelector};
pub use severity::Severity;
pub use translate::{MAX_INTERFACES, Translation, Translator};
pub use tunnel::TunnelFields;
pub use watch_update::WatchUpdate;
