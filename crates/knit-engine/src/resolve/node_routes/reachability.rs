//! How the pods of other nodes are reached, and which are not, as reported for the cluster network.
//!
//! Only the first entries are listed: with thousands of nodes a complete list is too large for a status, and would be
//! stored, journalled and compared with each change.

use knit_model::report::ItemReport;

use crate::cluster;
use crate::resolve::Resolved;

/// How many routes, and how many warnings, are listed.
const MAX_LISTED: usize = 200;

/// What is reported about the routes to other nodes.
#[derive(Debug, Default)]
pub(super) struct Reachability {
    items: Vec<ItemReport>,
    warnings: Vec<String>,
    unlisted_warnings: usize,
}

impl Reachability {
    /// A range of a node is reached.
    pub(super) fn reached(&mut self, item: ItemReport) {
        if self.items.len() < MAX_LISTED {
            self.items.push(item);
        }
    }

    /// A range or an address of a node is not used.
    pub(super) fn warn(&mut self, warning: String) {
        if self.warnings.len() < MAX_LISTED {
            self.warnings.push(warning);
        } else {
            self.unlisted_warnings += 1;
        }
    }

    /// Adds the report to the unit.
    pub(super) fn finish(mut self, resolved: &mut Resolved) {
        if self.unlisted_warnings > 0 {
            self.warnings
                .push(format!("{} more ranges or addresses of nodes are not used", self.unlisted_warnings));
        }
        let unit_state = &mut resolved.unit_state;
        unit_state.items.extend(self.items.into_iter().map(|item| (cluster::key(), item)));
        unit_state.warnings.extend(self.warnings.into_iter().map(|warning| (cluster::key(), warning)));
    }
}
