//! The guest: a QEMU machine with Debian's cloud kernel, for features that this machine's kernel lacks.
//!
//! See `docs/guest-kernel.md`. [`run`] is the entry point for other crates.

mod cpio;
mod elf;
mod kernel;
mod machine;
mod modules;
mod root;
mod run;
mod stream;
mod tools;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use comfy_table::{Table, presets};

use self::kernel::Kernel;
use self::modules::Presence;
pub use self::run::run;
use knit_dev::packages::{self, Purpose};

/// The default time limit, from the start of the machine.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// A program to run in a guest, and its environment there.
#[derive(Clone, Debug)]
pub struct Guest {
    /// A static program of the host.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its environment in addition to `PATH`, `HOME` and `TERM`.
    pub environment: Vec<(String, OsString)>,
    /// Files of the host and their paths in the guest.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// Programs of the host that are copied to `/usr/local/bin` with their libraries.
    pub tools: Vec<PathBuf>,
    /// Modules to load before the program starts; the kernel loads most others on demand.
    pub modules: Vec<String>,
    /// The time limit from the start of the machine to the end of the program.
    pub timeout: Duration,
    /// The machine's memory.
    pub memory_mib: u32,
    /// The machine's CPUs. More than one slows an emulated guest down, and finds races.
    pub cpus: u32,
    /// Whether the kernel logs everything to the console, and whether that is printed.
    pub kernel_log: bool,
    /// Whether the program's output is passed through while it runs.
    pub show: bool,
    /// Whether the program's output is collected for the [`Outcome`].
    pub keep: bool,
}

impl Guest {
    /// A run of this program without arguments that shows its output.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            files: Vec::new(),
            tools: Vec::new(),
            modules: Vec::new(),
            timeout: TIMEOUT,
            memory_mib: 1024,
            cpus: 1,
            kernel_log: false,
            show: true,
            keep: false,
        }
    }

    /// The program's name, for messages.
    fn name(&self) -> String {
        self.program.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// How a program in a guest ended.
#[derive(Debug)]
pub struct Outcome {
    /// Its exit code; 128 plus the signal number if it was ended by a signal.
    pub code: i32,
    /// Its standard output, if it was collected.
    pub stdout: Vec<u8>,
    /// Its standard error, if it was collected.
    pub stderr: Vec<u8>,
    /// How long the kernel took to reach user space, by the guest's clock.
    pub boot: Duration,
    /// The total time from the start of QEMU.
    pub took: Duration,
}

/// `cargo xtask vm ...`
#[derive(Subcommand)]
pub enum GuestCommand {
    /// Run a static program in the guest and pass on its output and exit code
    Run(RunOptions),
    /// Open a shell in the guest; `exit` powers it off
    Shell(GuestOptions),
    /// List the modules in the guest and those that its kernel lacks
    Modules,
}

/// Arguments of `run`.
#[derive(Args)]
pub struct RunOptions {
    #[command(flatten)]
    guest: GuestOptions,
    /// Seconds until the guest is killed
    #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Print the kernel log to standard error after the program has ended
    #[arg(long)]
    kernel_log: bool,
    /// Print exit code, output and times as JSON
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Properties of a guest.
#[derive(Args)]
pub struct GuestOptions {
    /// Set an environment variable
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_variable)]
    environment: Vec<(String, OsString)>,
    /// Copy a file
    #[arg(long = "file", value_name = "HOST:GUEST", value_parser = parse_file)]
    files: Vec<(PathBuf, PathBuf)>,
    /// Copy a program of the host with its libraries to /usr/local/bin
    #[arg(long = "tool", value_name = "HOST")]
    tools: Vec<PathBuf>,
    /// Load a module at boot that the kernel does not load on demand
    #[arg(long = "module", value_name = "NAME")]
    modules: Vec<String>,
    /// Memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(256..))]
    memory: u32,
    /// CPUs; more than one is slower
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    cpus: u32,
}

impl GuestOptions {
    fn guest(self, program: PathBuf) -> Guest {
        Guest {
            environment: self.environment,
            files: self.files,
            tools: self.tools,
            modules: self.modules,
            memory_mib: self.memory,
            cpus: self.cpus,
            ..Guest::new(program)
        }
    }
}

/// Runs a subcommand. A program's exit code other than zero becomes this process's.
pub fn command(command: GuestCommand) -> Result<()> {
    packages::ensure(&[Purpose::Vm])?;
    match command {
        GuestCommand::Run(options) => run_command(options),
        GuestCommand::Shell(options) => {
            let guest = options.guest(PathBuf::from("shell"));
            let kernel = Kernel::ensure()?;
            let root = root::build(&guest, &root::BootTask::Shell, &kernel)?;
            machine::boot_on_terminal(&guest, &kernel, &root)
        }
        GuestCommand::Modules => list_modules(),
    }
}

fn run_command(options: RunOptions) -> Result<()> {
    let mut command = options.command.into_iter();
    let program = command.next().context("no program given")?;
    let guest = Guest {
        arguments: command.collect(),
        timeout: Duration::from_secs(options.timeout),
        kernel_log: options.kernel_log,
        show: !options.json,
        keep: options.json,
        ..options.guest.guest(program.into())
    };
    let outcome = run(&guest)?;
    if options.json {
        let result = serde_json::json!({
            "code": outcome.code,
            "stdout": String::from_utf8_lossy(&outcome.stdout),
            "stderr": String::from_utf8_lossy(&outcome.stderr),
            "boot_seconds": outcome.boot.as_secs_f64(),
            "seconds": outcome.took.as_secs_f64(),
        });
        println!("{result}");
    }
    std::io::stdout().flush()?;
    if outcome.code != 0 {
        std::process::exit(outcome.code);
    }
    Ok(())
}

fn list_modules() -> Result<()> {
    let kernel = Kernel::ensure()?;
    let index = kernel.index()?;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["PURPOSE", "MODULE", "STATE"]);
    let mut absent = Vec::new();
    for (purpose, names) in modules::INCLUDED {
        for name in *names {
            let state = match index.find(name) {
                Presence::Loadable(found) if found.len() == 1 => "module".to_owned(),
                Presence::Loadable(found) => format!("{} modules", found.len()),
                Presence::Builtin => "built in".to_owned(),
                Presence::Absent => {
                    absent.push(*name);
                    "missing".to_owned()
                }
            };
            table.add_row([*purpose, name, &state]);
        }
    }
    println!("{}\n", table.trim_fmt());
    println!("kernel {} (Debian package version {})", kernel.release, kernel.package_version);
    println!("the guest contains {} modules", index.included()?.len());
    println!(
        "missing in this kernel: {}",
        if absent.is_empty() { "none".to_owned() } else { absent.join(", ") }
    );
    Ok(())
}

fn parse_variable(text: &str) -> Result<(String, OsString)> {
    let (name, value) = text.split_once('=').context("expected NAME=VALUE")?;
    ensure!(!name.is_empty(), "expected NAME=VALUE");
    Ok((name.to_owned(), value.into()))
}

fn parse_file(text: &str) -> Result<(PathBuf, PathBuf)> {
    let (host, guest) = text.rsplit_once(':').context("expected HOST:GUEST, two paths")?;
    ensure!(guest.starts_with('/'), "expected HOST:GUEST, where the guest's path starts with /");
    Ok((host.into(), guest.into()))
}
