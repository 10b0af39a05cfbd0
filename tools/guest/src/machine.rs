//! The QEMU process of a guest, three serial ports, and the log of its console.
//!
//! No QEMU outlives its [`Machine`] or this process: the kernel kills it then.

use std::fs::File;
use std::io::{BufWriter, Read, Seek, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::Guest;
use super::cpio::Archive;
use super::kernel::{Kernel, guest_folder};
use knit_dev::process;

/// How many console logs stay in the cache.
const MAX_CONSOLE_LOGS: usize = 20;
/// How long QEMU may take to connect its ports.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// The output channels of the guest.
pub struct Ports {
    /// The program's standard output.
    pub output: UnixStream,
    /// The program's standard error.
    pub error: UnixStream,
    /// Status lines of the guest's init process.
    pub report: UnixStream,
}

/// A running guest.
pub struct Machine {
    qemu: Child,
    /// The files that QEMU reads while it starts.
    folder: Option<TempDir>,
    /// QEMU's standard error: an unnamed temporary file.
    qemu_errors: File,
    /// The log of the kernel's console.
    pub console: PathBuf,
}

impl Machine {
    /// Boots a guest with this root file system.
    pub fn boot(guest: &Guest, kernel: &Kernel, root: &Archive) -> Result<(Self, Ports)> {
        let folder = run_folder(root)?;
        let console = console_file(&guest.name())?;
        let qemu_errors = tempfile::tempfile()?;
        let names = ["output", "error", "report"];
        let mut listeners = Vec::new();
        let mut command = qemu(guest, kernel, folder.path());
        command.args(["-device", "virtio-serial-pci,max_ports=4"]);
        for (number, name) in (1..).zip(names) {
            let path = folder.path().join(name);
            listeners.push(
                UnixListener::bind(&path).with_context(|| format!("cannot create {}", path.display()))?,
            );
            command.arg("-chardev").arg(format!("socket,id={name},path={}", escaped(&path)));
            command.arg("-device").arg(format!("virtserialport,chardev={name},nr={number}"));
        }
        add_nics(&mut command);
        command.arg("-chardev").arg(format!("file,id=console,path={}", escaped(&console)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(qemu_errors.try_clone()?);
        let qemu = command.spawn().with_context(|| format!("cannot start `{}`", process::line(&command)))?;
        let mut machine = Self { qemu, folder: Some(folder), qemu_errors, console };
        let [output, error, report] = machine.connect(&listeners)?;
        Ok((machine, Ports { output, error, report }))
    }

    /// Removes the files that QEMU needed to start, once the guest is up.
    pub fn remove_boot_files(&mut self) {
        self.folder = None;
    }

    /// Powers the machine off; returns the exit status of QEMU.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.qemu.try_wait()? {
            return Ok(status);
        }
        self.qemu.kill()?;
        Ok(self.qemu.wait()?)
    }

    /// QEMU's error output.
    pub fn qemu_errors(&self) -> String {
        let mut text = Vec::new();
        let mut file = &self.qemu_errors;
        // It only adds detail to another error, so failing to read it is ignored.
        let _ = file.rewind().and_then(|()| file.read_to_end(&mut text));
        String::from_utf8_lossy(&text).into_owned()
    }

    fn connect(&mut self, listeners: &[UnixListener]) -> Result<[UnixStream; 3]> {
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let mut ports = Vec::new();
        for listener in listeners {
            listener.set_nonblocking(true)?;
            let port = loop {
                match listener.accept() {
                    Ok((port, _)) => break port,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error).context("cannot accept QEMU's connection"),
                }
                if let Some(status) = self.qemu.try_wait()? {
                    bail!("qemu did not start: {status}\n{}", process::tail(&self.qemu_errors()));
                }
                if Instant::now() > deadline {
                    bail!("qemu did not connect its ports within {} s", CONNECT_TIMEOUT.as_secs());
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            port.set_nonblocking(false)?;
            ports.push(port);
        }
        Ok(<[UnixStream; 3]>::try_from(ports).expect("there are three listeners"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // An error is ignored: the process has ended.
        let _ = self.kill();
    }
}

/// Boots a guest with this terminal as its console, and waits until it powers off.
pub fn boot_on_terminal(guest: &Guest, kernel: &Kernel, root: &Archive) -> Result<()> {
    let folder = run_folder(root)?;
    let mut command = qemu(guest, kernel, folder.path());
    command.args(["-device", "virtio-serial-pci,max_ports=4", "-chardev", "stdio,id=console,signal=off"]);
    add_nics(&mut command);
    process::run(&mut command)
}

fn qemu(guest: &Guest, kernel: &Kernel, folder: &Path) -> Command {
    // Kernel messages are slow on an emulated serial line, so only warnings are written by default.
    // An oops causes a panic, and a panic ends QEMU, which is detected here.
    let level = if guest.kernel_log { 7 } else { 4 };
    // On a busy machine an emulated timer may be too late for the kernel's timer check.
    let arguments = format!(
        "console=ttyS0 loglevel={level} panic=-1 oops=panic mitigations=off random.trust_cpu=on no_timer_check"
    );
    // setpriv executes QEMU, which is then killed when this process ends.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
    command.args(["-accel", "tcg", "-cpu", "max,-avx,-avx2", "-machine", "q35"]);
    command.args(["-smp", &guest.cpus.to_string(), "-m", &guest.memory_mib.to_string()]);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-nic", "none"]);
    command.arg("-kernel").arg(kernel.image()).arg("-initrd").arg(initrd(folder));
    command.args(["-append", &arguments, "-serial", "chardev:console"]);
    command
}

/// Two NICs on the two ends of one cable. After the ports, whose device names depend on their PCI slot.
fn add_nics(command: &mut Command) {
    for number in 0..2 {
        command.arg("-netdev").arg(format!("hubport,id=wire{number},hubid=0"));
        let device = format!("virtio-net-pci,netdev=wire{number},mac=52:54:00:00:00:0{number},romfile=");
        command.arg("-device").arg(device);
    }
}

fn initrd(folder: &Path) -> PathBuf {
    folder.join("initrd")
}

/// A directory with the root file system. Its path is short, because socket paths are limited.
fn run_folder(root: &Archive) -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("knit-guest-").tempdir()?;
    let path = initrd(folder.path());
    let mut file =
        BufWriter::new(File::create(&path).with_context(|| format!("cannot create {}", path.display()))?);
    root.write(&mut file)?;
    file.flush()?;
    Ok(folder)
}

/// A new file for a console log. Removes the oldest ones.
fn console_file(name: &str) -> Result<PathBuf> {
    let folder = guest_folder()?.join("console");
    std::fs::create_dir_all(&folder)?;
    let mut logs = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        let entry = entry?;
        // Another command may have removed it meanwhile.
        if let Ok(time) = entry.metadata().and_then(|metadata| metadata.modified()) {
            logs.push((time, entry.path()));
        }
    }
    logs.sort();
    for (_, path) in logs.iter().take(logs.len().saturating_sub(MAX_CONSOLE_LOGS - 1)) {
        let _ = std::fs::remove_file(path);
    }
    let prefix = format!("{name}-");
    let file = tempfile::Builder::new().prefix(&prefix).suffix(".log").tempfile_in(&folder)?;
    let (_, path) = file.keep()?;
    Ok(path)
}

/// A path for a QEMU option, in which a comma separates suboptions.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_a_path_stays_in_the_path() {
        assert_eq!(escaped(Path::new("/a,b/c")), "/a,,b/c");
    }
}
