//! The kernel's refusals in words.

use knit_model::{Kind, Step};
use nix::errno::Errno;

use crate::error::Error;
use crate::kinds;

/// The kernel's build option for VLANs of bridges.
const VLANS: &str = "CONFIG_BRIDGE_VLAN_FILTERING";
/// The kernel's build option for limits.
const LIMITS: &str = "CONFIG_NET_SCH_TBF";

/// Names the build option that is missing, where that is the reason.
pub(super) fn explain(step: &Step, error: Error) -> Error {
    if needs_vlans(step) && is_refusal_of_a_part(&error) {
        let Error::Refused { context, .. } = error else { return error };
        return Error::Lacks { context, what: "VLAN filtering on bridges".to_owned(), config: VLANS };
    }
    if let Error::Refused { context, message: Some(message), .. } = &error
        && message == "Specified qdisc kind is unknown"
    {
        let what = "token bucket, which limits bandwidth".to_owned();
        return Error::Lacks { context: context.clone(), what, config: LIMITS };
    }
    let Step::CreateLink { link, .. } = step else { return error };
    let Some(config) = kinds::config(link.kind.name()) else { return error };
    match error {
        // The kernel has the same number for other refusals, but these words only for a kind that it does not have.
        Error::Refused { context, errno: Errno::EOPNOTSUPP, message: Some(message), .. }
            if message == "Unknown device type" =>
        {
            Error::Lacks { context, what: link.kind.name().to_owned(), config }
        }
        // Of a name that is taken the kernel says no word; of something that it takes only once, some kinds do.
        Error::Refused { context, errno: errno @ (Errno::EEXIST | Errno::EBUSY), message, offset } => {
            let message = match (kinds::twin(&link.kind), message) {
                (Some(twin), Some(_)) if errno == Errno::EEXIST => Some(format!("{twin} is there already")),
                (Some(twin), None) => Some(format!("a link of this name, or {twin}, is there already")),
                (_, message) => message,
            };
            Error::Refused { context, errno, message, offset }
        }
        other => other,
    }
}

/// Whether a step says something of a bridge's VLANs.
fn needs_vlans(step: &Step) -> bool {
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

/// A kernel without VLANs of bridges says no more than that it cannot; one without bridges says so.
fn is_refusal_of_a_part(error: &Error) -> bool {
    matches!(error, Error::Refused { errno: Errno::EOPNOTSUPP, message, .. }
        if message.as_deref() != Some("Unknown device type"))
}

/// The likely cause of a refusal, where the words so far leave it open.
pub(super) fn hint(error: &Error) -> Option<&'static str> {
    let is_said = matches!(error, Error::Refused { message: Some(_), .. });
    match error.errno()? {
        Errno::EEXIST | Errno::EBUSY if is_said => None,
        Errno::EEXIST => Some("someone has made it meanwhile"),
        Errno::ENODEV => Some("a link that it needs is gone"),
        Errno::EBUSY => Some("something else uses it"),
        Errno::ENETUNREACH | Errno::EHOSTUNREACH => Some("no address of the link reaches the gateway"),
        Errno::ENETDOWN => Some("the link is down"),
        Errno::EPERM => Some("this needs the capability CAP_NET_ADMIN there"),
        Errno::ENOSPC | Errno::EXFULL => Some("the bridge has no free port (it takes 1023)"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use knit_model::Link;
    use knit_model::link::{Bridge, Kind, Veth, Vlan};

    use super::*;

    #[test]
    fn a_kind_that_the_kernel_lacks_is_named_with_its_option() {
        let link = Link::new("net1".parse().unwrap(), Kind::Veth(Veth::default()));
        let step = Step::CreateLink { link, peer: None };
        let refused = |message: &str| Error::Refused {
            context: "make veth net1 on host".into(),
            errno: Errno::EOPNOTSUPP,
            message: Some(message.to_owned()),
            offset: None,
        };
        let words = explain(&step, refused("Unknown device type")).to_string();
        assert_eq!(words, "make veth net1 on host: this kernel has no veth: CONFIG_VETH");
        assert!(explain(&step, refused("Cannot enslave")).to_string().contains("Cannot enslave"));
    }

    #[test]
    fn what_the_kernel_takes_only_one_of_is_named() {
        let vlan = Vlan { id: 100, parent: "eth0".parse().ok(), ..Vlan::full_for_tests() };
        let link = Link::new("v0".parse().unwrap(), Kind::Vlan(vlan));
        let step = Step::CreateLink { link, peer: None };
        let words = |message: Option<&str>| {
            let (context, message) = ("make vlan v0 on host".into(), message.map(str::to_owned));
            let error =
                explain(&step, Error::Refused { context, errno: Errno::EEXIST, message, offset: None });
            assert_eq!(hint(&error), None);
            error.to_string()
        };
        let second = words(Some("8021q: VLAN device already exists"));
        assert!(second.contains("VLAN 100 on eth0 is there already"), "{second}");
        let either = words(None);
        assert!(either.contains("a link of this name, or VLAN 100 on eth0, is there already"), "{either}");
    }

    #[test]
    fn a_bridge_that_cannot_filter_is_told_apart_from_a_kernel_without_bridges() {
        let kind = Bridge { vlan_filtering: Some(true), ..Bridge::default() };
        let link = Link::new("br0".parse().unwrap(), Kind::Bridge(kind));
        let step = Step::CreateLink { link, peer: None };
        let context = "make bridge br0 on host".into();
        let refused = Error::Refused { context, errno: Errno::EOPNOTSUPP, message: None, offset: None };
        assert_eq!(
            explain(&step, refused).to_string(),
            "make bridge br0 on host: this kernel has no VLAN filtering on bridges: CONFIG_BRIDGE_VLAN_FILTERING"
        );
        let message = Some("Unknown device type".to_owned());
        let context = "make bridge br0 on host".into();
        let refused = Error::Refused { context, errno: Errno::EOPNOTSUPP, message, offset: None };
        assert!(explain(&step, refused).to_string().ends_with("this kernel has no bridge: CONFIG_BRIDGE"));
    }
}
