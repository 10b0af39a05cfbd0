//! nftables: Knit's own tables in the kernel's packet filter, written over netlink, with no other program's help.
//!
//! A [`Table`] is plain data: sets and maps with their elements, chains with their [`Rule`]s. [`Kernel::replace_tables`]
//! puts whole tables in the place of those that have their names, in one transaction: there is no moment with half of it,
//! and nothing else in the packet filter is touched. [`Kernel::change_tables`] leads from tables that are there to others
//! and says only what differs, which is a hundred times less when one pod among many comes or goes.

mod change;
mod constants;
mod expression;
mod field;
mod message;
mod rule;
mod set;

use nix::errno::Errno;

use self::constants::*;
pub use self::field::{Field, Frame, Ip, Kind, Value};
pub use self::rule::Rule;
pub use self::set::{Contents, Key, Set};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::netlink::constants::NFNL_SUBSYS_NFTABLES;
use crate::netlink::{Message, Socket, TransactionError};

const CONFIG: &str = "CONFIG_NF_TABLES";
const CHANGE: &str = "change the packet filter";

/// Which packets a table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// What bridges see.
    Bridge,
    /// What links see.
    Netdev,
}

/// A table with all that is in it. One with no chain and no set is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Which packets it sees.
    pub family: Family,
    /// Its name, of which the family has one.
    pub name: &'static str,
    /// Its sets and maps.
    pub sets: Vec<Set>,
    /// Its chains.
    pub chains: Vec<Chain>,
}

/// A chain of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name, of which the table has one.
    pub name: &'static str,
    /// Where packets enter it; `None` if other chains lead to it. What goes through it to its end goes on.
    pub entry: Option<Entry>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// Where packets enter a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What the chain may do.
    pub kind: ChainKind,
    /// Where in the kernel.
    pub hook: Hook,
    /// Before which other chains of the same place: those with a higher number.
    pub priority: i32,
}

/// What a chain may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainKind {
    /// Let packets pass, or not.
    Filter,
    /// Change the addresses of connections.
    Nat,
}

/// A place in the kernel that packets pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// All that comes in.
    Prerouting,
    /// What comes in for this node.
    Input,
    /// What this node says.
    Output,
    /// All that leaves.
    Postrouting,
    /// What a link receives, before anything else sees it.
    Ingress(&'static str),
}

impl Family {
    /// The kernel's word for it.
    pub fn word(self) -> &'static str {
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
    /// No table of this name.
    pub fn none(family: Family, name: &'static str) -> Self {
        Self { family, name, sets: Vec::new(), chains: Vec::new() }
    }

    /// Whether there is to be none.
    pub fn is_none(&self) -> bool {
        self.sets.is_empty() && self.chains.is_empty()
    }
}

impl Kernel {
    /// Has these tables in the host's packet filter, whatever tables of their names there were. All in one transaction.
    ///
    /// Where the kernel lacks nftables or a part that is needed, that is [`Error::Lacks`]; but such a kernel has no table
    /// either, so where none is wanted all is well.
    pub fn replace_tables(&mut self, tables: &[Table]) -> Result<()> {
        match self.with_netfilter(|socket| replace(socket, tables)).map_err(lack_of_all) {
            Err(Error::Lacks { .. }) if tables.iter().all(Table::is_none) => Ok(()),
            other => other,
        }
    }

    /// The same where the tables are as `known` says: only what differs is told. All in one transaction. An error may mean that
    /// they are not, whatever it says.
    pub fn change_tables(&mut self, known: &[Table], tables: &[Table]) -> Result<()> {
        let steps: Vec<Step> = tables.iter().flat_map(|table| table.steps_from(known)).collect();
        if steps.is_empty() {
            return Ok(());
        }
        self.with_netfilter(|socket| tell(socket, steps)).map_err(lack_of_all)
    }
}

/// The same, with a socket.
pub(crate) fn replace(socket: &mut Socket, tables: &[Table]) -> Result<()> {
    tell(socket, tables.iter().flat_map(Table::steps).collect())
}

fn tell(socket: &mut Socket, steps: Vec<Step>) -> Result<()> {
    let (messages, needs): (Vec<Message>, Vec<Need>) =
        steps.into_iter().map(|step| (step.message, step.needs)).unzip();
    socket.transaction(NFNL_SUBSYS_NFTABLES, CHANGE, &messages).map_err(
        |TransactionError { index, error }| match index {
            Some(index) => needs[index].lack(error),
            None => lack_of_all(error),
        },
    )
}

/// A message, and what the kernel must have for it.
struct Step {
    message: Message,
    needs: Need,
}

/// A part of nftables that a kernel may have been built without.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Need {
    what: String,
    config: &'static str,
}

impl Need {
    /// What has this number was not found: a family, a kind of chain, an expression.
    fn lack(&self, error: Error) -> Error {
        match error {
            Error::Refused {
                context,
                errno: Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT | Errno::EPROTONOSUPPORT,
                ..
            } => Error::Lacks { context, what: self.what.clone(), config: self.config },
            other => other,
        }
    }
}

/// No netfilter sockets, or no nftables behind them.
fn lack_of_all(error: Error) -> Error {
    match error.errno() {
        Some(Errno::EPROTONOSUPPORT | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT) => {
            Error::Lacks { context: CHANGE.into(), what: "nftables".to_owned(), config: CONFIG }
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests;
