//! Devices of the node by their address on a bus, and which NIC is whose. The kernel says it in sysfs.

use std::io;
use std::path::{Path, PathBuf};

use knit_model::IfName;
use nix::net::if_::if_indextoname;
use thiserror::Error;

/// Where sysfs is.
pub const SYSFS: &str = "/sys";
/// The buses whose devices are known by an id that others are handed: a PCI address, an auxiliary device's name.
const BUSES: [&str; 2] = ["pci", "auxiliary"];

/// Why a device has no NIC that could be had.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// No bus has it.
    #[error("there is no device {id} on a PCI or auxiliary bus of this node")]
    NoDevice {
        /// The device.
        id: String,
    },
    /// It has none that the host sees.
    #[error(
        "device {id} has no NIC on the host: a pod has it, or {}",
        .driver.as_ref().map_or("no driver drives it".to_owned(), |driver| format!("its driver {driver} makes none"))
    )]
    NoNic {
        /// The device.
        id: String,
        /// What drives it.
        driver: Option<String>,
    },
    /// It has several.
    #[error("device {id} has the NICs {}: its id does not say which one is meant", .names.join(", "))]
    Several {
        /// The device.
        id: String,
        /// Their names.
        names: Vec<String>,
    },
    /// What sysfs says is not true of the links that this program sees.
    #[error("device {id}: its NIC {name} is not on this host: sysfs is of another network namespace")]
    OtherNamespace {
        /// The device.
        id: String,
        /// The NIC's name there.
        name: String,
    },
    /// It could not be looked at.
    #[error("device {id}: {path}: {source}", path = .path.display())]
    Unreadable {
        /// The device.
        id: String,
        /// What could not be read.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The name of a device's only NIC in the namespace of the calling thread. `id` is one name, never a path.
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
    // What drives a virtio device is one level below: the PCI device is only the way to it.
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

/// The names in a folder, in order; none if there is no such folder.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
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

    /// A sysfs in which these NICs are, as `place below bus` and number.
    fn sysfs(nics: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (place, index) in nics {
            let place = folder.path().join("bus").join(place);
            std::fs::create_dir_all(&place).unwrap();
            if !index.is_empty() {
                std::fs::write(place.join("ifindex"), format!("{index}\n")).unwrap();
            }
        }
        folder
    }

    fn found(nics: &[(&str, &str)], id: &str) -> String {
        match nic_of(sysfs(nics).path(), id) {
            Ok(name) => name.to_string(),
            Err(why) => why.to_string(),
        }
    }

    #[test]
    fn a_device_is_found_on_either_bus_and_behind_virtio() {
        // The one link that every namespace has is the first.
        assert_eq!(found(&[("pci/devices/0000:00:1f.6/net/lo", "1")], "0000:00:1f.6"), "lo");
        assert_eq!(found(&[("auxiliary/devices/mlx5_core.sf.4/net/lo", "1")], "mlx5_core.sf.4"), "lo");
        assert_eq!(found(&[("pci/devices/0000:00:02.0/virtio3/net/lo", "1")], "0000:00:02.0"), "lo");
    }

    #[test]
    fn what_has_no_nic_of_this_host_is_refused_in_words() {
        let one = &[("pci/devices/0000:00:1f.6/net/lo", "1")][..];
        for wrong in ["", "0000:00:1f.7", "../devices/0000:00:1f.6", "..", ".", "a/b"] {
            assert!(found(one, wrong).starts_with("there is no device"), "{wrong}");
        }
        let bare = &[("pci/devices/0000:00:1f.6", "")];
        assert!(found(bare, "0000:00:1f.6").contains("has no NIC on the host: a pod has it, or no driver"));
        let two = &[one[0], ("pci/devices/0000:00:1f.6/net/b", "2")];
        assert!(found(two, "0000:00:1f.6").contains("has the NICs b, lo:"));
        for index in ["2000000000", "x"] {
            let elsewhere = &[("pci/devices/0000:00:1f.6/net/lo", index)];
            assert!(found(elsewhere, "0000:00:1f.6").contains("of another network namespace"), "{index}");
        }
        let other_name = &[("pci/devices/0000:00:1f.6/net/eno1", "1")];
        assert!(found(other_name, "0000:00:1f.6").contains("NIC eno1 is not on this host"));
        let driven = sysfs(bare);
        let driver = driven.path().join("bus/pci/devices/0000:00:1f.6/driver");
        std::os::unix::fs::symlink("../../../bus/pci/drivers/vfio-pci", driver).unwrap();
        let why = nic_of(driven.path(), "0000:00:1f.6").unwrap_err().to_string();
        assert!(why.ends_with("its driver vfio-pci makes none"), "{why}");
    }
}
