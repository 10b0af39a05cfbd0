//! The guest: a QEMU machine with Debian's cloud kernel, for what this machine's kernel was built without.
//!
//! `docs/guest-kernel.md` says how to use it and what is inside. [`run`] is what other commands call.

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

/// How long a program may take, from the start of the machine, unless told otherwise.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// A program to run in a guest, and what it needs there.
#[derive(Clone, Debug)]
pub struct Guest {
    /// A static program of this machine.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its environment, besides `PATH`, `HOME` and `TERM`.
    pub environment: Vec<(String, OsString)>,
    /// Files of this machine and their paths in the guest.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// Programs of this machine that the guest gets with their libraries, in `/usr/local/bin`.
    pub tools: Vec<PathBuf>,
    /// Modules to load before the program starts; the kernel loads most others when they are needed.
    pub modules: Vec<String>,
    /// The limit from the start of the machine to the end of the program.
    pub timeout: Duration,
    /// The machine's memory.
    pub memory_mib: u32,
    /// The machine's processors. More than one makes an emulated guest slower, and finds races.
    pub cpus: u32,
    /// Whether the kernel writes all it has to say, and whether that is printed.
    pub kernel_log: bool,
    /// Whether the program's output is passed on as it comes.
    pub show: bool,
    /// Whether the program's output is kept for the [`Outcome`].
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

    /// The program's name, for people.
    fn name(&self) -> String {
        self.program.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// How a program in a guest ended.
#[derive(Debug)]
pub struct Outcome {
    /// Its exit code; 128 and the signal's number when a signal ended it.
    pub code: i32,
    /// Its standard output, when it was to be kept.
    pub stdout: Vec<u8>,
    /// Its standard error, when it was to be kept.
    pub stderr: Vec<u8>,
    /// How long the kernel took to reach user space, by its own clock.
    pub boot: Duration,
    /// The whole time, from the start of QEMU.
    pub took: Duration,
}

/// `cargo xtask vm ...`
#[derive(Subcommand)]
pub enum GuestCommand {
    /// Run a static program in the guest; its output and exit code are this command's
    Run(RunOptions),
    /// Open a shell in the guest; `exit` switches it off
    Shell(GuestOptions),
    /// List the modules that the guest carries, and those its kernel lacks
    Modules,
}

/// What a run needs besides the guest.
#[derive(Args)]
pub struct RunOptions {
    #[command(flatten)]
    guest: GuestOptions,
    /// Seconds until the guest is killed
    #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Print the kernel's whole log on standard error when the program has ended
    #[arg(long)]
    kernel_log: bool,
    /// Print exit code, output and times as JSON instead of passing them on
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// What a guest is made of.
#[derive(Args)]
pub struct GuestOptions {
    /// Set an environment variable
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_variable)]
    environment: Vec<(String, OsString)>,
    /// Bring a file along
    #[arg(long = "file", value_name = "HOST:GUEST", value_parser = parse_file)]
    files: Vec<(PathBuf, PathBuf)>,
    /// Bring a program of this machine along, with its libraries, into /usr/local/bin
    #[arg(long = "tool", value_name = "HOST")]
    tools: Vec<PathBuf>,
    /// Load a module at boot, for those that the kernel does not load when needed
    #[arg(long = "module", value_name = "NAME")]
    modules: Vec<String>,
    /// Memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(256..))]
    memory: u32,
    /// Processors; more than one is slower
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

/// Does what was asked for. A program's exit code other than zero becomes this process's.
pub fn command(task: GuestCommand) -> Result<()> {
    packages::ensure(&[Purpose::Vm])?;
    match task {
        GuestCommand::Run(options) => run_command(options),
        GuestCommand::Shell(options) => {
            let guest = options.guest(PathBuf::from("shell"));
            let kernel = Kernel::ensure()?;
            let root = root::root(&guest, &root::Task::Shell, &kernel)?;
            machine::boot_on_terminal(&guest, &kernel, &root)
        }
        GuestCommand::Modules => list_modules(),
    }
}

fn run_command(options: RunOptions) -> Result<()> {
    let mut words = options.command.into_iter();
    let program = words.next().context("no program was given")?;
    let guest = Guest {
        arguments: words.collect(),
        timeout: Duration::from_secs(options.timeout),
        kernel_log: options.kernel_log,
        show: !options.json,
        keep: options.json,
        ..options.guest.guest(program.into())
    };
    let outcome = run(&guest)?;
    if options.json {
        let about = serde_json::json!({
            "code": outcome.code,
            "stdout": String::from_utf8_lossy(&outcome.stdout),
            "stderr": String::from_utf8_lossy(&outcome.stderr),
            "boot_seconds": outcome.boot.as_secs_f64(),
            "seconds": outcome.took.as_secs_f64(),
        });
        println!("{about}");
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
    table.set_header(["PURPOSE", "WANTED", "STATE"]);
    let mut absent = Vec::new();
    for (purpose, names) in modules::CARRIED {
        for name in *names {
            let state = match index.find(name) {
                Presence::Loadable(found) if found.len() == 1 => "module".to_owned(),
                Presence::Loadable(found) => format!("{} modules", found.len()),
                Presence::Builtin => "part of the kernel".to_owned(),
                Presence::Absent => {
                    absent.push(*name);
                    "not in this kernel".to_owned()
                }
            };
            table.add_row([*purpose, name, &state]);
        }
    }
    println!("{}\n", table.trim_fmt());
    println!("kernel {} (Debian package version {})", kernel.release, kernel.package_version);
    println!("the guest carries {} modules", index.carried()?.len());
    println!(
        "not in this kernel: {}",
        if absent.is_empty() { "nothing".to_owned() } else { absent.join(", ") }
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
    ensure!(guest.starts_with('/'), "expected HOST:GUEST, where the guest's path begins with /");
    Ok((host.into(), guest.into()))
}
