//! Translates steps into netlink messages and sysctl writes.

use knit_model::plan::{PlannedStep, Step};

use super::transaction::{Failure, Op, Transaction};
use super::{addresses, deletes, links, neighbours, routes, rules, sysctls};
use crate::error::{Error, Result};

impl Transaction<'_, '_> {
    /// Applies one step, or queues it with others of its scope.
    pub(super) fn apply_step(&mut self, step: usize, planned: &PlannedStep) -> Result<(), Failure> {
        let scope = &planned.scope;
        match &planned.step {
            Step::CreateLink { link, peer } => links::create(self, step, scope, link, peer.as_ref()),
            Step::DeleteLink { link, peer } => deletes::delete(self, step, scope, link, peer.as_ref()),
            Step::ChangeLink { name, kind, changes } => links::change(self, step, scope, name, kind, changes),
            Step::AddAddress(address) if addresses::is_added_by_kernel(address) => Ok(()),
            Step::AddAddress(address) => {
                let index = self.require_index(step, scope, &address.link)?;
                let tolerate = self.adding(address.owned);
                self.push(scope, Op::new(step, addresses::add(scope, address, index), tolerate))
            }
            Step::RemoveAddress(address) => {
                let Some(index) = self.find_index(step, scope, &address.link)? else { return Ok(()) };
                let tolerate = self.removing();
                self.push(scope, Op::new(step, addresses::remove(scope, address, index), tolerate))
            }
            Step::AddRoute(route) if routes::is_added_by_kernel(route) => Ok(()),
            Step::AddRoute(route) => {
                let indexes = self.hop_indexes(step, planned, route)?;
                let tolerate = self.adding(route.owned);
                self.push(scope, Op::new(step, routes::add(scope, route, &indexes), tolerate))
            }
            Step::ReplaceRoute { after, .. } => {
                let indexes = self.hop_indexes(step, planned, after)?;
                let tolerate = self.adding(true);
                self.push(scope, Op::new(step, routes::replace(scope, after, &indexes), tolerate))
            }
            Step::RemoveRoute(route) => {
                let mut indexes = Vec::new();
                for hop in &route.via {
                    // The kernel removes a route with any of its links.
                    let Some(index) = self.find_index(step, scope, &hop.link)? else { return Ok(()) };
                    indexes.push(index);
                }
                let tolerate = self.removing();
                self.push(scope, Op::new(step, routes::remove(scope, route, &indexes), tolerate))
            }
            Step::AddRule(rule) => {
                let tolerate = self.adding(true);
                self.push(scope, Op::new(step, rules::add(scope, rule), tolerate))
            }
            Step::RemoveRule(rule) => {
                let tolerate = self.removing();
                self.push(scope, Op::new(step, rules::remove(scope, rule), tolerate))
            }
            Step::AddNeighbour(neighbour) => {
                let index = self.require_index(step, scope, &neighbour.link)?;
                let tolerate = self.adding(neighbour.owned);
                self.push(scope, Op::new(step, neighbours::add(scope, neighbour, index), tolerate))
            }
            Step::ReplaceNeighbour { after, .. } => {
                let index = self.require_index(step, scope, &after.link)?;
                let tolerate = self.adding(true);
                self.push(scope, Op::new(step, neighbours::add(scope, after, index), tolerate))
            }
            Step::RemoveNeighbour(neighbour) => {
                let Some(index) = self.find_index(step, scope, &neighbour.link)? else { return Ok(()) };
                let tolerate = self.removing();
                self.push(scope, Op::new(step, neighbours::remove(scope, neighbour, index), tolerate))
            }
            Step::Filter(change) => self.change_filter(step, scope, change),
            // The previous value is unknown: the sysctl belongs to a link that is deleted.
            Step::SetSysctl { to, .. } if to.is_empty() => Ok(()),
            Step::SetSysctl { key, to, .. } => {
                let write = sysctls::Write { step, key: key.clone(), value: to.clone() };
                self.write_sysctl(scope, write)
            }
        }
    }

    fn hop_indexes(
        &mut self,
        step: usize,
        planned: &PlannedStep,
        route: &knit_model::Route,
    ) -> Result<Vec<u32>, Failure> {
        if route.via.iter().any(|hop| !(1..=256).contains(&hop.weight)) {
            let context = format!("add route {route} on {}", planned.scope).into();
            let error = Error::InvalidValue {
                context,
                reason: "the weight of a next hop must be between 1 and 256".to_owned(),
            };
            return Err(Failure { step, error });
        }
        route.via.iter().map(|hop| self.require_index(step, &planned.scope, &hop.link)).collect()
    }
}
