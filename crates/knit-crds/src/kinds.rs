//! The kinds: one file each below `kinds/`. Those of links are declared by [`knit_model::link_kinds!`], the others here.

mod egressgateway;
mod extension;
mod networkquota;
mod podaddresspool;
mod podconfig;
mod podnetworkconfig;
mod podroute;
mod podsocket;
mod primarynetwork;
mod serviceaddresspool;
mod uplink;
mod virtualnetwork;

pub use crate::info::Column;
pub use egressgateway::{EgressGateway, EgressGatewaySpec, EgressGatewayStatus};
pub use extension::{Extension, ExtensionSpec};
pub use networkquota::{NetworkQuota, NetworkQuotaSpec, NetworkQuotaStatus, UsedCounts};
pub use podaddresspool::{PodAddressPool, PodAddressPoolSpec};
pub use podconfig::{NetworkAttachment, PodConfig, PodConfigSpec, SampleDeployment, VlanAttachment};
pub use podnetworkconfig::{AdditionalNetwork, LinkEntry, PodNetworkConfig, PodNetworkConfigSpec};
pub use podroute::{PodRoute, PodRouteSpec};
pub use podsocket::{PodSocket, PodSocketSpec, SocketEntry, SocketType};
pub use primarynetwork::{PrimaryFields, PrimaryNetwork, PrimaryNetworkSpec};
pub use serviceaddresspool::{
    AddressCounts, ServiceAddressPool, ServiceAddressPoolSpec, ServiceAddressPoolStatus,
};
pub use uplink::{Uplink, UplinkSpec};
pub use virtualnetwork::{
    CLUSTER_SEGMENT, Isolation, Segment, SegmentScope, VirtualNetwork, VirtualNetworkSpec,
};

use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knit_model::Problems;
use knit_model::provenance::{Dialect, ObjectRef};
use knit_model::report::Report;
use kube::core::object::HasStatus;
use kube::{CustomResourceExt, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::info::KindInfo;
use crate::link_type::LinkTypeInfo;
use crate::status::{CommonStatus, Status};
use crate::translate::{Translation, Translator};

/// The namespace of an object without one, as with kubectl.
pub const DEFAULT_NAMESPACE: &str = "default";

/// What every kind defines besides its fields.
pub trait ResourceKind:
    Resource<DynamicType = ()> + CustomResourceExt + HasStatus<Status: Status> + Serialize + DeserializeOwned
{
    /// Whether objects of this kind are namespaced.
    const NAMESPACED: bool = true;

    /// Whether only administrators may write it, although it may be namespaced.
    const ADMIN_ONLY: bool = !Self::NAMESPACED;

    /// The label that selects pods for an object without `spec.selector`; its value is the object's name.
    const POD_LABEL: Option<&'static str> = None;

    /// Printer columns of this kind, in addition to those of all kinds.
    const COLUMNS: &'static [Column] = &[];

    /// The link types of list entries that create the same link as an object of this kind.
    const LINK_TYPES: &'static [LinkTypeInfo] = &[];

    /// Adds the intents of the object and all validation problems.
    fn declare(&self, to: &mut Translator);

    /// Validates an update. The schema contains the same rules for the API server.
    fn check_change(&self, _old: &Self, _problems: &mut Problems) {}

    /// The reference to this object.
    fn identity(&self) -> ObjectRef {
        let meta = self.meta();
        let namespace = meta.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
        ObjectRef {
            kind: Self::kind(&()).into_owned(),
            namespace: if Self::NAMESPACED { namespace.to_owned() } else { String::new() },
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            generation: meta.generation.unwrap_or_default(),
        }
    }

    /// The intents of the object, or all validation problems.
    fn intents(&self, dialect: Dialect) -> Result<Translation, Problems> {
        let mut translator = Translator::new(self.identity(), dialect);
        self.declare(&mut translator);
        translator.finish()
    }

    /// The status for a report. Timestamps change only with the condition status.
    fn status_for(&self, report: &Report, previous: Option<&Self::Status>, now: Timestamp) -> Self::Status {
        Self::Status::from_report(report, Self::POD_LABEL, previous, now)
    }
}

/// Declares the kinds of links, and adds the others.
macro_rules! all_kinds {
    ($($module:ident $link:ident),* $(,)?) => {
        $(mod $module;
        pub use $module::*;)*

        /// The kinds of links.
        pub(crate) const LINKS: &[&str] = &[$(stringify!($link)),*];

        kinds!(
            $($link,)*
            PodNetworkConfig,
            PodConfig,
            PrimaryNetwork,
            PodRoute,
            PodSocket,
            Uplink,
            VirtualNetwork,
            Extension,
            NetworkQuota,
            PodAddressPool,
            EgressGateway,
            ServiceAddressPool,
        );
    };
}

/// Builds [`Object`] and the functions over all kinds.
macro_rules! kinds {
    ($($kind:ident),* $(,)?) => {
        /// An object of any kind.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        #[allow(missing_docs)]
        pub enum Object {
            $($kind($kind),)*
        }

        /// The CustomResourceDefinition of every kind, in the order of the list.
        pub fn definitions() -> Vec<CustomResourceDefinition> {
            vec![$(crate::schema::definition::<$kind>()),*]
        }

        /// The metadata of every kind, in the order of the list.
        pub(crate) fn kind_infos() -> Vec<KindInfo> {
            vec![$(KindInfo::of::<$kind>()),*]
        }

        /// The link types of list entries, in the order of the list.
        pub(crate) fn link_types() -> Vec<LinkTypeInfo> {
            [$(<$kind as ResourceKind>::LINK_TYPES),*].concat()
        }

        impl Object {
            /// Deserializes an object of this kind; `None` for an unknown kind.
            pub(crate) fn from_value(kind: &str, value: Value) -> Option<Result<Self, serde_json::Error>> {
                $(if kind == stringify!($kind) {
                    return Some(serde_json::from_value(value).map(Self::$kind));
                })*
                None
            }

            /// Its metadata.
            pub fn metadata(&self) -> &ObjectMeta {
                match self { $(Self::$kind(object) => object.meta(),)* }
            }

            /// Its metadata, mutable.
            pub fn metadata_mut(&mut self) -> &mut ObjectMeta {
                match self { $(Self::$kind(object) => object.meta_mut(),)* }
            }

            /// Its kind.
            pub fn kind(&self) -> &'static str {
                match self { $(Self::$kind(_) => stringify!($kind),)* }
            }

            /// The reference to this object.
            pub fn object_ref(&self) -> ObjectRef {
                match self { $(Self::$kind(object) => object.identity(),)* }
            }

            /// Its intents, or all validation problems.
            pub fn intents(&self, dialect: Dialect) -> Result<Translation, Problems> {
                match self { $(Self::$kind(object) => object.intents(dialect),)* }
            }

            /// The part of its status that all kinds have.
            pub fn common_status(&self) -> Option<&CommonStatus> {
                match self { $(Self::$kind(object) => object.status().map(Status::common),)* }
            }

            /// Updates the status from a report. Returns whether it changed.
            pub fn update_status(&mut self, report: &Report, now: Timestamp) -> bool {
                match self { $(Self::$kind(object) => {
                    let status = object.status_for(report, object.status(), now);
                    let changed = object.status() != Some(&status);
                    *object.status_mut() = Some(status);
                    changed
                })* }
            }

            /// Clears the status, when the status in the cluster is not known.
            pub fn clear_status(&mut self) {
                match self { $(Self::$kind(object) => *object.status_mut() = None,)* }
            }

            /// Validates an update of this object.
            pub fn check_change(&self, old: &Self) -> Problems {
                let mut problems = Problems::default();
                match (self, old) {
                    $((Self::$kind(new), Self::$kind(old)) => new.check_change(old, &mut problems),)*
                    _ => problems.invalid("kind", "kind is immutable"),
                }
                problems
            }
        }
    };
}

knit_model::link_kinds!(all_kinds);
