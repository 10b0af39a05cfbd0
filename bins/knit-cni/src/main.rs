//! `knit-cni`: run by a container runtime, once for each ADD, DEL, CHECK, GC, STATUS or VERSION.

use std::io::{Read, Write};
use std::process::ExitCode;

use knit_cni::{Socket, run, since_boot};

/// No network configuration is larger; what a runtime says of thousands of living attachments fits.
const MOST_INPUT: u64 = 4 << 20;

fn main() -> ExitCode {
    let began = since_boot();
    let mut input = Vec::new();
    let read = std::io::stdin().lock().take(MOST_INPUT + 1).read_to_end(&mut input);
    let read = match read {
        Ok(_) if input.len() as u64 > MOST_INPUT => Err(format!("has more than {MOST_INPUT} bytes")),
        Ok(_) => Ok(input),
        Err(why) => Err(why.to_string()),
    };
    let outcome = run(|name| std::env::var_os(name), read, began, &mut Socket);
    for words in &outcome.words {
        eprintln!("knit-cni: {words}");
    }
    // A runtime that does not listen any more has nothing to be told.
    let _ = std::io::stdout().lock().write_all(outcome.output.as_bytes());
    if outcome.success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
