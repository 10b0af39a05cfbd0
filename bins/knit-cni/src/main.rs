//! `knit-cni`: run by a container runtime once for each ADD, DEL, CHECK, GC, STATUS or VERSION.

use std::io::{Read, Write};
use std::process::ExitCode;

use knit_cni::{AgentSocket, boot_time_nanos, run};

/// The largest input. A GC with thousands of valid attachments fits.
const MAX_INPUT: u64 = 4 << 20;

fn main() -> ExitCode {
    let started_at = boot_time_nanos();
    let mut input = Vec::new();
    let read = std::io::stdin().lock().take(MAX_INPUT + 1).read_to_end(&mut input);
    let read = match read {
        Ok(_) if input.len() as u64 > MAX_INPUT => Err(format!("larger than {MAX_INPUT} bytes")),
        Ok(_) => Ok(input),
        Err(error) => Err(error.to_string()),
    };
    let outcome = run(|name| std::env::var_os(name), read, started_at, &mut AgentSocket);
    for warning in &outcome.warnings {
        eprintln!("knit-cni: {warning}");
    }
    // The runtime may have closed the pipe.
    let _ = std::io::stdout().lock().write_all(outcome.output.as_bytes());
    if outcome.success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
