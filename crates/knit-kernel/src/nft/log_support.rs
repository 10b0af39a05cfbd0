//! Whether this kernel can log packets at a limited rate.

use knit_model::filter::rule::{Expression, FilterRule};
use knit_model::filter::{FilterStep, TableFamily, TableKey};

use super::apply;
use crate::error::Result;
use crate::netlink::{Protocol, Socket};

/// The name of a table that exists only within a transaction.
const TABLE: &str = "knit-probe-log";

/// Adds a rule that logs, and removes it in the same transaction. Fails if the kernel cannot log.
pub fn can_log() -> Result<()> {
    let table = TableKey { family: TableFamily::Inet, name: TABLE.into() };
    let chain = "log".to_owned();
    let log = FilterRule::new()
        .then(Expression::Limit { packets: 1, seconds: 60, burst: 1 })
        .then(Expression::Log { prefix: "knit".to_owned(), group: None });
    let steps = [
        FilterStep::AddTable(table.clone()),
        FilterStep::AddChain(table.clone(), chain.clone(), None),
        FilterStep::SetRules { table: table.clone(), chain, before: Vec::new(), after: vec![log] },
        FilterStep::RemoveTable(table),
    ];
    let mut socket = Socket::open(Protocol::Netfilter)?;
    apply(&mut socket, steps.iter().enumerate()).map_err(|failed| failed.error)
}
