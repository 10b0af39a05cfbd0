//! Finds the NIC of a device by its bus address, from sysfs.

use std::io;
use std::path::{Path, PathBuf};

use knit_model::IfName;
use nix::net::if_::if_indextoname;
use thiserror::Error;

/// The mount point of sysfs.
pub const SYSFS: &str = "/sys";
/// The buses whose device ids are handed out: PCI addresses and auxiliary device names.
const BUSES: [&str; 2] = ["pci", "auxiliary"];

/// Why a device has no usable NIC.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// No bus has this device.
    #[error("device {id} does not exist on a PCI or auxiliary bus of this node")]
    NoDevice {
        /// The device.
        id: String,
    },
    /// It has no NIC in the host's namespace.
    #[error(
        "device {id} has no NIC on the host: it is in a pod, or {}",
        .driver.as_ref().map_or("it has no driver".to_owned(), |driver| format!("its driver {driver} provides none"))
    )]
    NoNic {
        /// The device.
        id: String,
        /// Its driver.
        driver: Option<String>,
    },
    /// It has several NICs.
    #[error("device {id} has several NICs ({}): the id is ambiguous", .names.join(", "))]
    Several {
        /// The device.
        id: String,
        /// Their names.
        names: Vec<String>,
    },
    /// sysfs does not match the links in this process's namespace.
    #[error("device {id}: its NIC {name} is not on this host: sysfs belongs to another network namespace")]
    OtherNamespace {
        /// The device.
        id: String,
        /// The NIC's name there.
        name: String,
    },
    /// sysfs could not be read.
    #[error("device {id}: {path}: {source}", path = .path.display())]
    Unreadable {
        /// The device.
        id: String,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The name of a device's only NIC in the namespace of the calling thread. `id` is a plain name, never a path.
pub fn nic_of(sysfs: &Path, id: &str) -> Result<IfName, DeviceError> {
    let no_device = || DeviceError::NoDevice { id: id.to_owned() };
    if id.is_empty() || id.starts_with('.') || id.contains(['/', '\0']) {
        return Err(no_device());
    }
    let places = BUSES.map(|bus| sysfs.join("bus").join(bus).join("devices").join(id));
    let device = places.into_iter().find(|place| place.exists()).ok_or_else(no_device)?;
    let unreadable = |path: &Path| {
        let (id, path) = (id.to_owned(), path.to_owned());
        |source| DeviceError::Unreadable { id, path, source }
    };
    // The NIC of a virtio device is one level below: the PCI device is only its transport.
    let mut places = vec![device.join("net")];
    let below = names(&device).map_err(unreadable(&device))?;
    places.extend(
        below.iter().filter(|name| name.starts_with("virtio")).map(|name| device.join(name).join("net")),
    );
    let mut nics = Vec::new();
    for place in &places {
        let found = names(place).map_err(unreadable(place))?;
        nics.extend(found.into_iter().map(|name| (place.join(&name).join("ifindex"), name)));
    }
    match nics.as_slice() {
        [] => {
            let driver = std::fs::read_link(device.join("driver")).ok();
            let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
            Err(DeviceError::NoNic { id: id.to_owned(), driver })
        }
        [(index, name)] => {
            let text = std::fs::read_to_string(index).map_err(unreadable(index))?;
            let seen = text.trim().parse().ok().and_then(|index| if_indextoname(index).ok());
            let is_here = seen.is_some_and(|seen| seen.to_str() == Ok(name.as_str()));
            let here = is_here.then(|| IfName::new(name.as_str()).ok()).flatten();
            here.ok_or_else(|| DeviceError::OtherNamespace { id: id.to_owned(), name: name.clone() })
        }
        several => {
            let names = several.iter().map(|(_, name)| name.clone()).collect();
            Err(DeviceError::Several { id: id.to_owned(), names })
        }
    }
}

/// The sorted names in a directory; empty if it does not exist.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<io::Result<Vec<String>>>()?;
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sysfs tree with these NICs: path below `bus`, and index.
    fn sysfs(nics: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (place, index) in nics {
            let place = directory.path().join("bus").join(place);
            std::fs::create_dir_all(&place).unwrap();
            if !index.is_empty() {
                std::fs::write(place.join("ifindex"), format!("{index}\n")).unwrap();
            }
        }
        directory
    }

    fn found(nics: &[(&str, &str)], id: &str) -> String {
        match nic_of(sysfs(nics).path(), id) {
            Ok(name) => name.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_device_is_found_on_either_bus_and_behind_virtio() {
        // `lo` has index 1 in every namespace.
        assert_eq!(found(&[("pci/devices/0000:00:1f.6/net/lo", "1")], "0000:00:1f.6"), "lo");
        assert_eq!(found(&[("auxiliary/devices/mlx5_core.sf.4/net/lo", "1")], "mlx5_core.sf.4"), "lo");
        assert_eq!(found(&[("pci/devices/0000:00:02.0/virtio3/net/lo", "1")], "0000:00:02.0"), "lo");
    }

    #[test]
    fn devices_without_a_nic_on_this_host_are_rejected() {
        let one = &[("pci/devices/0000:00:1f.6/net/lo", "1")][..];
        for wrong in ["", "0000:00:1f.7", "../devices/0000:00:1f.6", "..", ".", "a/b"] {
            assert!(found(one, wrong).contains("does not exist"), "{wrong}");
        }
        let bare = &[("pci/devices/0000:00:1f.6", "")];
        assert!(
            found(bare, "0000:00:1f.6")
                .contains("has no NIC on the host: it is in a pod, or it has no driver")
        );
        let two = &[one[0], ("pci/devices/0000:00:1f.6/net/b", "2")];
        assert!(found(two, "0000:00:1f.6").contains("has several NICs (b, lo)"));
        for index in ["2000000000", "x"] {
            let other_index = &[("pci/devices/0000:00:1f.6/net/lo", index)];
            assert!(
                found(other_index, "0000:00:1f.6").contains("belongs to another network namespace"),
                "{index}"
            );
        }
        let other_name = &[("pci/devices/0000:00:1f.6/net/eno1", "1")];
        assert!(found(other_name, "0000:00:1f.6").contains("NIC eno1 is not on this host"));
        let driven = sysfs(bare);
        let driver = driven.path().join("bus/pci/devices/0000:00:1f.6/driver");
        std::os::unix::fs::symlink("../../../bus/pci/drivers/vfio-pci", driver).unwrap();
        let why = nic_of(driven.path(), "0000:00:1f.6").unwrap_err().to_string();
        assert!(why.ends_with("its driver vfio-pci provides none"), "{why}");
    }
}
