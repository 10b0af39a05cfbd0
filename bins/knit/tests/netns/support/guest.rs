//! A real virtual machine on a tap: QEMU with the guest kernel, and an init script that configures its interface,
//! pings its targets, and prints the results on the console.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use knit_kni::v1;
use knit_testbed::{Namespace, eventually};
use tempfile::TempDir;

/// Long, because the machine is emulated.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The init script after its settings.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev
for module in $(cat /modules/order); do insmod /modules/$module; done
. /settings
ip link set lo up
ip link set eth0 mtu $mtu up
for address in $addresses; do ip address add $address dev eth0; done
for gateway in $gateways; do ip route add default via $gateway; done
echo "KNIT mac $(cat /sys/class/net/eth0/address) mtu $(cat /sys/class/net/eth0/mtu)"
for target in $targets; do
  tries=0
  until ping -c 1 -W 1 $target >/dev/null 2>&1; do
    tries=$((tries + 1)); [ $tries -lt 60 ] || break
  done
  [ $tries -lt 60 ] && echo "KNIT reached $target"
done
while :; do sleep 1; done
"#;

/// A running machine. Dropping it kills it.
pub struct Guest {
    qemu: Child,
    folder: TempDir,
}

impl Guest {
    /// Boots a machine with this interface as its NIC, in the netns of the tap. It pings the targets.
    pub fn boot(host: &Namespace, interface: &v1::Interface, targets: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let (kernel, modules) = kernel();
        write_root(folder.path(), &modules, &settings(interface, targets));
        let tap = format!("tap,id=n0,ifname={},script=no,downscript=no", interface.host_link);
        // setpriv sets the parent death signal, then executes QEMU.
        let mut command = host.command("setpriv");
        command.args(["--pdeathsig", "KILL", "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max"]);
        command.args(["-machine", "q35", "-m", "256", "-nodefaults", "-no-user-config", "-no-reboot"]);
        command.args(["-display", "none", "-netdev", &tap, "-device"]);
        command.arg(format!("virtio-net-pci,netdev=n0,mac={},romfile=", interface.mac));
        command.arg("-kernel").arg(kernel).arg("-initrd").arg(folder.path().join("initrd"));
        command.args(["-append", "console=ttyS0 loglevel=4 panic=-1 no_timer_check", "-serial"]);
        command.arg(format!("file:{}", folder.path().join("console").display()));
        let complaints = std::fs::File::create(folder.path().join("complaints")).unwrap();
        let qemu = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(complaints).spawn().unwrap();
        Self { qemu, folder }
    }

    /// Waits for this text on the console.
    pub fn wait_for_console(&mut self, text: &str) {
        eventually(&format!("the machine says `{text}`"), TIMEOUT, || {
            let ended = self.qemu.try_wait().unwrap();
            assert!(ended.is_none(), "qemu ended: {}{}", self.text("complaints"), self.text("console"));
            self.text("console").contains(text)
        });
    }

    fn text(&self, name: &str) -> String {
        let bytes = std::fs::read(self.folder.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        if std::thread::panicking() {
            eprintln!("the machine's console:\n{}", self.text("console"));
        }
    }
}

/// The settings of an interface as variables of the init script.
fn settings(interface: &v1::Interface, targets: &[&str]) -> String {
    let mut text = format!("mtu={}\ntargets=\"{}\"\n", interface.mtu, targets.join(" "));
    let addresses: Vec<String> = interface
        .addresses
        .iter()
        .map(|address| format!("{}/{}", address.address, address.prefix_length))
        .collect();
    let routes = interface.routes.iter().filter(|route| route.destination.ends_with("/0"));
    let gateways: Vec<&str> = routes.map(|route| route.gateway.as_str()).collect();
    writeln!(text, "addresses=\"{}\"\ngateways=\"{}\"", addresses.join(" "), gateways.join(" ")).unwrap();
    text
}

/// The guest kernel and the modules of its NIC in load order. Downloaded if missing.
fn kernel() -> (PathBuf, Vec<PathBuf>) {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("knit/guest");
    if !cache.join("pinned").exists() {
        let fetched = Command::new(env!("CARGO")).args(["xtask", "vm", "modules"]).output().unwrap();
        assert!(fetched.status.success(), "{}", String::from_utf8_lossy(&fetched.stderr));
    }
    let release = std::fs::read_to_string(cache.join("pinned")).unwrap().trim().to_owned();
    let folder = cache.join(&release).join("lib/modules").join(&release);
    let dependencies = std::fs::read_to_string(folder.join("modules.dep")).unwrap();
    let mut modules = Vec::new();
    for module in ["virtio_pci.ko", "virtio_net.ko"] {
        let Some(line) = dependencies.lines().find(|line| line.split(':').next().unwrap().ends_with(module))
        else {
            continue;
        };
        let files: Vec<&str> = line.split([':', ' ']).filter(|file| !file.is_empty()).collect();
        // Dependencies are listed after the module.
        for file in files.into_iter().rev().map(|file| folder.join(file)) {
            if !modules.contains(&file) {
                modules.push(file);
            }
        }
    }
    (cache.join(&release).join("boot").join(format!("vmlinuz-{release}")), modules)
}

/// The initramfs of the machine.
fn write_root(folder: &Path, modules: &[PathBuf], settings: &str) {
    let root = folder.join("root");
    for name in ["bin", "dev", "proc", "sys", "modules"] {
        std::fs::create_dir_all(root.join(name)).unwrap();
    }
    std::fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    let mut order = String::new();
    for module in modules {
        let name = module.file_name().unwrap();
        std::fs::copy(module, root.join("modules").join(name)).unwrap();
        writeln!(order, "{}", name.to_str().unwrap()).unwrap();
    }
    std::fs::write(root.join("modules/order"), order).unwrap();
    std::fs::write(root.join("settings"), settings).unwrap();
    std::fs::write(root.join("init"), INIT).unwrap();
    let script = "chmod 755 init && find . | busybox cpio -o -H newc >../initrd";
    let packed = Command::new("sh").args(["-c", script]).current_dir(&root).output().unwrap();
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
}
