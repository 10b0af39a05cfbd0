//! nftables: Knit's tables, written over netlink without external programs.
//!
//! A [`Table`] is plain data: sets and maps with their elements, chains with their [`Rule`]s.
//! [`Kernel::replace_tables`] replaces whole tables by name in one transaction: no intermediate state is visible, and
//! other tables are not touched. [`Kernel::update_tables`] sends only the differences to the known tables, which is a
//! hundred times less for one pod among many.

mod constants;
mod diff;
mod expression;
mod field;
mod message;
mod rule;
mod set;

use nix::errno::Errno;

use self::constants::*;
pub use self::field::{DataType, EtherType, Field, IpFamily, Value};
pub use self::rule::Rule;
pub use self::set::{Key, Set, SetContents};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::netlink::constants::NFNL_SUBSYS_NFTABLES;
use crate::netlink::{Message, Socket, TransactionError};

const CONFIG: &str = "CONFIG_NF_TABLES";
const UPDATE: &str = "update nftables";

/// The family of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// Frames on bridges.
    Bridge,
    /// Frames at the ingress of a link.
    Netdev,
}

/// A table with its contents. A table without chains and sets is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The family.
    pub family: Family,
    /// Its name, unique in the family.
    pub name: &'static str,
    /// Its sets and maps.
    pub sets: Vec<Set>,
    /// Its chains.
    pub chains: Vec<Chain>,
}

/// A chain of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name, unique in the table.
    pub name: &'static str,
    /// The hook of a base chain; `None` for a chain that others jump to. The policy is accept.
    pub base: Option<BaseChain>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// The type, hook and priority of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// The chain type.
    pub chain_type: ChainType,
    /// The hook.
    pub hook: Hook,
    /// The priority: chains with lower numbers run first.
    pub priority: i32,
}

/// The type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainType {
    /// Accepts and drops packets.
    Filter,
    /// Translates the addresses of connections.
    Nat,
}

/// A netfilter hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// All received packets.
    Prerouting,
    /// Packets to this node.
    Input,
    /// Packets from this node.
    Output,
    /// All sent packets.
    Postrouting,
    /// Packets received on a link, before any other hook.
    Ingress(&'static str),
}

impl Family {
    /// Its name in nftables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Bridge => "bridge",
            Self::Netdev => "netdev",
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::Inet => NFPROTO_INET,
            Self::Bridge => NFPROTO_BRIDGE,
            Self::Netdev => NFPROTO_NETDEV,
        }
    }
}

impl Hook {
    fn number(self) -> u32 {
        match self {
            Self::Prerouting => NF_INET_PRE_ROUTING,
            Self::Input => NF_INET_LOCAL_IN,
            Self::Output => NF_INET_LOCAL_OUT,
            Self::Postrouting => NF_INET_POST_ROUTING,
            Self::Ingress(_) => NF_NETDEV_INGRESS,
        }
    }
}

impl Table {
    /// A table that is deleted if it exists.
    pub fn empty(family: Family, name: &'static str) -> Self {
        Self { family, name, sets: Vec::new(), chains: Vec::new() }
    }

    /// Whether the table is to be deleted.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.chains.is_empty()
    }
}

impl Kernel {
    /// Replaces the tables of these names in the host's namespace, in one transaction.
    ///
    /// [`Error::Unsupported`] if the kernel lacks nftables or a required part of it; but such a kernel has no tables
    /// either, so that deleting tables always succeeds.
    pub fn replace_tables(&mut self, tables: &[Table]) -> Result<()> {
        match self.with_netfilter(|socket| replace(socket, tables)).map_err(explain_unsupported) {
            Err(Error::Unsupported { .. }) if tables.iter().all(Table::is_empty) => Ok(()),
            other => other,
        }
    }

    /// Updates the tables from their `known` contents: only differences are sent, in one transaction. Any error may
    /// mean that the kernel's tables are not as `known`.
    pub fn update_tables(&mut self, known: &[Table], tables: &[Table]) -> Result<()> {
        let steps: Vec<Step> = tables.iter().flat_map(|table| table.update_steps(known)).collect();
        if steps.is_empty() {
            return Ok(());
        }
        self.with_netfilter(|socket| send(socket, steps)).map_err(explain_unsupported)
    }
}

/// Replaces tables through a given socket.
pub(crate) fn replace(socket: &mut Socket, tables: &[Table]) -> Result<()> {
    send(socket, tables.iter().flat_map(Table::steps).collect())
}

fn send(socket: &mut Socket, steps: Vec<Step>) -> Result<()> {
    let (messages, requirement): (Vec<Message>, Vec<Requirement>) =
        steps.into_iter().map(|step| (step.message, step.requirement)).unzip();
    socket.transaction(NFNL_SUBSYS_NFTABLES, UPDATE, &messages).map_err(
        |TransactionError { index, error }| match index {
            Some(index) => requirement[index].explain(error),
            None => explain_unsupported(error),
        },
    )
}

/// A message, and the kernel feature that it requires.
struct Step {
    message: Message,
    requirement: Requirement,
}

/// A part of nftables that a kernel may lack.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    what: String,
    config: &'static str,
}

impl Requirement {
    /// Maps "not found" errors of a family, chain type or expression to the missing feature.
    fn explain(&self, error: Error) -> Error {
        match error {
            Error::Rejected {
                context,
                errno: Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT | Errno::EPROTONOSUPPORT,
                ..
            } => Error::Unsupported { context, what: self.what.clone(), config: self.config },
            other => other,
        }
    }
}

/// Maps errors of a kernel without netfilter sockets or nftables.
fn explain_unsupported(error: Error) -> Error {
    match error.errno() {
        Some(Errno::EPROTONOSUPPORT | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT) => {
            Error::Unsupported { context: UPDATE.into(), what: "nftables".to_owned(), config: CONFIG }
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests;
