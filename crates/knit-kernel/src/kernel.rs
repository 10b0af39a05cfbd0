//! The kernel as Knit sees it: the host's network namespace, and the sandboxes of one transaction.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

use knit_model::{IfName, PrivateKey, PublicKey, SandboxId, Scope};
use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::netlink::constants::*;
use crate::netlink::header::LinkHeader;
use crate::netlink::{Message, Protocol, Socket};
use crate::netns::{Netns, hopper};
use crate::secrets::{NoSecrets, Secrets};

/// The kernel room's one way in. Its only lasting socket is the host's: a socket keeps its namespace alive.
#[derive(Debug)]
pub struct Kernel {
    host: Netns,
    socket: Socket,
    generic: Option<Socket>,
    /// Lasting, because closing it waits until the kernel has freed what was replaced: about 10 ms.
    netfilter: Option<Socket>,
    pub(crate) secrets: Arc<dyn Secrets>,
    /// Keys that the kernel has shown, so that they can be given back.
    pub(crate) seen_keys: BTreeMap<PublicKey, PrivateKey>,
}

/// The sandboxes that one transaction (look, apply, verify) is about, with their namespaces.
///
/// A sandbox's socket is opened when it is first needed and lives as long as this, so that it neither costs anything
/// when nothing is said, nor keeps a namespace alive afterwards.
#[derive(Debug, Default)]
pub struct Places {
    sandboxes: BTreeMap<SandboxId, Place>,
    /// Names of links by number that applying a plan has asked for, so that verifying it need not ask again.
    pub(crate) names: BTreeMap<(Scope, u32), IfName>,
    /// Sysctls that applying a plan has written, open: verifying it reads them without another visit.
    pub(crate) sysctls: BTreeMap<(Scope, String), File>,
}

#[derive(Debug)]
struct Place {
    netns: Netns,
    socket: Option<Socket>,
    generic: Option<Socket>,
}

impl Kernel {
    /// Talks to the kernel of this machine. `host` is the namespace that counts as the host's.
    pub fn open(host: Netns) -> Result<Self> {
        let socket = Socket::open_in(&host, Protocol::Route)?;
        let secrets = Arc::new(NoSecrets);
        Ok(Self { host, socket, generic: None, netfilter: None, secrets, seen_keys: BTreeMap::new() })
    }

    /// Whom to ask for secret keys.
    #[must_use]
    pub fn with_secrets(mut self, secrets: Arc<dyn Secrets>) -> Self {
        self.secrets = secrets;
        self
    }

    /// The host's namespace.
    pub fn host(&self) -> &Netns {
        &self.host
    }

    /// Says something to the host's packet filter.
    pub(crate) fn with_netfilter(&mut self, say: impl FnOnce(&mut Socket) -> Result<()>) -> Result<()> {
        let mut socket = match self.netfilter.take() {
            Some(socket) => socket,
            None => Socket::open_in(&self.host, Protocol::Netfilter)?,
        };
        let said = say(&mut socket);
        // After a lost answer the kernel may still be talking.
        if !matches!(said, Err(Error::Timeout { .. } | Error::Overrun { .. })) {
            self.netfilter = Some(socket);
        }
        said
    }
}

/// Hands a result on. After a lost answer the kernel may still be talking, so that the next one gets new sockets.
pub(crate) fn recovered<T>(result: Result<T>, kernel: &mut Kernel, places: &mut Places) -> Result<T> {
    if let Err(error) = &result {
        recover(error, kernel, places)?;
    }
    result
}

/// Takes new sockets where the old ones may still hear answers to older questions.
pub(crate) fn recover(after: &Error, kernel: &mut Kernel, places: &mut Places) -> Result<()> {
    if matches!(after, Error::Timeout { .. } | Error::Overrun { .. } | Error::Unsettled { .. }) {
        for place in places.sandboxes.values_mut() {
            (place.socket, place.generic) = (None, None);
        }
        kernel.socket = Socket::open_in(&kernel.host, Protocol::Route)?;
        kernel.generic = None;
    }
    Ok(())
}

impl Places {
    /// No sandbox at all: a transaction of the host's alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a sandbox with its namespace.
    pub fn add(&mut self, id: SandboxId, netns: Netns) {
        self.sandboxes.insert(id, Place { netns, socket: None, generic: None });
    }

    /// Whether the sandbox is one of these.
    pub fn contains(&self, id: &SandboxId) -> bool {
        self.sandboxes.contains_key(id)
    }

    /// The namespace of a sandbox; `None` for a sandbox that is not one of these.
    pub fn netns(&self, id: &SandboxId) -> Option<&Netns> {
        self.sandboxes.get(id).map(|place| &place.netns)
    }

    /// The cookie of a sandbox's namespace; `None` for a sandbox that is not one of these.
    pub fn cookie(&mut self, id: &SandboxId) -> Result<Option<u64>> {
        let place = self.sandboxes.get_mut(id);
        place.map(|place| place.socket()?.netns_cookie()).transpose()
    }

    /// Lets go of all sandboxes but these, and of what earlier plans left for their verification.
    pub fn keep(&mut self, is_wanted: impl Fn(&SandboxId) -> bool) {
        self.names.clear();
        self.sysctls.clear();
        self.sandboxes.retain(|id, _| is_wanted(id));
    }

    /// The same, for building up.
    #[must_use]
    pub fn with(mut self, id: SandboxId, netns: Netns) -> Self {
        self.add(id, netns);
        self
    }
}

impl Place {
    fn socket(&mut self) -> Result<&mut Socket> {
        match &mut self.socket {
            Some(socket) => Ok(socket),
            empty => Ok(empty.insert(Socket::open_in(&self.netns, Protocol::Route)?)),
        }
    }
}

/// Everything that a transaction talks to.
pub(crate) struct Room<'a> {
    pub(crate) kernel: &'a mut Kernel,
    pub(crate) places: &'a mut Places,
}

/// How a link is named in a question.
#[derive(Clone, Copy)]
pub(crate) enum By<'a> {
    Name(&'a str),
    AlternativeName(&'a str),
}

impl Room<'_> {
    /// The scope's socket.
    pub(crate) fn socket(&mut self, scope: &Scope) -> Result<&mut Socket> {
        let id = match scope {
            Scope::Host => return Ok(&mut self.kernel.socket),
            Scope::Sandbox(id) => id,
        };
        self.places.sandboxes.get_mut(id).ok_or_else(|| no_namespace(scope))?.socket()
    }

    /// The scope's socket for families that are found by name, such as WireGuard's.
    pub(crate) fn generic(&mut self, scope: &Scope) -> Result<&mut Socket> {
        let (netns, socket) = match scope {
            Scope::Host => (&self.kernel.host, &mut self.kernel.generic),
            Scope::Sandbox(id) => {
                let place = self.places.sandboxes.get_mut(id).ok_or_else(|| no_namespace(scope))?;
                (&place.netns, &mut place.generic)
            }
        };
        match socket {
            Some(socket) => Ok(socket),
            empty => Ok(empty.insert(Socket::open_in(netns, Protocol::Generic)?)),
        }
    }

    /// The scope's namespace.
    pub(crate) fn netns(&self, scope: &Scope) -> Result<&Netns> {
        match scope {
            Scope::Host => Ok(&self.kernel.host),
            Scope::Sandbox(id) => {
                self.places.sandboxes.get(id).map(|place| &place.netns).ok_or_else(|| no_namespace(scope))
            }
        }
    }

    /// What the kernel says about one link: the message's body, or `None` when there is no such link.
    pub(crate) fn link_body(&mut self, scope: &Scope, by: By<'_>) -> Result<Option<Vec<u8>>> {
        let (By::Name(name) | By::AlternativeName(name)) = by;
        let mut message = Message::new(RTM_GETLINK, 0, format!("look at link {name} on {scope}"));
        message.header(&LinkHeader::default());
        match by {
            By::Name(name) => message.put_str(IFLA_IFNAME, name),
            By::AlternativeName(name) => message.put_str(IFLA_ALT_IFNAME, name),
        };
        message.put_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        let body = self.socket(scope)?.request_reply(message, |_, body| Some(body.to_vec()));
        absent_is_none(body)
    }

    /// Runs something short inside a scope's namespace.
    pub(crate) fn visit<T: Send + 'static>(
        &self,
        scope: &Scope,
        inside: impl Fn() -> io::Result<T> + Clone + Send + 'static,
    ) -> Result<io::Result<T>> {
        hopper::visit(self.netns(scope)?, inside)
    }
}

fn no_namespace(scope: &Scope) -> Error {
    Error::NoNamespace { scope: scope.to_string() }
}

/// A refusal because the thing asked for is not there becomes `None`.
pub(crate) fn absent_is_none<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(Error::Refused { errno: Errno::ENODEV | Errno::ENOENT | Errno::ENXIO, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
