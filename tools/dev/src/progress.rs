//! Progress for people: a spinner on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a step that is not on a terminal says that it is still alive.
const REMINDER: Duration = Duration::from_secs(30);

/// One step of something slow. Dropping it without [`Step::done`] shows it as failed.
pub struct Step {
    what: String,
    began: Instant,
    finished: bool,
    show: Show,
}

enum Show {
    Spinner(ProgressBar),
    /// Dropping the sender ends the thread that prints reminders.
    Lines(#[allow(dead_code)] Sender<()>),
}

impl Step {
    /// Begins a step and shows it.
    pub fn start(what: impl Into<String>) -> Self {
        let what = what.into();
        let began = Instant::now();
        let show = if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("  {spinner} {msg} ({elapsed})") {
                bar.set_style(style);
            }
            bar.set_message(what.clone());
            bar.enable_steady_tick(Duration::from_millis(120));
            Show::Spinner(bar)
        } else {
            Show::Lines(remind(what.clone(), began))
        };
        Self { what, began, finished: false, show }
    }

    /// Ends the step well; says how long it took when that is worth saying.
    pub fn done(self) {
        self.done_with("");
    }

    /// Ends the step well, with a remark.
    pub fn done_with(mut self, remark: &str) {
        self.finished = true;
        let remark = if remark.is_empty() { String::new() } else { format!(": {remark}") };
        let text = format!("  ok   {}{remark} ({})", self.what, seconds(self.began.elapsed()));
        self.end(&text);
    }

    fn end(&self, text: &str) {
        if let Show::Spinner(bar) = &self.show {
            bar.finish_and_clear();
        }
        eprintln!("{text}");
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if !self.finished {
            self.end(&format!("  FAIL {} ({})", self.what, seconds(self.began.elapsed())));
        }
    }
}

/// A duration as people say it.
pub fn seconds(time: Duration) -> String {
    let whole = time.as_secs();
    if whole >= 60 {
        format!("{} min {} s", whole / 60, whole % 60)
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

fn remind(what: String, began: Instant) -> Sender<()> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        while receiver.recv_timeout(REMINDER) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            eprintln!("  ...  {what} ({})", seconds(began.elapsed()));
        }
    });
    sender
}
