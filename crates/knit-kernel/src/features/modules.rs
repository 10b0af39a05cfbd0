//! Kernel modules: which are on disk and not loaded yet, and so what a missing feature's remedy is.
//!
//! The kernel loads the module of a link kind when someone first asks for it. Some modules make devices of their own in
//! the machine's namespace when they are loaded (`gre0`, `sit0`, `dummy0`, ...). Looking must not do that, so such a
//! kind is not tried while its module is only on disk.

use std::collections::BTreeSet;
use std::path::Path;

/// The modules of the running kernel.
#[derive(Debug, Default)]
pub struct Modules {
    release: String,
    /// On disk; `-` in names is written `_`, as the kernel does.
    on_disk: BTreeSet<String>,
    /// The lines of the kernel's build options, if they are on disk.
    options: String,
}

impl Modules {
    /// Reads what is on disk for the running kernel. What cannot be read counts as empty.
    pub fn read() -> Self {
        let release =
            std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        let folder = Path::new("/lib/modules").join(&release);
        let index = std::fs::read_to_string(folder.join("modules.dep")).unwrap_or_default();
        let options = std::fs::read_to_string(format!("/boot/config-{release}")).unwrap_or_default();
        Self { release, on_disk: index.lines().filter_map(module_of_line).collect(), options }
    }

    /// Whether asking for what this module brings would load it.
    pub fn would_load(&self, module: &str) -> bool {
        self.on_disk.contains(module) && !Path::new("/sys/module").join(module).exists()
    }

    /// What to do about a missing feature.
    pub fn hint(&self, module: Option<&str>, config: &str) -> String {
        let release = &self.release;
        match module {
            Some(module) if self.on_disk.contains(module) => {
                format!("load the module: modprobe {module}")
            }
            Some(module) if self.options.lines().any(|line| line == format!("{config}=m")) => {
                format!("it is a module that is not installed: install {module} for kernel {release}")
            }
            _ => format!("boot a kernel that is built with {config} (Debian's linux-image-amd64 is)"),
        }
    }
}

/// The module that a line of modules.dep is about: `kernel/net/ipv4/ip_gre.ko.xz: ...` is `ip_gre`.
fn module_of_line(line: &str) -> Option<String> {
    let (path, _) = line.split_once(':')?;
    let (name, _) = path.rsplit('/').next()?.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_index_names_its_module() {
        assert_eq!(
            module_of_line("kernel/net/ipv4/ip_gre.ko.xz: kernel/net/ipv4/gre.ko.xz").as_deref(),
            Some("ip_gre")
        );
        assert_eq!(module_of_line("kernel/drivers/net/a-b.ko:").as_deref(), Some("a_b"));
        assert_eq!(module_of_line("nonsense"), None);
    }

    #[test]
    fn the_hint_follows_what_is_on_disk() {
        let modules = Modules {
            release: "6.1".into(),
            on_disk: ["wireguard".to_owned()].into(),
            options: "CONFIG_GENEVE=m\n".into(),
        };
        assert!(modules.hint(Some("wireguard"), "CONFIG_WIREGUARD").contains("modprobe wireguard"));
        assert!(modules.hint(Some("geneve"), "CONFIG_GENEVE").contains("install geneve for kernel 6.1"));
        assert!(modules.hint(Some("vrf"), "CONFIG_NET_VRF").contains("built with CONFIG_NET_VRF"));
    }
}
