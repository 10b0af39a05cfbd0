//! What some kinds of links need beside what every entry of a list has.

use std::net::IpAddr;

use knit_model::Problems;
use knit_model::intent::BridgePortIntent;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fields::{FarEnd, IpText, Remote, VlanId, Vni, VrfTable};
use crate::port::PortVlan;

/// Fields of some kinds. What a kind needs besides, such as the peers of a `wireguard`, its own object says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LinkDetails {
    /// For `veth`: the VLANs of the node's end on its bridge, `{access: 100}` or
    /// `{trunk: ["100", 200-300], native: 1}`. The bridge then filters VLANs. Default: on a bridge that filters, access
    /// to the bridge's default VLAN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<PortVlan>,
    /// For `vlan`: the number of the VLAN, 1 to 4094. Another number makes the interface again.
    #[serde(rename = "vlanID", skip_serializing_if = "Option::is_none")]
    pub vlan_id: Option<VlanId>,
    /// For `vxlan` and `geneve`: the number of the network, 0 to 16777215. Another number makes the interface again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni: Option<Vni>,
    /// For tunnels: the far end, an address or the name of another pod of this namespace, which is followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<Remote>,
    /// For tunnels: the near end's address. Default: the kernel chooses; over IPv6 it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<IpText>,
    /// For `macvlan`: `bridge`, `private`, `vepa` or `passthru`, default `bridge`. For `ipvlan`: `l2`, `l3` or `l3s`,
    /// default `l2`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<LinkMode>,
    /// For `vrf`: the routing table of its ports, 1 to 4294967295 without 253 to 255. Another table makes it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<VrfTable>,
}

/// The modes of macvlan and ipvlan.
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

impl LinkDetails {
    /// The fields, by name.
    pub(super) const FIELDS: [&'static str; 7] =
        ["vlan", "vlanID", "vni", "remote", "local", "mode", "table"];

    /// The fields that are stated, by name.
    pub(super) fn stated(&self) -> impl Iterator<Item = &'static str> {
        let is_stated = [
            self.vlan.is_some(),
            self.vlan_id.is_some(),
            self.vni.is_some(),
            self.remote.is_some(),
            self.local.is_some(),
            self.mode.is_some(),
            self.table.is_some(),
        ];
        Self::FIELDS.into_iter().zip(is_stated).filter(|(_, is_stated)| *is_stated).map(|(field, _)| field)
    }

    /// The values that can be read; what is wrong with the others is said.
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

/// The same in the model's words.
#[derive(Default)]
pub(super) struct Details {
    pub(super) port: Option<BridgePortIntent>,
    pub(super) vlan_id: Option<u16>,
    pub(super) vni: Option<u32>,
    pub(super) remote: Option<FarEnd>,
    pub(super) local: Option<IpAddr>,
    pub(super) mode: Option<LinkMode>,
    pub(super) table: Option<u32>,
}

impl Details {
    /// The far end's address, if it is said by its address.
    pub(super) fn remote_address(&self) -> Option<IpAddr> {
        self.remote.as_ref().and_then(FarEnd::address)
    }
}
