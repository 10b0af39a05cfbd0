//! The Kubernetes kinds of Knit: their schemas, validation, translation into intents, and status.
//!
//! The same types are read from an API server and from files. A kind is one file below `kinds/` and one line in a list;
//! it says its fields, and how they become [intents](knit_model::intent). What an object's fields hold is in [`fields`],
//! where each value has its schema, the API server's rules, and the same rules in words.

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
pub mod states;
pub mod status;
mod structure;
mod sysctls;
mod translate;

pub use document::Place;
pub use info::{Column, KindInfo};
pub use interface::InterfaceFields;
pub use kinds::{Kind, Object, definitions as crds};
pub use link_type::{LinkDetails, LinkMode, LinkType};
pub use object::{ParseError, ParseErrors};
pub use port::PortVlan;
pub use routing::{Family, NeighbourEntry, PodNextHop, PodRule, Reach, RouteEntry, RouteType};
pub use schema::manifests;
pub use selector::{LabelCondition, LabelOperator, PodSelector};
pub use sysctls::check as check_sysctl;
pub use translate::{MAX_INTERFACES, Translation, Translator};
