//! Entry point of the kernel layer: the host's network namespace, and the sandboxes of one transaction.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

use knit_model::filter::{FilterStep, TableFamily};
use knit_model::{IfName, PrivateKey, PublicKey, SandboxId, Scope};
use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::netlink::constants::*;
use crate::netlink::header::LinkHeader;
use crate::netlink::{Message, Protocol, Socket};
use crate::netns::{Netns, switch};
use crate::nft::{self, FilterError, TableOwner};
use crate::private_keys::{NoPrivateKeys, PrivateKeySource};

/// Access to the kernel. Only the host's sockets stay open: a socket keeps its network namespace alive.
#[derive(Debug)]
pub struct Kernel {
    host: Netns,
    socket: Socket,
    generic: Option<Socket>,
    /// Kept open: closing it waits about 10 ms until the kernel has freed replaced objects.
    netfilter: Option<Socket>,
    /// The owner of Knit's nftables tables on the host, through which they are changed.
    table_owner: TableOwner,
    pub(crate) key_source: Arc<dyn PrivateKeySource>,
    /// Private keys read from the kernel, so that a rollback can restore them.
    pub(crate) observed_keys: BTreeMap<PublicKey, PrivateKey>,
}

/// The sandboxes of one transaction (observe, apply, verify) with their network namespaces.
///
/// A sandbox's socket is opened on first use and closed with this value, so that it does not keep the namespace alive
/// afterwards.
#[derive(Debug, Default)]
pub struct SandboxNamespaces {
    sandboxes: BTreeMap<SandboxId, SandboxNamespace>,
    /// Link names by index, learned while a plan was applied, so that verification need not query them again.
    pub(crate) names: BTreeMap<(Scope, u32), IfName>,
    /// Open sysctl files that a plan has written: verification reads them without entering the namespace again.
    pub(crate) sysctls: BTreeMap<(Scope, String), File>,
}

#[derive(Debug)]
struct SandboxNamespace {
    netns: Netns,
    socket: Option<Socket>,
    generic: Option<Socket>,
    netfilter: Option<Socket>,
}

impl Kernel {
    /// Opens the kernel layer. `host` is the network namespace of the host.
    pub fn open(host: Netns) -> Result<Self> {
        let socket = Socket::open_in(&host, Protocol::Route)?;
        let key_source = Arc::new(NoPrivateKeys);
        Ok(Self {
            host,
            socket,
            generic: None,
            netfilter: None,
            table_owner: TableOwner::default(),
            key_source,
            observed_keys: BTreeMap::new(),
        })
    }

    /// Shares the ownership of nftables tables with others: only they can change the tables.
    #[must_use]
    pub fn with_table_owner(mut self, owner: TableOwner) -> Self {
        self.table_owner = owner;
        self
    }

    /// The owner of Knit's nftables tables on the host.
    pub fn table_owner(&self) -> &TableOwner {
        &self.table_owner
    }

    /// Takes over Knit's nftables tables on the host that earlier processes left. False: the owner of this process owns nothing, or
    /// this kernel has no owners of tables.
    pub fn claim_tables(&self) -> Result<bool> {
        self.table_owner.claim(&self.host, &[TableFamily::Inet.table(), TableFamily::Bridge.table()])
    }

    /// Sets where private keys come from.
    #[must_use]
    pub fn with_key_source(mut self, key_source: Arc<dyn PrivateKeySource>) -> Self {
        self.key_source = key_source;
        self
    }

    /// The host's network namespace.
    pub fn host(&self) -> &Netns {
        &self.host
    }

    /// Runs `request` with the host's netfilter socket.
    pub(crate) fn with_netfilter(&mut self, request: impl FnOnce(&mut Socket) -> Result<()>) -> Result<()> {
        let mut socket = match self.netfilter.take() {
            Some(socket) => socket,
            None => Socket::open_in(&self.host, Protocol::Netfilter)?,
        };
        let result = request(&mut socket);
        // After a timeout or an overrun, late replies may still arrive on this socket.
        if !matches!(result, Err(Error::Timeout { .. } | Error::Overrun { .. })) {
            self.netfilter = Some(socket);
        }
        result
    }
}

/// Passes a result on. After a timeout or an overrun late replies may still arrive, so new sockets replace the old
/// ones.
pub(crate) fn reset_sockets_on_error<T>(
    result: Result<T>,
    kernel: &mut Kernel,
    namespaces: &mut SandboxNamespaces,
) -> Result<T> {
    if let Err(error) = &result {
        reset_sockets(error, kernel, namespaces)?;
    }
    result
}

/// Replaces sockets on which replies to earlier requests may still arrive.
pub(crate) fn reset_sockets(
    after: &Error,
    kernel: &mut Kernel,
    namespaces: &mut SandboxNamespaces,
) -> Result<()> {
    if matches!(after, Error::Timeout { .. } | Error::Overrun { .. } | Error::DumpInterrupted { .. }) {
        for sandbox in namespaces.sandboxes.values_mut() {
            (sandbox.socket, sandbox.generic, sandbox.netfilter) = (None, None, None);
        }
        kernel.socket = Socket::open_in(&kernel.host, Protocol::Route)?;
        (kernel.generic, kernel.netfilter) = (None, None);
    }
    Ok(())
}

impl SandboxNamespaces {
    /// No sandboxes: a transaction on the host only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a sandbox with its network namespace.
    pub fn add(&mut self, id: SandboxId, netns: Netns) {
        self.sandboxes.insert(id, SandboxNamespace { netns, socket: None, generic: None, netfilter: None });
    }

    /// Whether the sandbox is part of the transaction.
    pub fn contains(&self, id: &SandboxId) -> bool {
        self.sandboxes.contains_key(id)
    }

    /// The namespace of a sandbox; `None` if it is not part of the transaction.
    pub fn netns(&self, id: &SandboxId) -> Option<&Netns> {
        self.sandboxes.get(id).map(|sandbox| &sandbox.netns)
    }

    /// The cookie of a sandbox's namespace; `None` if it is not part of the transaction.
    pub fn cookie(&mut self, id: &SandboxId) -> Result<Option<u64>> {
        let sandbox = self.sandboxes.get_mut(id);
        sandbox.map(|sandbox| sandbox.socket()?.netns_cookie()).transpose()
    }

    /// Drops all other sandboxes, and what earlier plans cached for their verification.
    pub fn retain(&mut self, keep: impl Fn(&SandboxId) -> bool) {
        self.names.clear();
        self.sysctls.clear();
        self.sandboxes.retain(|id, _| keep(id));
    }
}

impl SandboxNamespace {
    fn socket(&mut self) -> Result<&mut Socket> {
        match &mut self.socket {
            Some(socket) => Ok(socket),
            empty => Ok(empty.insert(Socket::open_in(&self.netns, Protocol::Route)?)),
        }
    }
}

/// The kernel and the sandboxes of one transaction.
pub(crate) struct Session<'a> {
    pub(crate) kernel: &'a mut Kernel,
    pub(crate) namespaces: &'a mut SandboxNamespaces,
}

/// How a request selects a link.
#[derive(Clone, Copy)]
pub(crate) enum LinkSelector<'a> {
    Name(&'a str),
    AltName(&'a str),
}

impl Session<'_> {
    /// The scope's rtnetlink socket.
    pub(crate) fn socket(&mut self, scope: &Scope) -> Result<&mut Socket> {
        let id = match scope {
            Scope::Host => return Ok(&mut self.kernel.socket),
            Scope::Sandbox(id) => id,
        };
        self.namespaces.sandboxes.get_mut(id).ok_or_else(|| no_namespace(scope))?.socket()
    }

    /// The scope's generic netlink socket, for families such as WireGuard.
    pub(crate) fn generic(&mut self, scope: &Scope) -> Result<&mut Socket> {
        let (netns, socket) = match scope {
            Scope::Host => (&self.kernel.host, &mut self.kernel.generic),
            Scope::Sandbox(id) => {
                let sandbox = self.namespaces.sandboxes.get_mut(id).ok_or_else(|| no_namespace(scope))?;
                (&sandbox.netns, &mut sandbox.generic)
            }
        };
        opened(netns, socket, Protocol::Generic)
    }

    /// The scope's netfilter socket.
    pub(crate) fn netfilter(&mut self, scope: &Scope) -> Result<&mut Socket> {
        let (netns, socket) = match scope {
            Scope::Host => (&self.kernel.host, &mut self.kernel.netfilter),
            Scope::Sandbox(id) => {
                let sandbox = self.namespaces.sandboxes.get_mut(id).ok_or_else(|| no_namespace(scope))?;
                (&sandbox.netns, &mut sandbox.netfilter)
            }
        };
        opened(netns, socket, Protocol::Netfilter)
    }

    /// Applies steps on the packet filter of a scope, each with its number, in one transaction. Tables of a sandbox have no owner: its
    /// socket would keep the namespace alive.
    pub(crate) fn change_filter(
        &mut self,
        scope: &Scope,
        steps: &[(usize, FilterStep)],
    ) -> Result<(), FilterError> {
        match scope {
            Scope::Host => self.kernel.table_owner.apply(&self.kernel.host, steps),
            Scope::Sandbox(_) => {
                let first = steps.first().map_or(0, |(step, _)| *step);
                let socket = self.netfilter(scope).map_err(|error| FilterError { step: first, error })?;
                nft::apply(socket, steps.iter().map(|(step, what)| (*step, what)))
            }
        }
    }

    /// The scope's network namespace.
    pub(crate) fn netns(&self, scope: &Scope) -> Result<&Netns> {
        match scope {
            Scope::Host => Ok(&self.kernel.host),
            Scope::Sandbox(id) => self
                .namespaces
                .sandboxes
                .get(id)
                .map(|sandbox| &sandbox.netns)
                .ok_or_else(|| no_namespace(scope)),
        }
    }

    /// The body of the kernel's reply for one link; `None` if the link does not exist.
    pub(crate) fn link_body(&mut self, scope: &Scope, selector: LinkSelector<'_>) -> Result<Option<Vec<u8>>> {
        let (LinkSelector::Name(name) | LinkSelector::AltName(name)) = selector;
        let mut message = Message::new(RTM_GETLINK, 0, context("get link ", name, scope));
        message.header(&LinkHeader::default());
        match selector {
            LinkSelector::Name(name) => message.put_str(IFLA_IFNAME, name),
            LinkSelector::AltName(name) => message.put_str(IFLA_ALT_IFNAME, name),
        };
        message.put_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        let body = self.socket(scope)?.request_reply(message, |_, body| Some(body.to_vec()));
        absent_is_none(body)
    }

    /// Runs a short closure inside a scope's namespace.
    pub(crate) fn run_in_netns<T: Send + 'static>(
        &self,
        scope: &Scope,
        inside: impl Fn() -> io::Result<T> + Clone + Send + 'static,
    ) -> Result<io::Result<T>> {
        switch::run_in(self.netns(scope)?, inside)
    }
}

/// The socket, opened on first use.
fn opened<'a>(netns: &Netns, socket: &'a mut Option<Socket>, protocol: Protocol) -> Result<&'a mut Socket> {
    match socket {
        Some(socket) => Ok(socket),
        empty => Ok(empty.insert(Socket::open_in(netns, protocol)?)),
    }
}

fn no_namespace(scope: &Scope) -> Error {
    Error::NoNamespace { scope: scope.to_string() }
}

/// What is attempted on an object of a scope: the verb, and the object's name. Not formatted, because it is used only in errors.
pub(crate) fn context(verb: &'static str, name: &str, scope: &Scope) -> String {
    match scope {
        Scope::Host => [verb, name, " on host"].concat(),
        Scope::Sandbox(id) => [verb, name, " on sandbox ", &id.0].concat(),
    }
}

/// Maps "no such object" errors to `None`.
pub(crate) fn absent_is_none<T>(reply: Result<T>) -> Result<Option<T>> {
    match reply {
        Ok(found) => Ok(Some(found)),
        Err(Error::Rejected { errno: Errno::ENODEV | Errno::ENOENT | Errno::ENXIO, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_names_the_scope_as_it_is_displayed() {
        for scope in [Scope::Host, Scope::Sandbox(SandboxId("ns/pod".to_owned()))] {
            assert_eq!(context("set link ", "net1", &scope), format!("set link net1 on {scope}"));
        }
    }
}
