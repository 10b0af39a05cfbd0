//! The root file system of a container, in a mount namespace of its own.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, pivot_root};

use super::ExtraMount;
use crate::deployment::{Container, Mount};

/// Where the root is built. The mount is only in the new mount namespace, and every machine has this directory.
const STAGING: &str = "/mnt";

/// Directories of the node that are the kernel's, or that tests share with it: those of the machine.
const OF_THE_MACHINE: [&str; 4] = ["/proc/sys", "/sys/fs/bpf", "/dev/net", "/var/run/netns"];

/// What a runtime creates in every container.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// `readonlyPaths` of the container runtime interface.
const READ_ONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// `maskedPaths` of the container runtime interface.
const MASKED_PATHS: [&str; 9] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/sys/firmware",
];

const KERNEL_FILES: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

/// Moves this thread into a new mount namespace with the root of the container.
pub(super) fn enter(container: &Container, directory: &Path, extra: &[ExtraMount]) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    // As runtimes do: unmounts on the machine arrive here, and mounts from here do not arrive on the machine.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_SLAVE | MsFlags::MS_REC, None::<&str>)?;
    new(STAGING, "tmpfs", MsFlags::MS_NOSUID, Some("mode=755"))?;
    kernel_files()?;
    bind(directory, directory)?;
    for one in &container.mounts {
        volume(one, directory)?;
    }
    for one in extra {
        add(one)?;
    }
    if container.has_read_only_root {
        read_only(Path::new("/"))?;
    }
    // The old root is mounted over the new one, and then removed with all other mounts of the machine.
    chdir(STAGING)?;
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    Ok(chdir("/")?)
}

/// `/proc`, `/sys` and `/dev`. The container is in the network namespace and the PID namespace of its node.
fn kernel_files() -> io::Result<()> {
    new(folder("/proc")?, "proc", KERNEL_FILES, None)?;
    new(folder("/sys")?, "sysfs", KERNEL_FILES | MsFlags::MS_RDONLY, None)?;
    new(folder("/dev")?, "tmpfs", MsFlags::MS_NOSUID, Some("mode=755"))?;
    for device in DEVICES.map(|name| Path::new("/dev").join(name)) {
        bind(&device, &device)?;
    }
    for path in READ_ONLY_PATHS.map(Path::new).into_iter().filter(|path| path.exists()) {
        bind(&inside(path), path)?;
        read_only(path)?;
    }
    for path in MASKED_PATHS.map(Path::new).into_iter().filter(|path| path.exists()) {
        if path.is_dir() {
            new(inside(path), "tmpfs", MsFlags::MS_RDONLY, None)?;
        } else {
            bind(Path::new("/dev/null"), path)?;
        }
    }
    Ok(())
}

/// A volume of the manifest.
fn volume(one: &Mount, directory: &Path) -> io::Result<()> {
    let source = match &one.host_path {
        Some(path) if OF_THE_MACHINE.iter().any(|known| path == Path::new(known)) => path.clone(),
        Some(path) => below(&directory.join("node"), path),
        // Files of the API server, which tests pass by flags.
        None => below(&directory.join("volumes"), &one.place),
    };
    fs::create_dir_all(&source)?;
    bind(&source, &one.place)?;
    if one.is_read_only { read_only(&one.place) } else { Ok(()) }
}

fn add(one: &ExtraMount) -> io::Result<()> {
    match one {
        ExtraMount::ReadOnly(directory) => {
            bind(directory, directory)?;
            read_only(directory)
        }
        ExtraMount::Bind { source, place, is_nodev } => {
            bind(source, place)?;
            if *is_nodev { remount(place, MsFlags::MS_NODEV) } else { Ok(()) }
        }
    }
}

fn new(place: impl AsRef<Path>, kind: &str, flags: MsFlags, data: Option<&str>) -> io::Result<()> {
    let place = place.as_ref();
    mount(Some(kind), place, Some(kind), flags, data).map_err(|error| failed("mount", place, error.into()))
}

/// Mounts a file or directory at a place in the root, with what is mounted below it.
fn bind(source: &Path, place: &Path) -> io::Result<()> {
    let metadata = fs::metadata(source).map_err(|error| failed("find", source, error))?;
    let target = if metadata.is_dir() { folder(place)? } else { file(place)? };
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(source), &target, None::<&str>, flags, None::<&str>)
        .map_err(|error| failed("bind", place, error.into()))
}

/// Makes the mount at a place in the root read-only.
fn read_only(place: &Path) -> io::Result<()> {
    remount(place, MsFlags::MS_RDONLY)
}

/// Sets flags of the mount at a place in the root.
fn remount(place: &Path, flags: MsFlags) -> io::Result<()> {
    let flags = flags | MsFlags::MS_BIND | MsFlags::MS_REMOUNT;
    // In a user namespace the flags of a mount of the machine cannot be cleared.
    let kept = [MsFlags::empty(), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, KERNEL_FILES];
    let attempt = |kept| mount(None::<&str>, &inside(place), None::<&str>, flags | kept, None::<&str>);
    let result = kept
        .into_iter()
        .map(attempt)
        .find(|result| *result != Err(Errno::EPERM))
        .unwrap_or(Err(Errno::EPERM));
    result.map_err(|error| failed("change the flags of", place, error.into()))
}

/// The directory in the root, which exists afterwards.
fn folder(place: impl AsRef<Path>) -> io::Result<PathBuf> {
    let target = inside(place.as_ref());
    if !target.is_dir() {
        fs::create_dir_all(&target).map_err(|error| failed("create", &target, error))?;
    }
    Ok(target)
}

/// The file in the root, which exists afterwards.
fn file(place: &Path) -> io::Result<PathBuf> {
    let target = inside(place);
    if !target.exists() {
        folder(place.parent().unwrap_or(Path::new("/")))?;
        File::create(&target).map_err(|error| failed("create", &target, error))?;
    }
    Ok(target)
}

/// Where a place of the container is while its root is built.
fn inside(place: &Path) -> PathBuf {
    below(Path::new(STAGING), place)
}

fn below(root: &Path, place: &Path) -> PathBuf {
    root.join(place.strip_prefix("/").unwrap_or(place))
}

fn failed(action: &str, place: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("confinement: cannot {action} {}: {error}", place.display()))
}
