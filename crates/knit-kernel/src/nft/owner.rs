//! The owner of Knit's tables on the host.
//!
//! The kernel changes a table that has an owner for the owner's netlink socket only: it rejects changes by other programs, and
//! `nft flush ruleset` skips the table. So no program opens pods by removing rules, not even for a moment. With the flag `persist`
//! (Linux 6.9) the table stays without an owner when the socket is closed, and the next process of Knit takes it over.
//! The flags are `NFT_TABLE_F_OWNER` and `NFT_TABLE_F_PERSIST` in include/uapi/linux/netfilter/nf_tables.h.
//!
//! An agent owns its tables; a command without an agent ends too early for that. All executors of a node change the tables through one
//! socket. On a kernel without these flags tables have no owner, and changes by other programs are repaired when the kernel reports them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use knit_model::filter::rule::Expression;
use knit_model::filter::{Filter, FilterStep, TableFamily, TableKey};
use knit_model::plan::{Desired, diff};
use knit_model::{NetState, Scope, Step};
use nix::errno::Errno;

use super::constants::*;
use super::{FilterError, FilterQuery, UPDATE, apply_messages, encode, explain_unsupported, observe};
use crate::error::{Error, Result};
use crate::kernel::absent_is_none;
use crate::netlink::constants::NFNL_SUBSYS_NFTABLES;
use crate::netlink::header::NetfilterHeader;
use crate::netlink::{Header, Protocol, Socket, TransactionError};
use crate::netns::Netns;

/// The flags of tables with an owner.
const FLAGS: u32 = NFT_TABLE_F_OWNER | NFT_TABLE_F_PERSIST;
/// How long to wait for the socket of an earlier process to close: a child that it was starting may still have it.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(1);
const CLAIM_RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// The name of a table that the kernel checks and does not create.
const PROBE_TABLE: &str = "knit-probe-owner";

/// The owner of Knit's tables on the host, shared by all executors of a node.
#[derive(Clone, Debug, Default)]
pub struct TableOwner(Arc<Mutex<Ownership>>);

#[derive(Debug, Default)]
struct Ownership {
    /// Whether to own tables.
    is_enabled: bool,
    /// Kept open: when it is closed the tables have no owner.
    socket: Option<Socket>,
    /// Whether the kernel has the flags; `None`: not known yet.
    is_supported: Option<bool>,
    /// The tables that the socket owns.
    owned: BTreeSet<TableKey>,
}

/// Who can change a table.
enum Holder {
    /// It does not exist.
    NoTable,
    /// Everybody; and it cannot get an owner, because it was created without the flag `persist`.
    Everybody,
    /// Everybody, until somebody takes it over.
    Nobody,
    /// The socket with this port number.
    Port(u32),
}

impl TableOwner {
    /// The owner for an agent. The default owns nothing.
    pub fn of_agent() -> Self {
        Self(Arc::new(Mutex::new(Ownership { is_enabled: true, ..Ownership::default() })))
    }

    /// Takes over those of these tables that exist. False: it owns nothing, or the kernel has no owners of tables.
    pub(crate) fn claim(&self, host: &Netns, tables: &[TableKey]) -> Result<bool> {
        let mut ownership = self.lock();
        let is_owner = match ownership.is_owner(host) {
            Err(Error::Unsupported { .. }) => return Ok(false),
            known => known?,
        };
        tables.iter().try_for_each(|table| ownership.claim(host, table, true))?;
        Ok(is_owner)
    }

    /// Applies steps, each with its number, in one transaction.
    pub(crate) fn apply(&self, host: &Netns, steps: &[(usize, FilterStep)]) -> Result<(), FilterError> {
        let first = steps.first().map_or(0, |(step, _)| *step);
        let fail = |error| FilterError { step: first, error };
        let flags = self.lock().prepare(host, steps).map_err(fail)?;
        // Not while others wait.
        let messages = encode::messages(steps.iter().map(|(step, what)| (*step, what)), flags);
        let mut ownership = self.lock();
        let applied = apply_messages(ownership.socket(host).map_err(fail)?, messages);
        for (_, step) in steps {
            match step {
                FilterStep::AddTable(table) if applied.is_ok() && flags != 0 => {
                    ownership.owned.insert(table.clone());
                }
                // After an error without a reply it is not known which tables there are.
                FilterStep::AddTable(table) | FilterStep::RemoveTable(table) => {
                    ownership.owned.remove(table);
                }
                _ => {}
            }
        }
        applied
    }

    fn lock(&self) -> MutexGuard<'_, Ownership> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ownership {
    /// The socket. It is not replaced after a timeout, which would leave the tables without an owner for a moment: late replies have
    /// other sequence numbers.
    fn socket(&mut self, host: &Netns) -> Result<&mut Socket> {
        match &mut self.socket {
            Some(socket) => Ok(socket),
            empty => Ok(empty.insert(Socket::open_in(host, Protocol::Netfilter)?)),
        }
    }

    /// Whether it can own tables.
    fn is_owner(&mut self, host: &Netns) -> Result<bool> {
        if let Some(known) = self.is_supported.or((!self.is_enabled).then_some(false)) {
            return Ok(known);
        }
        let is_supported = supports_owner(self.socket(host)?)?;
        self.is_supported = Some(is_supported);
        Ok(is_supported)
    }

    /// Takes over the tables that steps are about. Returns the flags of new tables.
    fn prepare(&mut self, host: &Netns, steps: &[(usize, FilterStep)]) -> Result<u32> {
        if !self.is_owner(host)? {
            return Ok(0);
        }
        let tables: BTreeSet<&TableKey> = steps.iter().map(|(_, step)| step.table()).collect();
        // A large table is not replaced before each change.
        tables.into_iter().try_for_each(|table| self.claim(host, table, false))?;
        Ok(FLAGS)
    }

    /// Takes over a table, if it exists. One that cannot get an owner is replaced, or left as it is.
    fn claim(&mut self, host: &Netns, table: &TableKey, replaces: bool) -> Result<()> {
        if self.owned.contains(table) || !self.is_owner(host)? {
            return Ok(());
        }
        let socket = self.socket(host)?;
        let deadline = Instant::now() + CLAIM_TIMEOUT;
        loop {
            let holder = holder(socket, table)?;
            let result = match holder {
                Holder::NoTable => return Ok(()),
                Holder::Port(port) if port == socket.port_id()? => Ok(true),
                Holder::Port(port) => {
                    Err(Error::Owned { context: format!("take over table {table}").into(), port })
                }
                Holder::Nobody => take_over(socket, table).map(|()| true),
                Holder::Everybody if replaces => recreate(socket, table),
                Holder::Everybody => Ok(false),
            };
            match result {
                Ok(is_owned) => {
                    if is_owned {
                        self.owned.insert(table.clone());
                    }
                    return Ok(());
                }
                Err(error) if Instant::now() >= deadline || !is_taken(&error) => return Err(error),
                Err(_) => sleep(CLAIM_RETRY_INTERVAL),
            }
        }
    }
}

/// Whether another socket owns the table.
fn is_taken(error: &Error) -> bool {
    matches!(error, Error::Owned { .. }) || error.errno() == Some(Errno::EPERM)
}

/// Whether the kernel has tables with an owner that outlive it.
pub(crate) fn supports_owner(socket: &mut Socket) -> Result<bool> {
    let table = TableKey { family: TableFamily::Inet, name: PROBE_TABLE.into() };
    let message = encode::new_table(&table, FLAGS, "check a table with an owner".to_owned());
    match socket.check_transaction(NFNL_SUBSYS_NFTABLES, UPDATE, &[message]) {
        Ok(()) => Ok(true),
        // Unknown flags: EINVAL before Linux 5.12, which added owners.
        Err(TransactionError { index: Some(_), error })
            if matches!(error.errno(), Some(Errno::EOPNOTSUPP | Errno::EINVAL)) =>
        {
            Ok(false)
        }
        Err(TransactionError { error, .. }) => Err(explain_unsupported(error)),
    }
}

fn holder(socket: &mut Socket, table: &TableKey) -> Result<Holder> {
    let request = encode::message(table, NFT_MSG_GETTABLE, 0, format!("get table {table}"));
    let found = socket.request_reply(request, |_, body| {
        let (_, attributes) = NetfilterHeader::split(body)?;
        let number = |kind: u16| attributes.first(kind).and_then(|attribute| attribute.be32());
        Some((number(NFTA_TABLE_FLAGS).unwrap_or_default(), number(NFTA_TABLE_OWNER)))
    });
    Ok(match absent_is_none(found)? {
        None => Holder::NoTable,
        Some((flags, Some(port))) if flags & NFT_TABLE_F_OWNER != 0 => Holder::Port(port),
        Some((flags, _)) if flags & NFT_TABLE_F_PERSIST != 0 => Holder::Nobody,
        Some(_) => Holder::Everybody,
    })
}

/// Takes over a table that has no owner.
fn take_over(socket: &mut Socket, table: &TableKey) -> Result<()> {
    let message = encode::new_table(table, FLAGS, format!("take over table {table}"));
    socket.transaction(NFNL_SUBSYS_NFTABLES, UPDATE, &[message]).map_err(|failed| failed.error)
}

/// Replaces a table that cannot get an owner by one with the same content, in one transaction: there is no moment without its rules.
/// A command or an earlier version of Knit has created it, or somebody has restored a saved ruleset. False: it has rules of others, which
/// cannot be copied; once they are removed as drift, it is replaced.
fn recreate(socket: &mut Socket, table: &TableKey) -> Result<bool> {
    let query = FilterQuery { tables: [table.clone()].into(), with_elements: true, ..FilterQuery::default() };
    let content = observe(socket, &query)?;
    if has_foreign_rules(&content) {
        return Ok(false);
    }
    let mut desired = NetState::default();
    desired.scope(&Scope::Host).filter = content;
    let plan = diff(&Desired { state: desired, ..Desired::default() }, &NetState::default());
    let mut steps = vec![FilterStep::RemoveTable(table.clone())];
    steps.extend(plan.steps.into_iter().filter_map(|planned| match planned.step {
        Step::Filter(step) => Some(step),
        _ => None,
    }));
    let applied = apply_messages(socket, encode::messages(steps.iter().enumerate(), FLAGS));
    applied.map(|()| true).map_err(|failed| failed.error)
}

fn has_foreign_rules(filter: &Filter) -> bool {
    let chains = filter.tables.values().flat_map(|table| table.chains.values());
    let mut expressions = chains.flat_map(|chain| &chain.rules).flat_map(|rule| &rule.expressions);
    expressions.any(|expression| matches!(expression, Expression::Foreign(_)))
}
