//! Probes of link options, and of links that are no kind of the model. Those of kinds are in `crate::kinds`.

use nix::errno::Errno;

use super::probe::{Finding, Probe};
use super::scratch::Scratch;
use crate::netlink::Message;
use crate::netlink::constants::*;

const IFLA_BR_VLAN_FILTERING: u16 = 7;

pub const PROBES: &[Probe] = &[
    Probe::link(
        "bridge-vlan-filtering",
        "VLAN filtering on bridges",
        "CONFIG_BRIDGE_VLAN_FILTERING",
        vlan_filtering,
    )
    .needed_for("VLANs on a bridge's ports"),
    Probe::link("alternative-names", "alternative names of links", "CONFIG_NET", alternative_names)
        .needed_for("Knit's ownership mark on every link (Linux 5.5)")
        .required(),
    Probe::link("ifb", "ifb links", "CONFIG_IFB", |scratch| scratch.link("ifb", |_| ()))
        .module("ifb")
        .makes_devices()
        .needed_for("shaping ingress traffic"),
];

/// A kernel without VLAN filtering ignores the attribute, so the bridge is read back.
fn vlan_filtering(scratch: &mut Scratch) -> Finding {
    let created = scratch.create("bridge", |data| {
        data.put_u8(IFLA_BR_VLAN_FILTERING, 1);
    });
    if let Err(error) = created {
        return error.into();
    }
    let name = scratch.last_name();
    let filtering = scratch.get(&name, |_, attributes| {
        let data = attributes.first(IFLA_LINKINFO)?.nested().first(IFLA_INFO_DATA)?.nested();
        Some(data.first(IFLA_BR_VLAN_FILTERING).and_then(|value| value.u8()))
    });
    match filtering {
        Ok(Some(1)) => Finding::Present,
        Ok(_) => Finding::Absent,
        Err(error) => error.into(),
    }
}

fn alternative_names(scratch: &mut Scratch) -> Finding {
    let index = match scratch.parent() {
        Ok(index) => index,
        Err(finding) => return finding,
    };
    let flags = NLM_F_CREATE | NLM_F_EXCL | NLM_F_APPEND;
    let mut message = Message::new(RTM_NEWLINKPROP, flags, "add an alternative name to a link");
    message.header(&crate::netlink::header::LinkHeader { index, ..Default::default() });
    message.nest(IFLA_PROP_LIST, |list| {
        list.put_str(IFLA_ALT_IFNAME, "knit-alternative-name-probe");
    });
    Finding::of(scratch.route.request(message), &[Errno::EOPNOTSUPP])
}
