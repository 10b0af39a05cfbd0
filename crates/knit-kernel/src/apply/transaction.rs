//! One run through steps: what waits to be sent, what was done, and the numbers of links.

use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap};
use std::mem;

use knit_model::link::Attrs;
use knit_model::{IfName, Kind, Scope};
use nix::errno::Errno;

use super::sysctls::{self, Write};
use super::{Deletes, delete_group, links};
use crate::error::{Error, Result};
use crate::kernel::{By, Room};
use crate::kinds::{self, At, Wanted};
use crate::netlink::header::LinkHeader;
use crate::netlink::{Header, Message};

/// Steps on their way to the kernel.
pub(super) struct Transaction<'a, 'r> {
    pub(super) room: &'a mut Room<'r>,
    pub(super) deletes: Deletes,
    /// On the way back: what is there already, or gone already, is fine.
    pub(super) backward: bool,
    /// Steps that were carried out at least in part, or may have been.
    pub(super) touched: BTreeSet<usize>,
    /// Where links wait to be reaped.
    pub(super) to_reap: BTreeSet<Scope>,
    pending: Pending,
    /// The last of the steps whose links wait in the group that is to be deleted.
    doomed: Option<(Scope, usize)>,
    /// Newborn links still in Knit's group, with the one they are to have: it is set along with the next change.
    ungrouped: Vec<Ungrouped>,
    /// Marks of the ends of newborn pairs: each goes out with the next messages of its scope.
    marks: Vec<(Scope, Op)>,
    indexes: HashMap<(Scope, IfName), u32>,
}

/// A newborn link that is marked, and still in Knit's group.
pub(super) struct Ungrouped {
    pub(super) step: usize,
    pub(super) scope: Scope,
    pub(super) name: IfName,
    pub(super) group: u32,
}

/// What waits to be carried out together.
enum Pending {
    Messages(Scope, Vec<Op>),
    Sysctls(Scope, Vec<Write>),
}

/// One message of a step.
pub(super) struct Op {
    pub(super) step: usize,
    pub(super) message: Message,
    pub(super) tolerate: Tolerate,
    /// The kernel may do a part of it and then refuse the rest.
    pub(super) divisible: bool,
}

/// Which refusal is as good as success.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tolerate {
    Nothing,
    /// It is gone already.
    Absence,
    /// It is there already.
    Presence,
    /// It is gone already, or another has its place, which the kernel calls invalid.
    AnotherQueue,
}

/// The step that failed, and why.
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

    fn may_fail_with(&self, error: &Error) -> bool {
        let Some(errno) = error.errno() else { return false };
        match self.tolerate {
            Tolerate::Nothing => false,
            Tolerate::Absence => is_absence(errno),
            Tolerate::Presence => errno == Errno::EEXIST,
            Tolerate::AnotherQueue => is_absence(errno) || errno == Errno::EINVAL,
        }
    }
}

/// How the parts of the kernel say that something is not there.
fn is_absence(errno: Errno) -> bool {
    use Errno::{EADDRNOTAVAIL, ENODEV, ENOENT, ENXIO, ESRCH};
    matches!(errno, EADDRNOTAVAIL | ENODEV | ENOENT | ENXIO | ESRCH)
}

impl<'a, 'r> Transaction<'a, 'r> {
    pub(super) fn new(room: &'a mut Room<'r>, deletes: Deletes) -> Self {
        Self {
            room,
            deletes,
            backward: false,
            touched: BTreeSet::new(),
            to_reap: BTreeSet::new(),
            pending: Pending::Messages(Scope::Host, Vec::new()),
            doomed: None,
            ungrouped: Vec::new(),
            marks: Vec::new(),
            indexes: HashMap::new(),
        }
    }

    /// Adds a message; it goes out with its neighbours of the same scope.
    pub(super) fn push(&mut self, scope: &Scope, op: Op) -> Result<(), Failure> {
        self.delete_doomed()?;
        self.add(scope, op)
    }

    /// Adds the message that moves a link into the group to be deleted. Links that follow each other go together.
    pub(super) fn push_doomed(&mut self, scope: &Scope, op: Op) -> Result<(), Failure> {
        if self.doomed.as_ref().is_some_and(|(here, _)| here != scope) {
            self.delete_doomed()?;
        }
        self.doomed = Some((scope.clone(), op.step));
        self.add(scope, op)
    }

    fn delete_doomed(&mut self) -> Result<(), Failure> {
        match self.doomed.take() {
            Some((scope, step)) => self.add(&scope, Op::new(step, delete_group(&scope), Tolerate::Absence)),
            None => Ok(()),
        }
    }

    fn add(&mut self, scope: &Scope, op: Op) -> Result<(), Failure> {
        let marks = self.marks.extract_if(.., |(there, _)| there == scope);
        let ops = marks.map(|(_, mark)| mark).chain([op]).collect::<Vec<_>>();
        if let Pending::Messages(here, waiting) = &mut self.pending
            && here == scope
        {
            waiting.extend(ops);
            return Ok(());
        }
        self.carry_out()?;
        self.pending = Pending::Messages(scope.clone(), ops);
        Ok(())
    }

    /// Adds a sysctl; it is written with its neighbours of the same scope.
    pub(super) fn write_sysctl(&mut self, scope: &Scope, write: Write) -> Result<(), Failure> {
        self.delete_doomed()?;
        if let Pending::Sysctls(here, writes) = &mut self.pending
            && here == scope
        {
            writes.push(write);
            return Ok(());
        }
        self.carry_out()?;
        self.pending = Pending::Sysctls(scope.clone(), vec![write]);
        Ok(())
    }

    /// Carries out all that waits, and leaves nothing for later.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        for (scope, mark) in mem::take(&mut self.marks) {
            self.push(&scope, mark)?;
        }
        for link in mem::take(&mut self.ungrouped) {
            let attrs = Attrs { group: Some(link.group), ..Attrs::default() };
            links::set(self, link.step, &link.scope, &link.name, &attrs, None)?;
        }
        self.flush()
    }

    /// Leaves the mark of one end of a pair to the next messages of its scope. If the kernel refuses it and takes what
    /// follows, the other end still has its own mark or Knit's group, and the pair is found by that.
    pub(super) fn leave_mark(&mut self, scope: &Scope, mark: Op) {
        self.marks.push((scope.clone(), mark));
    }

    /// Leaves the group of a newborn link to its next change, which most have: it goes up.
    pub(super) fn leave_group(&mut self, link: Ungrouped) {
        self.ungrouped.push(link);
    }

    /// The group that was left to this change.
    pub(super) fn left_group(&mut self, scope: &Scope, name: &IfName) -> Option<u32> {
        let place = self.ungrouped.iter().position(|link| link.scope == *scope && link.name == *name)?;
        Some(self.ungrouped.swap_remove(place).group)
    }

    /// Carries out all that waits.
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        self.delete_doomed()?;
        self.carry_out()
    }

    fn carry_out(&mut self) -> Result<(), Failure> {
        let nothing = Pending::Messages(Scope::Host, Vec::new());
        match mem::replace(&mut self.pending, nothing) {
            Pending::Messages(scope, ops) => self.send(&scope, ops),
            Pending::Sysctls(scope, writes) => {
                let is_tolerant = self.backward;
                let (done, outcome) = sysctls::write(self.room, &scope, writes, is_tolerant);
                self.touched.extend(done);
                outcome
            }
        }
    }

    /// Sends messages, and again those that the kernel did not come to take because of a refusal that does not matter.
    fn send(&mut self, scope: &Scope, mut ops: Vec<Op>) -> Result<(), Failure> {
        while !ops.is_empty() {
            let socket = self.room.socket(scope).map_err(|error| Failure { step: ops[0].step, error })?;
            let Err(refused) = socket.batch(&ops) else {
                self.touched.extend(ops.iter().map(|op| op.step));
                return Ok(());
            };
            let is_applied = |index: &usize| refused.applied.contains(index);
            self.touched.extend((0..ops.len()).filter(is_applied).map(|index| ops[index].step));
            if !ops[refused.index].may_fail_with(&refused.error) {
                // Without the kernel's word on a message, it may hold.
                let is_unsure = !matches!(refused.error, Error::Refused { .. });
                let doubtful = ops.iter().filter(|op| is_unsure || op.divisible);
                self.touched.extend(doubtful.map(|op| op.step));
                return Err(Failure { step: ops[refused.index].step, error: refused.error });
            }
            let mut index = 0;
            ops.retain(|_| {
                let is_over = index == refused.index || refused.applied.contains(&index);
                index += 1;
                !is_over
            });
        }
        Ok(())
    }

    /// Says what a link's own message cannot say. What waits is sent first: it may make the link.
    pub(super) fn tell(
        &mut self,
        step: usize,
        scope: &Scope,
        link: &IfName,
        kind: &Kind,
        wanted: Wanted<'_>,
    ) -> Result<(), Failure> {
        self.flush()?;
        // It may take more than one message: a part may hold when another is refused.
        self.touched.insert(step);
        match kinds::tell(kind, wanted, &mut At { room: &mut *self.room, scope, link }) {
            Err(error) if self.backward && error.errno().is_some_and(is_absence) => Ok(()),
            told => told.map_err(|error| Failure { step, error }),
        }
    }

    /// The number of a link, if it is there. What waits is sent first: it may make the link.
    pub(super) fn index(
        &mut self,
        step: usize,
        scope: &Scope,
        name: &IfName,
    ) -> Result<Option<u32>, Failure> {
        self.number(step, scope, name, |room| {
            let body = room.link_body(scope, By::Name(name.as_str()))?;
            Ok(body.and_then(|body| LinkHeader::decode(&body)).map(|header| header.index as u32))
        })
    }

    /// The number of a link that must be there.
    pub(super) fn need(&mut self, step: usize, scope: &Scope, name: &IfName) -> Result<u32, Failure> {
        let found = self.number(step, scope, name, |room| room.socket(scope)?.link_index(name.as_str()))?;
        found.ok_or_else(|| {
            let context = format!("find link {name} on {scope}").into();
            let message = Some("there is no such link".to_owned());
            Failure { step, error: Error::Refused { context, errno: Errno::ENODEV, message, offset: None } }
        })
    }

    /// The number of a link, from memory or by asking.
    fn number(
        &mut self,
        step: usize,
        scope: &Scope,
        name: &IfName,
        ask: impl FnOnce(&mut Room<'_>) -> Result<Option<u32>>,
    ) -> Result<Option<u32>, Failure> {
        let key = (scope.clone(), name.clone());
        if let Some(index) = self.indexes.get(&key) {
            return Ok(Some(*index));
        }
        self.flush()?;
        let index = ask(self.room).map_err(|error| Failure { step, error })?;
        if let Some(index) = index {
            self.room.places.names.insert((scope.clone(), index), name.clone());
            self.indexes.insert(key, index);
        }
        Ok(index)
    }

    /// Forgets the number of a link that goes.
    pub(super) fn forget(&mut self, scope: &Scope, name: &IfName) {
        self.indexes.remove(&(scope.clone(), name.clone()));
        self.room.places.names.retain(|(there, _), other| (there, &*other) != (scope, name));
    }

    /// What to tolerate when something is removed: it may have gone with a link, or by hand.
    pub(super) fn removing(&self) -> Tolerate {
        Tolerate::Absence
    }

    /// What to tolerate when something is added. What is not Knit's comes back by itself in most cases.
    pub(super) fn adding(&self, is_owned: bool) -> Tolerate {
        if self.backward || !is_owned { Tolerate::Presence } else { Tolerate::Nothing }
    }
}
