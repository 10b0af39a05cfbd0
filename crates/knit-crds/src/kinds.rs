//! The kinds: one file each below `kinds/`, and one line in [`kinds!`].

mod bridge;
mod dummy;
mod egressgateway;
mod extension;
mod geneve;
mod gre;
mod hostdevice;
mod iptunnel;
mod ipvlan;
mod macvlan;
mod networkquota;
mod podaddresspool;
mod podconfig;
mod podnetworkconfig;
mod podroute;
mod podsocket;
mod primarynetwork;
mod tap;
mod uplink;
mod veth;
mod virtualnetwork;
mod vlan;
mod vrf;
mod vxlan;
mod wireguard;

pub use crate::info::Column;
pub use bridge::{Bridge, BridgeSpec};
pub use dummy::{Dummy, DummySpec};
pub use egressgateway::{EgressGateway, EgressGatewaySpec, EgressGatewayStatus};
pub use extension::{Extension, ExtensionSpec};
pub use geneve::{Df, Geneve, GeneveSpec};
pub use gre::{Carries, Gre, GreSpec};
pub use hostdevice::{HostDevice, HostDeviceSpec};
pub use iptunnel::{Inner, IpTunnel, IpTunnelSpec, TunnelMode};
pub use ipvlan::{Ipvlan, IpvlanFlag, IpvlanMode, IpvlanSpec};
pub use macvlan::{Macvlan, MacvlanSpec, Mode};
pub use networkquota::{NetworkQuota, NetworkQuotaSpec, NetworkQuotaStatus, UsedCounts};
pub use podaddresspool::{PodAddressPool, PodAddressPoolSpec};
pub use podconfig::{NetworkAttachment, PodConfig, PodConfigSpec, SampleDeployment, TaggedInterface};
pub use podnetworkconfig::{AdditionalNetwork, LinkEntry, PodNetworkConfig, PodNetworkConfigSpec};
pub use podroute::{PodRoute, PodRouteSpec};
pub use podsocket::{PodSocket, PodSocketSpec, SocketEntry, SocketType};
pub use primarynetwork::{PrimaryFields, PrimaryNetwork, PrimaryNetworkSpec};
pub use tap::{Tap, TapSpec};
pub use uplink::{Uplink, UplinkSpec};
pub use veth::{Veth, VethSpec};
pub use virtualnetwork::{Isolation, VirtualNetwork, VirtualNetworkSpec};
pub use vlan::{EgressPriority, IngressPriority, Vlan, VlanProtocol, VlanSpec};
pub use vrf::{Vrf, VrfSpec};
pub use vxlan::{Vxlan, VxlanSpec};
pub use wireguard::{Peer, WireGuard, WireGuardSpec};

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
use crate::status::{Overview, Status};
use crate::translate::{Translation, Translator};

/// The namespace of an object that names none, as with kubectl.
pub const DEFAULT_NAMESPACE: &str = "default";

/// What a kind says about itself, beside its fields.
pub trait Kind:
    Resource<DynamicType = ()> + CustomResourceExt + HasStatus<Status: Status> + Serialize + DeserializeOwned
{
    /// Whether objects of this kind live in a namespace.
    const NAMESPACED: bool = true;

    /// Whether it is the admin's to write, though it lives in a tenant's namespace.
    const FOR_ADMINS: bool = !Self::NAMESPACED;

    /// The label of the pods that an object without `spec.selector` is for; its value is the object's name.
    const POD_LABEL: Option<&'static str> = None;

    /// The kind's own columns in a list of objects; all kinds have more in common.
    const COLUMNS: &'static [Column] = &[];

    /// Tells everything that the object asks for, and everything that is wrong with it.
    fn declare(&self, to: &mut Translator);

    /// What may not become of an object that exists. The same is said to an API server in the schema.
    fn check_change(&self, _old: &Self, _problems: &mut Problems) {}

    /// Which object this is.
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

    /// What the object asks for, or everything that is wrong with it.
    fn intents(&self, dialect: Dialect) -> Result<Translation, Problems> {
        let mut translator = Translator::new(self.identity(), dialect);
        self.declare(&mut translator);
        translator.finish()
    }

    /// The status that follows from what became of the object. Times change only where the status does.
    fn status_for(&self, report: &Report, previous: Option<&Self::Status>, now: Timestamp) -> Self::Status {
        Self::Status::from_report(report, Self::POD_LABEL, previous, now)
    }
}

/// Builds [`Object`] and what goes over all kinds from the list of kinds.
macro_rules! kinds {
    ($($kind:ident),* $(,)?) => {
        /// An object of any kind.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        #[allow(missing_docs)]
        pub enum Object {
            $($kind($kind),)*
        }

        /// The definition of every kind, in the order of the list.
        pub fn definitions() -> Vec<CustomResourceDefinition> {
            vec![$(crate::schema::definition::<$kind>()),*]
        }

        /// What programs need to know of every kind, in the order of the list.
        pub(crate) fn facts() -> Vec<KindInfo> {
            vec![$(KindInfo::of::<$kind>()),*]
        }

        impl Object {
            /// The object of this kind that a value describes; `None` if there is no such kind.
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

            /// Its metadata, to be changed.
            pub fn metadata_mut(&mut self) -> &mut ObjectMeta {
                match self { $(Self::$kind(object) => object.meta_mut(),)* }
            }

            /// Its kind.
            pub fn kind(&self) -> &'static str {
                match self { $(Self::$kind(_) => stringify!($kind),)* }
            }

            /// Which object it is.
            pub fn object_ref(&self) -> ObjectRef {
                match self { $(Self::$kind(object) => object.identity(),)* }
            }

            /// What it asks for, or everything that is wrong with it.
            pub fn intents(&self, dialect: Dialect) -> Result<Translation, Problems> {
                match self { $(Self::$kind(object) => object.intents(dialect),)* }
            }

            /// How far it is, by its status.
            pub fn overview(&self) -> Option<&Overview> {
                match self { $(Self::$kind(object) => object.status().map(Status::overview),)* }
            }

            /// Puts the status in that follows from a report. Says whether it is another one than before.
            pub fn update_status(&mut self, report: &Report, now: Timestamp) -> bool {
                match self { $(Self::$kind(object) => {
                    let status = object.status_for(report, object.status(), now);
                    let changed = object.status() != Some(&status);
                    *object.status_mut() = Some(status);
                    changed
                })* }
            }

            /// Takes the status out, when what it is in the cluster is not known.
            pub fn forget_status(&mut self) {
                match self { $(Self::$kind(object) => *object.status_mut() = None,)* }
            }

            /// What may not become of an object that exists.
            pub fn check_change(&self, old: &Self) -> Problems {
                let mut problems = Problems::default();
                match (self, old) {
                    $((Self::$kind(new), Self::$kind(old)) => new.check_change(old, &mut problems),)*
                    _ => problems.invalid("kind", "an object does not change its kind"),
                }
                problems
            }
        }
    };
}

kinds!(
    Bridge,
    PodNetworkConfig,
    PodConfig,
    PrimaryNetwork,
    Veth,
    Macvlan,
    Vxlan,
    Dummy,
    Vlan,
    Ipvlan,
    Vrf,
    PodRoute,
    PodSocket,
    WireGuard,
    Tap,
    HostDevice,
    Geneve,
    Gre,
    IpTunnel,
    Uplink,
    VirtualNetwork,
    Extension,
    NetworkQuota,
    PodAddressPool,
    EgressGateway,
);
