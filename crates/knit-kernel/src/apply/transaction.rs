//! One pass over a plan's steps: queued messages, the steps applied so far, and the indexes of links.

use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::thread::sleep;
use std::time::Duration;

use knit_model::filter::FilterStep;
use knit_model::link::Attrs;
use knit_model::{IfName, Kind, Scope};
use nix::errno::Errno;

use super::sysctls::{self, Write};
use super::{DeleteMode, delete_group, links};
use crate::error::{Error, Result};
use crate::kernel::{LinkSelector, Session};
use crate::kinds::{self, FieldSelection, LinkContext};
use crate::netlink::constants::RTM_NEWROUTE;
use crate::netlink::header::LinkHeader;
use crate::netlink::{Header, Message};
use crate::nft::FilterError;

/// How often a route is sent again whose gateway the kernel does not find yet.
const GATEWAY_RETRIES: u32 = 4;
/// The delay before the first time; it doubles.
const GATEWAY_RETRY_DELAY: Duration = Duration::from_millis(1);

/// The state of one pass.
pub(super) struct Transaction<'a, 'r> {
    pub(super) session: &'a mut Session<'r>,
    pub(super) delete_mode: DeleteMode,
    /// During rollback, objects that exist already or are gone already are fine.
    pub(super) rolling_back: bool,
    /// Steps that were applied at least in part, or may have been.
    pub(super) touched: BTreeSet<usize>,
    /// The scopes with links that wait for deferred deletion.
    pub(super) deferred_deletes: BTreeSet<Scope>,
    pending: Pending,
    /// The scope and the last step of links that are in the delete group and not deleted yet.
    pending_delete: Option<(Scope, usize)>,
    /// New links that are still in Knit's initial group, with their final one: it is set along with the next change.
    pending_groups: Vec<PendingGroup>,
    /// Ownership marks of the ends of new pairs: each is sent with the next messages of its scope.
    pending_marks: Vec<(Scope, Op)>,
    indexes: HashMap<(Scope, IfName), u32>,
}

/// A new link that has its mark and is still in Knit's initial group.
pub(super) struct PendingGroup {
    pub(super) step: usize,
    pub(super) scope: Scope,
    pub(super) name: IfName,
    pub(super) group: u32,
}

/// Queued operations of one scope.
enum Pending {
    Messages(Scope, Vec<Op>),
    Sysctls(Scope, Vec<Write>),
    /// Changes of the packet filter, each with its step: one nftables transaction.
    Filter(Scope, Vec<(usize, FilterStep)>),
}

/// One message of a step.
pub(super) struct Op {
    pub(super) step: usize,
    pub(super) message: Message,
    pub(super) tolerate: Tolerate,
    /// The kernel may apply a part of it and then reject the rest.
    pub(super) divisible: bool,
}

/// Which errors count as success.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tolerate {
    Nothing,
    /// The object is gone already.
    Absence,
    /// The object exists already.
    Presence,
    /// The object is gone, or another qdisc replaced it, which the kernel reports as EINVAL.
    ForeignQdisc,
}

/// A failed step and its error.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) step: usize,
    pub(super) error: Error,
}

impl Borrow<Message> for Op {
    fn borrow(&self) -> &Message {
        &self.message
    }
}

impl Op {
    pub(super) fn new(step: usize, message: Message, tolerate: Tolerate) -> Self {
        Self { step, message, tolerate, divisible: false }
    }

    /// Whether it is a route that the kernel may accept a moment later. Linux 6.18 does not find an IPv6 gateway for about one
    /// of a thousand new pods on a busy node, although the address with the gateway's subnet was added before.
    fn may_be_early(&self, error: &Error) -> bool {
        self.message.kind() == RTM_NEWROUTE && error.errno() == Some(Errno::EHOSTUNREACH)
    }

    fn may_fail_with(&self, error: &Error) -> bool {
        let Some(errno) = error.errno() else { return false };
        match self.tolerate {
            Tolerate::Nothing => false,
            Tolerate::Absence => is_absence(errno),
            Tolerate::Presence => errno == Errno::EEXIST,
            Tolerate::ForeignQdisc => is_absence(errno) || errno == Errno::EINVAL,
        }
    }
}

/// The error numbers for "no such object".
fn is_absence(errno: Errno) -> bool {
    use Errno::{EADDRNOTAVAIL, ENODEV, ENOENT, ENXIO, ESRCH};
    matches!(errno, EADDRNOTAVAIL | ENODEV | ENOENT | ENXIO | ESRCH)
}

impl<'a, 'r> Transaction<'a, 'r> {
    pub(super) fn new(session: &'a mut Session<'r>, delete_mode: DeleteMode) -> Self {
        Self {
            session,
            delete_mode,
            rolling_back: false,
            touched: BTreeSet::new(),
            deferred_deletes: BTreeSet::new(),
            pending: Pending::Messages(Scope::Host, Vec::new()),
            pending_delete: None,
            pending_groups: Vec::new(),
            pending_marks: Vec::new(),
            indexes: HashMap::new(),
        }
    }

    /// Queues a message; it is sent with adjacent messages of the same scope.
    pub(super) fn push(&mut self, scope: &Scope, op: Op) -> Result<(), Failure> {
        self.flush_deletes()?;
        self.add(scope, op)
    }

    /// Queues the message that moves a link into the delete group. Consecutive links are deleted together.
    pub(super) fn push_delete(&mut self, scope: &Scope, op: Op) -> Result<(), Failure> {
        if self.pending_delete.as_ref().is_some_and(|(here, _)| here != scope) {
            self.flush_deletes()?;
        }
        self.pending_delete = Some((scope.clone(), op.step));
        self.add(scope, op)
    }

    fn flush_deletes(&mut self) -> Result<(), Failure> {
        match self.pending_delete.take() {
            Some((scope, step)) => self.add(&scope, Op::new(step, delete_group(&scope), Tolerate::Absence)),
            None => Ok(()),
        }
    }

    fn add(&mut self, scope: &Scope, op: Op) -> Result<(), Failure> {
        let marks = self.pending_marks.extract_if(.., |(there, _)| there == scope);
        let ops = marks.map(|(_, mark)| mark).chain([op]).collect::<Vec<_>>();
        if let Pending::Messages(here, queued) = &mut self.pending
            && here == scope
        {
            queued.extend(ops);
            return Ok(());
        }
        self.flush_pending()?;
        self.pending = Pending::Messages(scope.clone(), ops);
        Ok(())
    }

    /// Queues a sysctl; it is written with adjacent sysctls of the same scope.
    pub(super) fn write_sysctl(&mut self, scope: &Scope, write: Write) -> Result<(), Failure> {
        self.flush_deletes()?;
        if let Pending::Sysctls(here, writes) = &mut self.pending
            && here == scope
        {
            writes.push(write);
            return Ok(());
        }
        self.flush_pending()?;
        self.pending = Pending::Sysctls(scope.clone(), vec![write]);
        Ok(())
    }

    /// Queues a change of the packet filter; adjacent ones of the same scope are one nftables transaction.
    pub(super) fn change_filter(
        &mut self,
        step: usize,
        scope: &Scope,
        change: &FilterStep,
    ) -> Result<(), Failure> {
        self.flush_deletes()?;
        if let Pending::Filter(here, changes) = &mut self.pending
            && here == scope
        {
            changes.push((step, change.clone()));
            return Ok(());
        }
        self.flush_pending()?;
        self.pending = Pending::Filter(scope.clone(), vec![(step, change.clone())]);
        Ok(())
    }

    /// Applies everything that is queued or deferred.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        for (scope, mark) in mem::take(&mut self.pending_marks) {
            self.push(&scope, mark)?;
        }
        for link in mem::take(&mut self.pending_groups) {
            let attrs = Attrs { group: Some(link.group), ..Attrs::default() };
            links::set(self, link.step, &link.scope, &link.name, &attrs, None)?;
        }
        self.flush()
    }

    /// Defers the mark of one end of a pair to the next messages of its scope. If the kernel rejects the mark and
    /// accepts what follows, the other end still has its mark or Knit's group, which identifies the pair.
    pub(super) fn defer_mark(&mut self, scope: &Scope, mark: Op) {
        self.pending_marks.push((scope.clone(), mark));
    }

    /// Defers the final group of a new link to its next change; most links have one, which sets them up.
    pub(super) fn defer_group(&mut self, link: PendingGroup) {
        self.pending_groups.push(link);
    }

    /// The deferred group of a link.
    pub(super) fn take_deferred_group(&mut self, scope: &Scope, name: &IfName) -> Option<u32> {
        let position =
            self.pending_groups.iter().position(|link| link.scope == *scope && link.name == *name)?;
        Some(self.pending_groups.swap_remove(position).group)
    }

    /// Applies everything that is queued.
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        self.flush_deletes()?;
        self.flush_pending()
    }

    fn flush_pending(&mut self) -> Result<(), Failure> {
        let empty = Pending::Messages(Scope::Host, Vec::new());
        match mem::replace(&mut self.pending, empty) {
            Pending::Messages(scope, ops) => self.send(&scope, ops),
            Pending::Sysctls(scope, writes) => {
                let is_tolerant = self.rolling_back;
                let (done, outcome) = sysctls::write(self.session, &scope, writes, is_tolerant);
                self.touched.extend(done);
                outcome
            }
            Pending::Filter(scope, changes) => {
                let steps = || changes.iter().map(|(step, _)| *step);
                match self.session.change_filter(&scope, &changes) {
                    Ok(()) => {
                        self.touched.extend(steps());
                        Ok(())
                    }
                    Err(FilterError { step, error }) => {
                        // Without an acknowledgement the transaction may have been applied.
                        if matches!(error, Error::Timeout { .. } | Error::Overrun { .. }) {
                            self.touched.extend(steps());
                        }
                        Err(Failure { step, error })
                    }
                }
            }
        }
    }

    /// Sends messages, and resends those that the kernel skipped because of a tolerated error.
    fn send(&mut self, scope: &Scope, mut ops: Vec<Op>) -> Result<(), Failure> {
        let mut retries = 0;
        while !ops.is_empty() {
            let socket = self.session.socket(scope).map_err(|error| Failure { step: ops[0].step, error })?;
            let Err(failed) = socket.batch(&ops) else {
                self.touched.extend(ops.iter().map(|op| op.step));
                return Ok(());
            };
            let is_applied = |index: &usize| failed.applied.contains(index);
            self.touched.extend((0..ops.len()).filter(is_applied).map(|index| ops[index].step));
            let is_repeated = retries < GATEWAY_RETRIES && ops[failed.index].may_be_early(&failed.error);
            if is_repeated {
                sleep(GATEWAY_RETRY_DELAY * 2_u32.pow(retries));
                retries += 1;
            }
            if !is_repeated && !ops[failed.index].may_fail_with(&failed.error) {
                // Without an acknowledgement a message may have been applied.
                let is_unacknowledged = !matches!(failed.error, Error::Rejected { .. });
                let doubtful = ops.iter().filter(|op| is_unacknowledged || op.divisible);
                self.touched.extend(doubtful.map(|op| op.step));
                return Err(Failure { step: ops[failed.index].step, error: failed.error });
            }
            let mut index = 0;
            ops.retain(|_| {
                let is_over = !is_repeated && index == failed.index || failed.applied.contains(&index);
                index += 1;
                !is_over
            });
        }
        Ok(())
    }

    /// Configures what the link message cannot carry. Flushes first: a queued message may create the link.
    pub(super) fn configure(
        &mut self,
        step: usize,
        scope: &Scope,
        link: &IfName,
        kind: &Kind,
        selection: FieldSelection<'_>,
    ) -> Result<(), Failure> {
        self.flush()?;
        // This may take several messages, some of which may be applied before one is rejected.
        self.touched.insert(step);
        match kinds::configure(
            kind,
            selection,
            &mut LinkContext { session: &mut *self.session, scope, name: link },
        ) {
            Err(error) if self.rolling_back && error.errno().is_some_and(is_absence) => Ok(()),
            result => result.map_err(|error| Failure { step, error }),
        }
    }

    /// The index of a link, if it exists. Flushes first: a queued message may create the link.
    pub(super) fn find_index(
        &mut self,
        step: usize,
        scope: &Scope,
        name: &IfName,
    ) -> Result<Option<u32>, Failure> {
        self.lookup_index(step, scope, name, |session| {
            let body = session.link_body(scope, LinkSelector::Name(name.as_str()))?;
            Ok(body.and_then(|body| LinkHeader::decode(&body)).map(|header| header.index as u32))
        })
    }

    /// The index of a link that must exist.
    pub(super) fn require_index(
        &mut self,
        step: usize,
        scope: &Scope,
        name: &IfName,
    ) -> Result<u32, Failure> {
        let found =
            self.lookup_index(step, scope, name, |session| session.socket(scope)?.link_index(name.as_str()))?;
        found.ok_or_else(|| {
            let context = format!("find link {name} on {scope}").into();
            let message = Some("no such link".to_owned());
            Failure { step, error: Error::Rejected { context, errno: Errno::ENODEV, message, offset: None } }
        })
    }

    /// The index of a link, cached or queried.
    fn lookup_index(
        &mut self,
        step: usize,
        scope: &Scope,
        name: &IfName,
        query: impl FnOnce(&mut Session<'_>) -> Result<Option<u32>>,
    ) -> Result<Option<u32>, Failure> {
        let key = (scope.clone(), name.clone());
        if let Some(index) = self.indexes.get(&key) {
            return Ok(Some(*index));
        }
        self.flush()?;
        let index = query(self.session).map_err(|error| Failure { step, error })?;
        if let Some(index) = index {
            self.session.namespaces.names.insert((scope.clone(), index), name.clone());
            self.indexes.insert(key, index);
        }
        Ok(index)
    }

    /// Forgets the index of a link that is deleted.
    pub(super) fn forget_index(&mut self, scope: &Scope, name: &IfName) {
        self.indexes.remove(&(scope.clone(), name.clone()));
        self.session.namespaces.names.retain(|(there, _), other| (there, &*other) != (scope, name));
    }

    /// What to tolerate on removal: the object may have been deleted with its link, or by hand.
    pub(super) fn removing(&self) -> Tolerate {
        Tolerate::Absence
    }

    /// What to tolerate on addition: the kernel restores most objects that are not Knit's by itself.
    pub(super) fn adding(&self, is_owned: bool) -> Tolerate {
        if self.rolling_back || !is_owned { Tolerate::Presence } else { Tolerate::Nothing }
    }
}
