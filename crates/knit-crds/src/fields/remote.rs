//! The far end of a tunnel: an address, or another pod.

use std::net::IpAddr;

use knit_model::Problems;

use super::{IpText, Rule, is_object_name, text, values};

values! {
    /// The far end of a tunnel: an address, or the name of another pod of the namespace.
    Remote(String) = text(253, &[(
        "isIP(self) || (self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$') && !self.matches('^[0-9.]+$'))",
        "expected an address such as 192.168.100.1 or fd00::1, or the name of a pod",
    )]);
}

/// The API server's rule for the two ends of a tunnel.
pub(crate) const fn same_family() -> Rule<'static> {
    (
        "!has(self.local) || !has(self.remote) || !isIP(self.local) || !isIP(self.remote) \
         || ip(self.local).family() == ip(self.remote).family()",
        "`local` and `remote` are of the same family",
    )
}

/// The API server's rule for the near end of a tunnel over IPv6.
pub(crate) const fn local_over_ipv6() -> Rule<'static> {
    (
        "!has(self.remote) || !isIP(self.remote) || ip(self.remote).family() == 4 || has(self.local)",
        "over IPv6 the near end's address must be stated",
    )
}

/// What a far end is said by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FarEnd {
    /// By its address.
    Address(IpAddr),
    /// By the pod that has it.
    Pod(String),
}

impl Remote {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<FarEnd> {
        let text = &self.0;
        let like_an_address =
            text.contains(':') || text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if like_an_address {
            return IpText(text.clone()).read(field, problems).map(FarEnd::Address);
        }
        if is_object_name(text) {
            return Some(FarEnd::Pod(text.clone()));
        }
        let message = format!(
            "`{}` is neither an address such as 192.168.100.1 or fd00::1, nor the name of a pod",
            text.escape_debug()
        );
        problems.invalid(field, message);
        None
    }
}

impl FarEnd {
    /// The address, if it is said.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(*address),
            Self::Pod(_) => None,
        }
    }

    /// The pod, if it is said.
    pub(crate) fn into_pod(self) -> Option<String> {
        match self {
            Self::Address(_) => None,
            Self::Pod(pod) => Some(pod),
        }
    }
}
