//! Fields of list entries that only some link types have.

use std::net::IpAddr;

use knit_model::Problems;
use knit_model::intent::BridgePortIntent;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fields::{IpText, Remote, RemoteEndpoint, VlanId, Vni, VrfTable};
use crate::port::PortVlan;

/// LinkDetails are the fields of some link types. Further fields, such as the peers of a `wireguard`, are in the type's
/// own kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LinkDetails {
    /// vlan is, for `veth`, the VLAN membership of the host end on its bridge: `{access: 100}`, or `{trunk: ["100",
    /// 200-300], native: 1}`. It enables VLAN filtering on the bridge. Defaults to access to the default VLAN on a
    /// bridge with VLAN filtering.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<PortVlan>,
    /// vlanID is, for `vlan`, the VLAN ID, 1 to 4094. Changing it replaces the interface.
    #[serde(rename = "vlanID", skip_serializing_if = "Option::is_none")]
    pub vlan_id: Option<VlanId>,
    /// vni is, for `vxlan` and `geneve`, the virtual network identifier, 0 to 16777215. Changing it replaces the
    /// interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni: Option<Vni>,
    /// remote is, for tunnels, the remote endpoint: an IP address, or the name of a pod in this namespace, whose
    /// address is tracked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<Remote>,
    /// local is, for tunnels, the local endpoint address. Required over IPv6. Defaults to the kernel's choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<IpText>,
    /// mode is, for link types with modes such as `macvlan` and `ipvlan`, the field `mode` of the kind, with the same
    /// default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<LinkMode>,
    /// table is, for `vrf`, the routing table, 1 to 4294967295 except 253 to 255. Changing it replaces the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<VrfTable>,
}

/// LinkMode is a mode of a link type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum LinkMode {
    Bridge,
    Private,
    Vepa,
    Passthru,
    L2,
    L3,
    L3s,
}

impl LinkMode {
    /// Its name in objects.
    pub(super) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

impl LinkDetails {
    /// The names of the fields.
    pub(super) const FIELDS: [&'static str; 7] =
        ["vlan", "vlanID", "vni", "remote", "local", "mode", "table"];

    /// The names of the fields that are set.
    pub(super) fn given(&self) -> impl Iterator<Item = &'static str> {
        let is_set = [
            self.vlan.is_some(),
            self.vlan_id.is_some(),
            self.vni.is_some(),
            self.remote.is_some(),
            self.local.is_some(),
            self.mode.is_some(),
            self.table.is_some(),
        ];
        Self::FIELDS.into_iter().zip(is_set).filter(|(_, is_set)| *is_set).map(|(field, _)| field)
    }

    /// The valid values; problems are added for the others.
    pub(super) fn read(&self, path: &str, problems: &mut Problems) -> Details {
        let at = |field: &str| format!("{path}.{field}");
        Details {
            port: self.vlan.as_ref().and_then(|vlan| vlan.read(&at("vlan"), problems)),
            vlan_id: self.vlan_id.as_ref().and_then(|id| id.read(at("vlanID"), problems)),
            vni: self.vni.as_ref().and_then(|vni| vni.read(at("vni"), problems)),
            remote: self.remote.as_ref().and_then(|remote| remote.read(at("remote"), problems)),
            local: self.local.as_ref().and_then(|local| local.read(at("local"), problems)),
            mode: self.mode,
            table: self.table.as_ref().and_then(|table| table.read(at("table"), problems)),
        }
    }
}

/// The values as model types.
#[derive(Default)]
pub(crate) struct Details {
    pub(crate) port: Option<BridgePortIntent>,
    pub(crate) vlan_id: Option<u16>,
    pub(crate) vni: Option<u32>,
    pub(crate) remote: Option<RemoteEndpoint>,
    pub(crate) local: Option<IpAddr>,
    pub(crate) mode: Option<LinkMode>,
    pub(crate) table: Option<u32>,
}

impl Details {
    /// The address of the remote endpoint, unless it is a pod.
    pub(crate) fn remote_address(&self) -> Option<IpAddr> {
        self.remote.as_ref().and_then(RemoteEndpoint::address)
    }
}
