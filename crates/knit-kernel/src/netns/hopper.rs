//! The thread that visits other network namespaces.
//!
//! `setns` moves a thread, so it must never happen on a thread that does other work. One thread lives as long as the
//! process, goes there, does what it was asked (open a socket, write a sysctl), comes back, and hands the result over:
//! two cheap system calls, and no thread to start for each attach. If it cannot come back it ends, and the next call
//! starts another.
//!
//! Handing over takes far longer than the visit itself, most of all on a busy machine. A thread that does nothing but
//! talk to the kernel may go there itself: it says so by [`may_visit`].

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nix::sched::{CloneFlags, setns};

use super::Netns;
use crate::error::{Error, Result};
use crate::netlink::socket::{Protocol, raw};

/// Where the thread waits between visits: the namespace of the process's first thread. Staying in the namespace of
/// whoever called first would keep that one alive.
const HOME: &str = "/proc/self/ns/net";

/// The way to the thread, once there is one.
static HOPPER: Mutex<Option<Sender<Visit>>> = Mutex::new(None);

thread_local! {
    /// Where this thread comes back to, if it visits other namespaces itself.
    static HOME_OF_THREAD: RefCell<Option<Netns>> = const { RefCell::new(None) };
}

/// From here on the calling thread visits other network namespaces itself, for as long as each visit takes, and comes
/// back to the one it is in now. For a thread of one's own that works for nobody else and goes nowhere by itself; never
/// for one of an async runtime.
pub fn may_visit() -> Result<()> {
    HOME_OF_THREAD.set(Some(Netns::current()?));
    Ok(())
}

struct Visit {
    netns: Netns,
    /// Told whether the thread is inside; hands its result over itself, once it is called.
    work: Work,
}

/// What to do inside. It returns how to hand the result over, which waits until the thread is home again.
type Work = Box<dyn FnOnce(io::Result<()>) -> Box<dyn FnOnce()> + Send>;

/// Opens a bare netlink socket in a namespace.
pub(crate) fn open(netns: &Netns, protocol: Protocol) -> Result<OwnedFd> {
    let cannot = |error| Error::system("network namespace", "open a socket inside it", error);
    visit(netns, move || raw(protocol))?.map_err(cannot)
}

/// Runs something short inside a namespace. It may run twice, when the thread is lost in the middle of it.
pub(crate) fn visit<T: Send + 'static>(
    netns: &Netns,
    inside: impl Fn() -> io::Result<T> + Clone + Send + 'static,
) -> Result<io::Result<T>> {
    if let Some(home) = HOME_OF_THREAD.with_borrow(Clone::clone) {
        return Ok(visit_in_person(home, netns, inside));
    }
    // A thread that could not come back from its last visit is gone: one more try, with a new one.
    for _ in 0..2 {
        let (answer, outcome) = channel();
        let inside = inside.clone();
        let work: Work = Box::new(move |entered| {
            let result = entered.and_then(|()| inside());
            Box::new(move || {
                // The caller waits for the answer; if it is gone, what was opened is closed here.
                let _ = answer.send(result);
            })
        });
        if hopper()?.send(Visit { netns: netns.clone(), work }).is_err() {
            forget();
            continue;
        }
        match outcome.recv() {
            Ok(result) => return Ok(result),
            Err(_) => forget(),
        }
    }
    let lost = io::Error::other("the thread that visits namespaces keeps ending");
    Err(Error::system("network namespace", "enter it", lost))
}

/// The calling thread goes itself.
fn visit_in_person<T>(home: Netns, netns: &Netns, inside: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    debug_assert!(
        Netns::current().and_then(|here| here.is_same(&home)).unwrap_or(false),
        "a thread that visits namespaces is at home between its visits"
    );
    let _away = Away { home };
    go_to(netns).and_then(|()| inside())
}

/// Brings the thread home, whatever happens.
struct Away {
    home: Netns,
}

impl Drop for Away {
    fn drop(&mut self) {
        if let Err(error) = go_to(&self.home) {
            // Whatever this thread did next, it would do to a sandbox. A killed Knit begins anew, without harm.
            eprintln!("knit: cannot come back from a sandbox's network namespace: {error}");
            std::process::abort();
        }
    }
}

fn hopper() -> Result<Sender<Visit>> {
    let mut hopper = HOPPER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(sender) = &*hopper {
        return Ok(sender.clone());
    }
    let home = Netns::open(Path::new(HOME))?;
    let (sender, visits) = channel();
    thread::Builder::new()
        .name("knit-hopper".into())
        .spawn(move || run(&home, &visits))
        .map_err(|error| Error::system("network namespace", "start a thread", error))?;
    *hopper = Some(sender.clone());
    Ok(sender)
}

fn forget() {
    *HOPPER.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = None;
}

/// Serves visits until it cannot come home.
fn run(home: &Netns, visits: &Receiver<Visit>) {
    if go_to(home).is_err() {
        return;
    }
    for visit in visits {
        let hand_over = (visit.work)(go_to(&visit.netns));
        let is_home = go_to(home).is_ok();
        hand_over();
        if !is_home {
            return;
        }
    }
}

fn go_to(netns: &Netns) -> io::Result<()> {
    Ok(setns(netns, CloneFlags::CLONE_NEWNET)?)
}
