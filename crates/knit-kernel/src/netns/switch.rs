//! Short switches into other network namespaces.
//!
//! `setns` moves a thread, so it must not happen on a thread that does other work. One long-lived thread switches to
//! the namespace, runs the request (open a socket, write a sysctl), switches back, and sends the result: two cheap
//! system calls, and no thread to start for each attach. If it cannot switch back it ends, and the next call starts
//! another.
//!
//! The handover takes far longer than the switch itself, most of all on a busy machine. A thread that only talks to
//! the kernel may switch by itself, after calling [`allow_netns_switch`].

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

/// The namespace between requests: that of the process's first thread. The namespace of the first caller would be
/// kept alive.
const HOME: &str = "/proc/self/ns/net";

/// The channel to the thread, once it is started.
static SWITCHER: Mutex<Option<Sender<SwitchRequest>>> = Mutex::new(None);

thread_local! {
    /// The namespace to which this thread returns, if it switches by itself.
    static THREAD_HOME: RefCell<Option<Netns>> = const { RefCell::new(None) };
}

/// Allows the calling thread to switch namespaces by itself for the duration of each request, returning to its
/// current one. Only for a dedicated thread that never changes its namespace otherwise; never for a thread of an
/// async runtime.
pub fn allow_netns_switch() -> Result<()> {
    THREAD_HOME.set(Some(Netns::current()?));
    Ok(())
}

struct SwitchRequest {
    netns: Netns,
    /// Receives the outcome of the switch.
    work: Work,
}

/// The request. It returns a closure that sends the result, called after the thread has switched back.
type Work = Box<dyn FnOnce(io::Result<()>) -> Box<dyn FnOnce()> + Send>;

/// Opens a bare netlink socket in a namespace.
pub(crate) fn open_socket(netns: &Netns, protocol: Protocol) -> Result<OwnedFd> {
    let cannot = |error| Error::system("network namespace", "open a socket inside it", error);
    run_in(netns, move || raw(protocol))?.map_err(cannot)
}

/// Runs a short closure inside a namespace. It may run twice if the thread ends meanwhile.
pub(crate) fn run_in<T: Send + 'static>(
    netns: &Netns,
    inside: impl Fn() -> io::Result<T> + Clone + Send + 'static,
) -> Result<io::Result<T>> {
    if let Some(home) = THREAD_HOME.with_borrow(Clone::clone) {
        return Ok(run_on_this_thread(home, netns, inside));
    }
    // A thread that could not switch back has ended: retry once with a new one.
    for _ in 0..2 {
        let (sender, outcome) = channel();
        let inside = inside.clone();
        let work: Work = Box::new(move |entered| {
            let result = entered.and_then(|()| inside());
            Box::new(move || {
                // The caller waits for the result; if it is gone, opened descriptors are closed here.
                let _ = sender.send(result);
            })
        });
        if switcher()?.send(SwitchRequest { netns: netns.clone(), work }).is_err() {
            discard_switcher();
            continue;
        }
        match outcome.recv() {
            Ok(result) => return Ok(result),
            Err(_) => discard_switcher(),
        }
    }
    let lost = io::Error::other("the thread that switches namespaces keeps ending");
    Err(Error::system("network namespace", "enter it", lost))
}

/// Switches the calling thread.
fn run_on_this_thread<T>(
    home: Netns,
    netns: &Netns,
    inside: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    debug_assert!(
        Netns::current().and_then(|here| here.is_same(&home)).unwrap_or(false),
        "a thread that switches namespaces is in its home namespace between requests"
    );
    let _return_home = ReturnHome { home };
    set_netns(netns).and_then(|()| inside())
}

/// Switches back on drop.
struct ReturnHome {
    home: Netns,
}

impl Drop for ReturnHome {
    fn drop(&mut self) {
        if let Err(error) = set_netns(&self.home) {
            // Any further work on this thread would change a sandbox. A killed agent restarts without harm.
            eprintln!("knit: cannot switch back from a sandbox's network namespace: {error}");
            std::process::abort();
        }
    }
}

fn switcher() -> Result<Sender<SwitchRequest>> {
    let mut switcher = SWITCHER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(sender) = &*switcher {
        return Ok(sender.clone());
    }
    let home = Netns::open(Path::new(HOME))?;
    let (sender, requests) = channel();
    thread::Builder::new()
        .name("knit-netns-sw".into())
        .spawn(move || run(&home, &requests))
        .map_err(|error| Error::system("network namespace", "start a thread", error))?;
    *switcher = Some(sender.clone());
    Ok(sender)
}

fn discard_switcher() {
    *SWITCHER.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = None;
}

/// Serves requests until it cannot switch back.
fn run(home: &Netns, requests: &Receiver<SwitchRequest>) {
    if set_netns(home).is_err() {
        return;
    }
    for request in requests {
        let send_result = (request.work)(set_netns(&request.netns));
        let is_home = set_netns(home).is_ok();
        send_result();
        if !is_home {
            return;
        }
    }
}

fn set_netns(netns: &Netns) -> io::Result<()> {
    Ok(setns(netns, CloneFlags::CLONE_NEWNET)?)
}
