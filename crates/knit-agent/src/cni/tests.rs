use super::*;

fn config(folder: &Path) -> CniConfig {
    let shim = folder.join("source");
    fs::write(&shim, format!("\x7fELF {SHIM_MARK} 1")).unwrap();
    CniConfig { bin_dir: folder.join("bin"), conf_dir: folder.join("net.d"), shim, ..CniConfig::default() }
}

const SOCKET: &str = "/run/knit/cni.sock";

#[test]
fn both_files_are_put_in_place_once_and_removed_again() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let socket = Path::new(SOCKET);
    assert_eq!(config.install(socket).unwrap().len(), 2);
    assert_eq!(config.install(socket).unwrap(), Vec::<String>::new());
    let status = config.status(socket).unwrap();
    assert_eq!((status.shim_state, status.configuration_state), (FileState::UpToDate, FileState::UpToDate));
    assert_eq!(
        (status.shadowed_by(), status.active.as_deref()),
        (None, Some(status.configuration.as_path()))
    );
    let files = |name: &str| fs::read_dir(folder.path().join(name)).unwrap().count();
    assert_eq!((files("bin"), files("net.d")), (1, 1), "no temporary file is left");

    // A newer shim, and another socket.
    fs::write(&config.shim, format!("\x7fELF {SHIM_MARK} 2")).unwrap();
    assert_eq!(config.status(Path::new("/other")).unwrap().shim_state, FileState::Outdated);
    assert_eq!(config.install(Path::new("/other")).unwrap().len(), 2);

    assert_eq!(config.remove_configuration().unwrap().len(), 1);
    assert_eq!(config.remove_shim().unwrap().len(), 1);
    assert_eq!((files("bin"), files("net.d")), (0, 0));
    assert!(config.remove_configuration().unwrap().is_empty() && config.remove_shim().unwrap().is_empty());
}

#[test]
fn a_changed_file_is_detected_without_reading_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let socket = Path::new(SOCKET);
    assert_eq!(config.fingerprints(), None, "nothing is installed");
    config.install(socket).unwrap();
    assert!(config.status(socket).unwrap().is_complete());
    let complete = config.fingerprints();
    assert!(complete.is_some() && complete == config.fingerprints());
    let changed = |what: &str| {
        assert_ne!(config.fingerprints(), complete, "{what}");
        config.install(socket).unwrap();
    };
    // The same length, in place; the time of a change has the resolution of the kernel's clock.
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::write(config.shim_file(), format!("\x7fELF {SHIM_MARK} 9")).unwrap();
    changed("another shim");
    fs::write(config.conf_file(), "{}").unwrap();
    fs::remove_file(config.conf_file()).unwrap();
    changed("no configuration");
    fs::write(config.conf_dir.join("00-other.conflist"), "{}").unwrap();
    changed("another configuration");
    assert!(!config.status(socket).unwrap().is_complete(), "runtimes use the other one");
}

#[test]
fn foreign_files_are_neither_replaced_nor_removed() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    for (name, place) in [(SHIM, &config.bin_dir), ("10-knit.conflist", &config.conf_dir)] {
        fs::create_dir_all(place).unwrap();
        fs::write(place.join(name), "{}").unwrap();
        let why = config.install(Path::new(SOCKET)).unwrap_err().to_string();
        assert!(why.contains(name) && why.contains("foreign file"), "{why}");
        fs::write(place.join(name), "{}").unwrap();
        let kept = [config.remove_configuration().unwrap(), config.remove_shim().unwrap()].concat();
        assert!(kept.iter().any(|line| line.starts_with("kept")), "{kept:?}");
        assert_eq!(fs::read_to_string(place.join(name)).unwrap(), "{}");
        fs::remove_file(place.join(name)).unwrap();
    }
}

#[test]
fn a_configuration_that_shadows_knits_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    config.install(Path::new(SOCKET)).unwrap();
    let shadowed_by = || config.status(Path::new(SOCKET)).unwrap().shadowed_by().map(Path::to_owned);
    for harmless in ["20-other.conflist", "00-note.txt", ".05-hidden.swp"] {
        fs::write(config.conf_dir.join(harmless), "{}").unwrap();
        assert_eq!(shadowed_by(), None, "{harmless}");
    }
    fs::write(config.conf_dir.join("05-other.conf"), "{}").unwrap();
    assert_eq!(shadowed_by(), Some(config.conf_dir.join("05-other.conf")));
}

#[test]
fn a_program_that_is_not_the_shim_is_not_installed() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    fs::write(&config.shim, "something else").unwrap();
    assert!(config.install(Path::new(SOCKET)).unwrap_err().to_string().contains("not Knit's CNI shim"));
    assert!(!config.bin_dir.exists() && !config.conf_dir.exists());
}

#[test]
fn names_that_runtimes_would_not_read_are_rejected() {
    for name in ["knit.txt", "a/b.conflist", ".hidden.conflist", "", "10-knit.conf"] {
        let config = CniConfig { conf_name: name.to_owned(), ..CniConfig::default() };
        assert!(config.check().unwrap_err().contains("cni.confName"), "{name}");
    }
    CniConfig::default().check().unwrap();
}
