//! One run of a program in a guest, from boot to its exit code. It always ends: by itself, when the guest goes down, or at
//! its time limit.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::kernel::Kernel;
use super::machine::{Machine, Ports};
use super::root::{self, BootTask};
use super::stream::{self, Received};
use super::{Guest, Outcome};
use knit_dev::process;
use knit_dev::progress::seconds;

/// How long output may still arrive after the program ended, from processes that it left behind.
const OUTPUT_GRACE_PERIOD: Duration = Duration::from_secs(2);

/// The prefix of the kernel's panic message.
const PANIC: &str = "Kernel panic - not syncing: ";

/// An event of a running guest.
enum Event {
    /// User space was reached after this time.
    Up(Duration),
    /// The program ended with this code.
    Exit(i32),
    /// The report port was closed.
    ReportEnded,
    /// A stream has ended; `stuck` if its output could not be passed on.
    StreamEnded { stuck: bool },
}

/// The state of a run.
#[derive(Default)]
struct Progress {
    boot: Option<Duration>,
    code: Option<i32>,
    report_ended: bool,
    streams_ended: usize,
    stuck: bool,
}

impl Progress {
    fn record(&mut self, event: &Event) {
        match event {
            Event::Up(time) => self.boot = Some(*time),
            Event::Exit(code) => self.code = Some(*code),
            Event::ReportEnded => self.report_ended = true,
            Event::StreamEnded { stuck } => {
                self.streams_ended += 1;
                self.stuck |= stuck;
            }
        }
    }

    fn is_over(&self) -> bool {
        self.stuck || (self.streams_ended == 2 && (self.code.is_some() || self.report_ended))
    }
}

/// Runs the guest's program and returns its output and exit code.
pub fn run(guest: &Guest) -> Result<Outcome> {
    let kernel = Kernel::ensure()?;
    let marker = end_marker()?;
    let root = root::build(guest, &BootTask::Program { end: &marker }, &kernel)?;
    let start = Instant::now();
    let (mut machine, ports) = Machine::boot(guest, &kernel, &root)?;
    drop(root);

    let (sender, events) = channel();
    let (output, error) = listen(guest, ports, &marker, &sender);
    drop(sender);
    let progress = follow(&mut machine, &events, start + guest.timeout);
    let timed_out = start.elapsed() >= guest.timeout;
    // Killing the machine ends all readers.
    machine.kill()?;
    let received = |reader: JoinHandle<Result<Received>>| reader.join().expect("a reader does not panic");
    let (output, error) = (received(output)?, received(error)?);
    let console = console_text(&machine);
    if guest.kernel_log {
        eprint!("{console}");
    }
    match progress.code {
        Some(code) => Ok(Outcome {
            code,
            stdout: output.collected,
            stderr: error.collected,
            boot: progress.boot.unwrap_or_default(),
            took: start.elapsed(),
        }),
        None => Err(failure(guest, &machine, &progress, timed_out, &console, &[output, error])),
    }
}

/// Starts a reader for each output channel of the guest.
fn listen(
    guest: &Guest,
    ports: Ports,
    marker: &str,
    events: &Sender<Event>,
) -> (JoinHandle<Result<Received>>, JoinHandle<Result<Received>>) {
    let reader = |port: UnixStream, show: Box<dyn Write + Send>| {
        let (marker, keep, events) = (marker.to_owned(), guest.keep, events.clone());
        std::thread::spawn(move || {
            let received = stream::receive(port, &marker, keep, show);
            // The receiver is gone after the time limit.
            let _ = events.send(Event::StreamEnded { stuck: received.is_err() });
            received.context("cannot pass on the program's output")
        })
    };
    let (shown, shown_error): (Box<dyn Write + Send>, Box<dyn Write + Send>) = if guest.show {
        (Box::new(std::io::stdout()), Box::new(std::io::stderr()))
    } else {
        (Box::new(std::io::sink()), Box::new(std::io::sink()))
    };
    let output = reader(ports.output, shown);
    let error = reader(ports.error, shown_error);
    let events = events.clone();
    std::thread::spawn(move || read_report(ports.report, &events));
    (output, error)
}

fn read_report(port: UnixStream, events: &Sender<Event>) {
    let lines = BufReader::new(port).lines().map_while(Result::ok);
    for event in lines.filter_map(|line| parse_report(&line)).chain([Event::ReportEnded]) {
        // The receiver is gone after the time limit.
        let _ = events.send(event);
    }
}

fn parse_report(line: &str) -> Option<Event> {
    match line.split_once(' ')? {
        ("up", time) => Some(Event::Up(Duration::try_from_secs_f64(time.parse().ok()?).ok()?)),
        ("exit", code) => Some(Event::Exit(code.parse().ok()?)),
        _ => None,
    }
}

/// Waits until the run or its time is over.
fn follow(machine: &mut Machine, events: &Receiver<Event>, deadline: Instant) -> Progress {
    let mut progress = Progress::default();
    let mut limit = deadline;
    while !progress.is_over() {
        match events.recv_timeout(limit.saturating_duration_since(Instant::now())) {
            Ok(event) => {
                progress.record(&event);
                match event {
                    Event::Up(_) => machine.remove_boot_files(),
                    Event::Exit(_) => limit = deadline.min(Instant::now() + OUTPUT_GRACE_PERIOD),
                    Event::ReportEnded | Event::StreamEnded { .. } => {}
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    progress
}

/// The error for a run without an exit code.
fn failure(
    guest: &Guest,
    machine: &Machine,
    progress: &Progress,
    timed_out: bool,
    console: &str,
    streams: &[Received],
) -> anyhow::Error {
    let name = guest.name();
    let mut text = if let Some(reason) = panic_reason(console) {
        format!("the guest's kernel panicked while it ran {name}: {reason}")
    } else if timed_out {
        let limit = seconds(guest.timeout);
        match progress.boot {
            Some(_) => format!("{name} did not end within {limit}, so the guest was killed"),
            None => format!("the guest did not reach user space within {limit}, so it was killed"),
        }
    } else {
        format!("the guest went down before {name} ended")
    };
    for (title, stream) in ["standard output", "standard error"].iter().zip(streams) {
        if !guest.show && !stream.collected.is_empty() {
            let collected = String::from_utf8_lossy(&stream.collected);
            text += &format!("\nits {title} ended with:\n{}", process::tail(&collected));
        }
    }
    let qemu_errors = machine.qemu_errors();
    let details =
        [("qemu printed", process::tail(&qemu_errors)), ("the console ended with", relevant_lines(console))];
    for (title, lines) in details {
        if !lines.is_empty() {
            text += &format!("\n{title}:\n{lines}");
        }
    }
    text += &format!("\nconsole log: {}", machine.console.display());
    anyhow!(text)
}

/// The reason in the kernel's panic message.
fn panic_reason(console: &str) -> Option<&str> {
    let (_, rest) = console.split_once(PANIC)?;
    Some(rest.lines().next().unwrap_or(rest).trim())
}

/// The console lines around a panic, whose cause comes before it and whose trace follows; without a panic, the last lines.
fn relevant_lines(console: &str) -> String {
    const BEFORE: usize = 10;
    const AFTER: usize = 15;
    let lines: Vec<&str> = console.lines().collect();
    match lines.iter().position(|line| line.contains(PANIC)) {
        Some(at) => lines[at.saturating_sub(BEFORE)..lines.len().min(at + AFTER)].join("\n"),
        None => process::tail(console),
    }
}

/// The console log without control characters.
fn console_text(machine: &Machine) -> String {
    let bytes = std::fs::read(&machine.console).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.chars().filter(|letter| *letter == '\n' || *letter == '\t' || !letter.is_control()).collect()
}

/// A random marker that no program writes by chance.
fn end_marker() -> Result<String> {
    let mut random = [0; 16];
    let mut source = std::fs::File::open("/dev/urandom").context("cannot open /dev/urandom")?;
    source.read_exact(&mut random)?;
    Ok(format!("<end of stream {:032x}>", u128::from_le_bytes(random)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_panic_is_found() {
        let console = "[ 3.1] sysrq: Trigger a crash\r\n[ 3.1] Kernel panic - not syncing: sysrq triggered crash\r\n[ 3.2] CPU: 0\r\n";
        assert_eq!(panic_reason(console), Some("sysrq triggered crash"));
        assert_eq!(panic_reason("[ 3.1] all is well\n"), None);
    }

    #[test]
    fn the_lines_before_a_panic_are_shown() {
        let line = |number: usize| format!("[ {number}]{}\n", if number == 50 { PANIC } else { "" });
        let console: String = (0..100).map(line).collect();
        let shown = relevant_lines(&console);
        assert_eq!((shown.lines().next(), shown.lines().last()), (Some("[ 40]"), Some("[ 64]")));
        assert!(relevant_lines("[ 1] calm\n").ends_with("calm"));
    }

    #[test]
    fn a_run_is_over_when_all_output_has_arrived_or_none_can_arrive() {
        let ended = || Event::StreamEnded { stuck: false };
        let over = |events: &[Event]| {
            let mut progress = Progress::default();
            events.iter().for_each(|event| progress.record(event));
            progress.is_over()
        };
        assert!(!over(&[Event::Exit(0), ended()]));
        assert!(over(&[Event::Exit(0), ended(), ended()]));
        assert!(!over(&[ended(), ended()]));
        assert!(over(&[ended(), ended(), Event::ReportEnded]));
        assert!(over(&[Event::StreamEnded { stuck: true }]));
    }

    #[test]
    fn report_lines_are_parsed_and_others_ignored() {
        assert!(matches!(parse_report("exit 7"), Some(Event::Exit(7))));
        assert!(
            matches!(parse_report("up 2.25"), Some(Event::Up(time)) if time == Duration::from_millis(2250))
        );
        for noise in ["", "exit", "exit x", "up -1", "down 3"] {
            assert!(parse_report(noise).is_none(), "{noise}");
        }
    }
}
