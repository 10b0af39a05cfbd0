//! What a runtime says in environment variables.

use std::ffi::OsString;

use knit_kni::frame::SHIM_MARK;
use knit_model::IfName;

use crate::failure::Failure;

/// The longest id that the agent takes, in bytes.
const LONGEST_ID: usize = 253;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Attach.
    Add,
    /// Detach.
    Del,
    /// Say whether everything is as it was made.
    Check,
    /// Take away what is not in the list of the living.
    Gc,
    /// Say whether pods can be added.
    Status,
    /// Say which versions are spoken.
    Version,
}

/// The variables of a call, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// What is to be done.
    pub command: Command,
    /// The container, or pod sandbox; empty where the command needs none.
    pub container: String,
    /// Where its network namespace is; empty where the command needs none.
    pub netns: String,
    /// The interface; empty where the command needs none.
    pub interface: String,
    /// The arguments, not yet read.
    pub args: String,
}

impl Environment {
    /// Reads and checks the variables that a command needs.
    pub fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, Failure> {
        let text = |name: &str| match variable(name).unwrap_or_default().into_string() {
            Ok(text) => Ok(text),
            Err(bytes) => Err(Failure::variable(name, format!("{bytes:?} is not valid UTF-8"))),
        };
        let command = match text("CNI_COMMAND")?.as_str() {
            "ADD" => Command::Add,
            "DEL" => Command::Del,
            "CHECK" => Command::Check,
            "GC" => Command::Gc,
            "STATUS" => Command::Status,
            "VERSION" => Command::Version,
            "" => {
                let why = format!("it is not set; {SHIM_MARK}, and container runtimes run it");
                return Err(Failure::variable("CNI_COMMAND", why));
            }
            other => {
                let why = format!("`{}` is no command", other.escape_debug());
                return Err(Failure::variable("CNI_COMMAND", why));
            }
        };
        let mut environment = Self {
            command,
            container: String::new(),
            netns: String::new(),
            interface: String::new(),
            args: String::new(),
        };
        if matches!(command, Command::Add | Command::Del | Command::Check) {
            environment.container = container("CNI_CONTAINERID", &text("CNI_CONTAINERID")?)?;
            environment.interface = interface("CNI_IFNAME", &text("CNI_IFNAME")?)?;
            environment.netns = netns(&text("CNI_NETNS")?, command != Command::Del)?;
        }
        if matches!(command, Command::Add | Command::Check) {
            environment.args = text("CNI_ARGS")?;
        }
        Ok(environment)
    }
}

/// A container's id: a letter or digit, then letters, digits, `_`, `.` and `-`.
pub(crate) fn container(name: &str, id: &str) -> Result<String, Failure> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-');
    let shown = id.escape_debug();
    if id.is_empty() {
        return Err(Failure::variable(name, "it is empty"));
    }
    if id.len() > LONGEST_ID {
        return Err(Failure::variable(name, format!("has {} bytes, and may have {LONGEST_ID}", id.len())));
    }
    if let Some(letter) = id.chars().find(|letter| !fits(*letter)) {
        return Err(Failure::variable(name, format!("`{shown}` must not contain {letter:?}")));
    }
    if !id.starts_with(|letter: char| letter.is_ascii_alphanumeric()) {
        return Err(Failure::variable(name, format!("`{shown}` must begin with a letter or digit")));
    }
    Ok(id.to_owned())
}

/// An interface's name, as the kernel takes it.
pub(crate) fn interface(variable: &str, name: &str) -> Result<String, Failure> {
    IfName::new(name).map_err(|why| Failure::variable(variable, why))?;
    Ok(name.to_owned())
}

fn netns(path: &str, needed: bool) -> Result<String, Failure> {
    if path.is_empty() && !needed {
        return Ok(String::new());
    }
    let absolute = path.starts_with('/') && !path.split('/').any(|part| part == "..");
    if !absolute || path.contains('\0') {
        let why = format!("`{}` is no absolute path without `..`", path.escape_debug());
        return Err(Failure::variable("CNI_NETNS", why));
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::ENVIRONMENT;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, Failure> {
        Environment::read(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(*value))
        })
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_name() {
        let good = [("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0"), ("CNI_NETNS", "/run/netns/a")];
        for command in ["ADD", "CHECK"] {
            let with = |name: &'static str, value: &'static str| {
                let mut all = vec![("CNI_COMMAND", command)];
                all.extend(good.iter().map(|&(known, old)| (known, if known == name { value } else { old })));
                read(&all)
            };
            assert!(with("", "").is_ok());
            for (name, value) in [
                ("CNI_CONTAINERID", ""),
                ("CNI_CONTAINERID", "a/b"),
                ("CNI_CONTAINERID", ".."),
                ("CNI_CONTAINERID", "a b"),
                ("CNI_CONTAINERID", "-a"),
                ("CNI_IFNAME", ""),
                ("CNI_IFNAME", ".."),
                ("CNI_IFNAME", "a/b"),
                ("CNI_IFNAME", "eth 0"),
                ("CNI_IFNAME", "eth:0"),
                ("CNI_IFNAME", "sixteen-bytes-xx"),
                ("CNI_NETNS", ""),
                ("CNI_NETNS", "run/netns"),
                ("CNI_NETNS", "/run/../netns"),
            ] {
                let failure = with(name, value).unwrap_err();
                assert_eq!(failure.code, ENVIRONMENT, "{name}={value}");
                assert!(failure.message.contains(name), "{name}={value}: {}", failure.message);
            }
        }
    }

    #[test]
    fn only_what_a_command_needs_is_asked_for() {
        assert!(read(&[("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0")]).is_ok());
        for command in ["GC", "STATUS", "VERSION"] {
            assert!(read(&[("CNI_COMMAND", command), ("CNI_IFNAME", "a/b")]).is_ok(), "{command}");
        }
        for wrong in ["", "add", "ADD "] {
            assert_eq!(read(&[("CNI_COMMAND", wrong)]).unwrap_err().code, ENVIRONMENT, "{wrong}");
        }
    }
}
