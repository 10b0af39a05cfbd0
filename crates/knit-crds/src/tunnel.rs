//! Fields that GRE and IP tunnels share.

use knit_model::Problems;
use knit_model::link::{self, NumberOrNone};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fields::{DeviceName, EncapLimit, FlowLabel, IpText, Mark, RemoteEndpoint, Tos, Ttl};

/// TunnelFields are the local endpoint and the outer header of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TunnelFields {
    /// local is the local endpoint address. It is updated in place. Defaults to this pod's address on the network of
    /// the remote pod if remote is a pod, otherwise to the kernel's choice. Required over IPv6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<IpText>,
    /// parent is the lower interface in the pod. Changing it replaces the interface. Defaults to none: the pod's routes
    /// determine the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceName>,
    /// tos is the DS field of outer packets, 0 to 255. 1 copies it from the inner packet. Defaults to 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tos: Option<Tos>,
    /// encapLimit is the tunnel encapsulation limit, 0 to 255. Only valid over IPv6. Defaults to no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encap_limit: Option<EncapLimit>,
    /// flowLabel is the IPv6 flow label of outer packets, 0 to 1048575. Only valid over IPv6. Defaults to 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_label: Option<FlowLabel>,
    /// fwmark is the firewall mark of outer packets, for policy routing. Defaults to none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fwmark: Option<Mark>,
}

impl TunnelFields {
    /// The fields of a link, without its parent. The description of `ttl` and `pmtuDisc` differs between kinds.
    pub(crate) fn read(
        &self,
        remote: Option<&RemoteEndpoint>,
        ttl: Option<&Ttl>,
        pmtudisc: Option<bool>,
        problems: &mut Problems,
    ) -> link::TunnelFields {
        let encap_limit = self.encap_limit.as_ref().and_then(|limit| limit.read("spec.encapLimit", problems));
        link::TunnelFields {
            remote: remote.and_then(RemoteEndpoint::address),
            local: self.local.as_ref().and_then(|local| local.read("spec.local", problems)),
            parent: None,
            ttl: ttl.and_then(|ttl| ttl.read("spec.ttl", problems)),
            tos: self.tos.as_ref().and_then(|tos| tos.read("spec.tos", problems)),
            pmtudisc,
            encap_limit: encap_limit.map(|limit| NumberOrNone(Some(limit))),
            flow_label: self.flow_label.as_ref().and_then(|label| label.read("spec.flowLabel", problems)),
            fwmark: self.fwmark.as_ref().and_then(|mark| mark.read("spec.fwmark", problems)),
        }
    }

    /// The name of the parent.
    pub(crate) fn read_parent(&self, problems: &mut Problems) -> Option<String> {
        self.parent.as_ref().and_then(|parent| parent.read("spec.parent", problems))
    }
}
