//! The kernel's refusals in words.

use knit_model::Step;
use nix::errno::Errno;

use crate::error::Error;
use crate::kinds;

/// Names the build option that is missing, where that is the reason.
pub(super) fn explain(step: &Step, error: Error) -> Error {
    let Step::CreateLink { link, .. } = step else { return error };
    let Some(config) = kinds::config(link.kind.name()) else { return error };
    match error {
        // The kernel has the same number for other refusals, but these words only for a kind that it does not have.
        Error::Refused { context, errno: Errno::EOPNOTSUPP, message: Some(message), .. }
            if message == "Unknown device type" =>
        {
            Error::Lacks { context, what: link.kind.name().to_owned(), config }
        }
        // Kinds that must not linger are those of which the kernel takes no two with the same ends.
        Error::Refused { context, errno: errno @ (Errno::EEXIST | Errno::EBUSY), message: None, offset }
            if !kinds::lingers(link.kind.name()) =>
        {
            let kind = link.kind.name();
            let message =
                format!("a link of this name, or another {kind} with the same ends, is there already");
            Error::Refused { context, errno, message: Some(message), offset }
        }
        other => other,
    }
}

/// The likely cause of a refusal, where the kernel's own words leave it open.
pub(super) fn hint(error: &Error) -> Option<&'static str> {
    match error.errno()? {
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
    use knit_model::link::{Kind, Veth};

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
}
