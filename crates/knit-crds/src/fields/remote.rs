//! The remote endpoint of a tunnel: an address, or another pod.

use std::net::IpAddr;

use knit_model::Problems;

use super::{IpText, Rule, is_object_name, text, values};

values! {
    /// The remote endpoint of a tunnel: an IP address, or the name of a pod in the namespace.
    Remote(String) = text(253, &[(
        "isIP(self) || (self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$') && !self.matches('^[0-9.]+$'))",
        "must be an IP address such as 192.168.100.1 or fd00::1, or the name of a pod",
    )]);
}

/// CEL: both endpoints of a tunnel have the same address family.
pub(crate) const fn same_family() -> Rule<'static> {
    (
        "!has(self.local) || !has(self.remote) || !isIP(self.local) || !isIP(self.remote) \
         || ip(self.local).family() == ip(self.remote).family()",
        "local and remote must be of the same address family",
    )
}

/// CEL: a tunnel over IPv6 needs a local endpoint.
pub(crate) const fn local_over_ipv6() -> Rule<'static> {
    (
        "!has(self.remote) || !isIP(self.remote) || ip(self.remote).family() == 4 || has(self.local)",
        "local must be set over IPv6",
    )
}

/// A remote endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RemoteEndpoint {
    /// An IP address.
    Address(IpAddr),
    /// The name of a pod.
    Pod(String),
}

impl Remote {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<RemoteEndpoint> {
        let text = &self.0;
        let looks_like_address =
            text.contains(':') || text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if looks_like_address {
            return IpText(text.clone()).read(field, problems).map(RemoteEndpoint::Address);
        }
        if is_object_name(text) {
            return Some(RemoteEndpoint::Pod(text.clone()));
        }
        let message = format!(
            "must be an IP address such as 192.168.100.1 or fd00::1, or the name of a pod, got `{}`",
            text.escape_debug()
        );
        problems.invalid(field, message);
        None
    }
}

impl RemoteEndpoint {
    /// The IP address, if it is one.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(*address),
            Self::Pod(_) => None,
        }
    }

    /// The pod name, if it is one.
    pub(crate) fn into_pod(self) -> Option<String> {
        match self {
            Self::Address(_) => None,
            Self::Pod(pod) => Some(pod),
        }
    }
}
