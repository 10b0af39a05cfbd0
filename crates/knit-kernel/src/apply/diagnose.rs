//! Explains errors of the kernel: the missing build option, the conflicting link, the likely cause.

use knit_model::{Kind, Step};
use nix::errno::Errno;

use crate::error::Error;
use crate::kinds;

/// The kernel's build option for VLAN filtering on bridges.
const VLAN_FILTERING_CONFIG: &str = "CONFIG_BRIDGE_VLAN_FILTERING";
/// The kernel's build option for rate limits.
const TBF_CONFIG: &str = "CONFIG_NET_SCH_TBF";

/// Names the missing build option or the conflicting link, where that is the cause.
pub(super) fn explain(step: &Step, error: Error) -> Error {
    if uses_vlan_filtering(step) && is_unsupported_option(&error) {
        let Error::Rejected { context, .. } = error else { return error };
        return Error::Unsupported {
            context,
            what: "VLAN filtering on bridges".to_owned(),
            config: VLAN_FILTERING_CONFIG,
        };
    }
    if let Error::Rejected { context, message: Some(message), .. } = &error
        && message == "Specified qdisc kind is unknown"
    {
        let what = "token bucket filter (tbf) for rate limits".to_owned();
        return Error::Unsupported { context: context.clone(), what, config: TBF_CONFIG };
    }
    let Step::CreateLink { link, .. } = step else { return error };
    let Some(config) = kinds::config(link.kind.name()) else { return error };
    match error {
        // EOPNOTSUPP has other causes too; this message is used only for an unknown link kind.
        Error::Rejected { context, errno: Errno::EOPNOTSUPP, message: Some(message), .. }
            if message == "Unknown device type" =>
        {
            Error::Unsupported { context, what: link.kind.name().to_owned(), config }
        }
        // The kernel gives no message for a name that is taken; some kinds give one for a unique parameter that is
        // taken.
        Error::Rejected { context, errno: errno @ (Errno::EEXIST | Errno::EBUSY), message, offset } => {
            let message = match (kinds::conflicting_link(&link.kind), message) {
                (Some(conflict), Some(_)) if errno == Errno::EEXIST => {
                    Some(format!("{conflict} already exists"))
                }
                (Some(conflict), None) => Some(format!("a link of this name, or {conflict}, already exists")),
                (_, message) => message,
            };
            Error::Rejected { context, errno, message, offset }
        }
        other => other,
    }
}

/// Whether a step configures VLANs of a bridge.
fn uses_vlan_filtering(step: &Step) -> bool {
    match step {
        Step::CreateLink { link, .. } => match &link.kind {
            Kind::Bridge(bridge) => bridge.vlan_filtering == Some(true),
            _ => false,
        },
        Step::ChangeLink { changes, .. } => {
            changes.iter().any(|change| matches!(change.field.as_str(), "vlan_filtering" | "vlans"))
        }
        _ => false,
    }
}

/// A kernel without VLAN filtering gives no message; one without bridges gives "Unknown device type".
fn is_unsupported_option(error: &Error) -> bool {
    matches!(error, Error::Rejected { errno: Errno::EOPNOTSUPP, message, .. }
        if message.as_deref() != Some("Unknown device type"))
}

/// The likely cause of an error, where the message does not name it.
pub(super) fn hint(error: &Error) -> Option<&'static str> {
    let has_message = matches!(error, Error::Rejected { message: Some(_), .. });
    match error.errno()? {
        Errno::EEXIST | Errno::EBUSY if has_message => None,
        Errno::EEXIST => Some("another program created it meanwhile"),
        Errno::ENODEV => Some("a link that it depends on is gone"),
        Errno::EBUSY => Some("it is in use"),
        Errno::ENETUNREACH | Errno::EHOSTUNREACH => {
            Some("the gateway is not reachable through the link's addresses")
        }
        Errno::ENETDOWN => Some("the link is down"),
        Errno::EPERM => Some("CAP_NET_ADMIN is required in the network namespace"),
        Errno::ENOSPC | Errno::EXFULL => Some("the bridge has no free port (the maximum is 1023)"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use knit_model::Link;
    use knit_model::link::{Bridge, Kind, Veth, Vlan};

    use super::*;

    #[test]
    fn an_unsupported_kind_is_named_with_its_build_option() {
        let link = Link::new("net1".parse().unwrap(), Kind::Veth(Veth::default()));
        let step = Step::CreateLink { link, peer: None };
        let rejected = |message: &str| Error::Rejected {
            context: "create veth net1 on host".into(),
            errno: Errno::EOPNOTSUPP,
            message: Some(message.to_owned()),
            offset: None,
        };
        let text = explain(&step, rejected("Unknown device type")).to_string();
        assert_eq!(text, "create veth net1 on host: this kernel has no veth: CONFIG_VETH");
        assert!(explain(&step, rejected("Cannot enslave")).to_string().contains("Cannot enslave"));
    }

    #[test]
    fn a_conflicting_link_is_named() {
        let vlan = Vlan { id: 100, parent: "eth0".parse().ok(), ..Vlan::full_for_tests() };
        let link = Link::new("v0".parse().unwrap(), Kind::Vlan(vlan));
        let step = Step::CreateLink { link, peer: None };
        let text = |message: Option<&str>| {
            let (context, message) = ("create vlan v0 on host".into(), message.map(str::to_owned));
            let error =
                explain(&step, Error::Rejected { context, errno: Errno::EEXIST, message, offset: None });
            assert_eq!(hint(&error), None);
            error.to_string()
        };
        let second = text(Some("8021q: VLAN device already exists"));
        assert!(second.contains("VLAN 100 on eth0 already exists"), "{second}");
        let either = text(None);
        assert!(either.contains("a link of this name, or VLAN 100 on eth0, already exists"), "{either}");
    }

    #[test]
    fn missing_vlan_filtering_is_distinguished_from_missing_bridges() {
        let kind = Bridge { vlan_filtering: Some(true), ..Bridge::default() };
        let link = Link::new("br0".parse().unwrap(), Kind::Bridge(kind));
        let step = Step::CreateLink { link, peer: None };
        let context = "create bridge br0 on host".into();
        let rejected = Error::Rejected { context, errno: Errno::EOPNOTSUPP, message: None, offset: None };
        assert_eq!(
            explain(&step, rejected).to_string(),
            "create bridge br0 on host: this kernel has no VLAN filtering on bridges: CONFIG_BRIDGE_VLAN_FILTERING"
        );
        let message = Some("Unknown device type".to_owned());
        let context = "create bridge br0 on host".into();
        let rejected = Error::Rejected { context, errno: Errno::EOPNOTSUPP, message, offset: None };
        assert!(explain(&step, rejected).to_string().ends_with("this kernel has no bridge: CONFIG_BRIDGE"));
    }
}
