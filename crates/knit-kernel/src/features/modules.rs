//! Kernel modules: which ones are installed and loaded, and the hint for a missing feature.
//!
//! The kernel loads the module of a link kind on first use. Some modules create devices in the host's namespace when
//! they are loaded (`gre0`, `sit0`, `dummy0`, ...). Probing must not do that, so such a kind is not tested while its
//! module is not loaded.

use std::collections::BTreeSet;
use std::path::Path;

/// The modules of the running kernel.
#[derive(Debug, Default)]
pub struct Modules {
    release: String,
    /// Installed modules, with `_` in place of `-`, as in the kernel.
    installed: BTreeSet<String>,
    /// The kernel's build options, if they are installed.
    options: String,
}

impl Modules {
    /// Reads the installed modules of the running kernel. Unreadable files count as empty.
    pub fn read() -> Self {
        let release =
            std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        let directory = Path::new("/lib/modules").join(&release);
        let index = std::fs::read_to_string(directory.join("modules.dep")).unwrap_or_default();
        let options = std::fs::read_to_string(format!("/boot/config-{release}")).unwrap_or_default();
        Self { release, installed: index.lines().filter_map(module_of_line).collect(), options }
    }

    /// Whether using the feature would load this module.
    pub fn would_load(&self, module: &str) -> bool {
        self.installed.contains(module) && !Path::new("/sys/module").join(module).exists()
    }

    /// How to enable a missing feature.
    pub fn hint(&self, module: Option<&str>, config: &str) -> String {
        let release = &self.release;
        match module {
            Some(module) if self.installed.contains(module) => {
                format!("load the module: modprobe {module}")
            }
            Some(module) if self.options.lines().any(|line| line == format!("{config}=m")) => {
                format!("install the kernel module {module} for kernel {release}")
            }
            _ => format!("boot a kernel that is built with {config} (Debian's linux-image-amd64 is)"),
        }
    }
}

/// The module of a line in modules.dep: `kernel/net/ipv4/ip_gre.ko.xz: ...` is `ip_gre`.
fn module_of_line(line: &str) -> Option<String> {
    let (path, _) = line.split_once(':')?;
    let (name, _) = path.rsplit('/').next()?.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_dep_lines_are_parsed() {
        assert_eq!(
            module_of_line("kernel/net/ipv4/ip_gre.ko.xz: kernel/net/ipv4/gre.ko.xz").as_deref(),
            Some("ip_gre")
        );
        assert_eq!(module_of_line("kernel/drivers/net/a-b.ko:").as_deref(), Some("a_b"));
        assert_eq!(module_of_line("nonsense"), None);
    }

    #[test]
    fn the_hint_depends_on_installed_modules() {
        let modules = Modules {
            release: "6.1".into(),
            installed: ["wireguard".to_owned()].into(),
            options: "CONFIG_GENEVE=m\n".into(),
        };
        assert!(modules.hint(Some("wireguard"), "CONFIG_WIREGUARD").contains("modprobe wireguard"));
        assert!(
            modules
                .hint(Some("geneve"), "CONFIG_GENEVE")
                .contains("install the kernel module geneve for kernel 6.1")
        );
        assert!(modules.hint(Some("vrf"), "CONFIG_NET_VRF").contains("built with CONFIG_NET_VRF"));
    }
}
