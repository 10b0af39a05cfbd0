//! The environment variables of a CNI command.

use std::ffi::OsString;

use knit_kni::frame::SHIM_MARK;
use knit_model::IfName;

use crate::error::CniError;

/// The longest container id that the agent accepts, in bytes.
const MAX_ID: usize = 253;

/// A CNI command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Attach.
    Add,
    /// Detach.
    Del,
    /// Compare an attachment with the result of its ADD.
    Check,
    /// Remove attachments that are not valid any more.
    Gc,
    /// Report whether ADD can succeed.
    Status,
    /// Report the supported versions.
    Version,
}

/// The valid environment of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// The command.
    pub command: Command,
    /// The container id; empty if the command does not need it.
    pub container: String,
    /// The path of the network namespace; empty if the command does not need it.
    pub netns: String,
    /// The interface; empty if the command does not need it.
    pub interface: String,
    /// `CNI_ARGS`, not parsed.
    pub args: String,
}

impl Environment {
    /// Reads and validates the variables that the command needs.
    pub fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, CniError> {
        let text = |name: &str| match variable(name).unwrap_or_default().into_string() {
            Ok(text) => Ok(text),
            Err(bytes) => Err(CniError::invalid_environment(name, format!("{bytes:?} is not valid UTF-8"))),
        };
        let command = match text("CNI_COMMAND")?.as_str() {
            "ADD" => Command::Add,
            "DEL" => Command::Del,
            "CHECK" => Command::Check,
            "GC" => Command::Gc,
            "STATUS" => Command::Status,
            "VERSION" => Command::Version,
            "" => {
                let reason = format!("not set; {SHIM_MARK}, to be run by container runtimes");
                return Err(CniError::invalid_environment("CNI_COMMAND", reason));
            }
            other => {
                let reason = format!("unknown command `{}`", other.escape_debug());
                return Err(CniError::invalid_environment("CNI_COMMAND", reason));
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

/// A container id: a letter or digit, then letters, digits, `_`, `.` and `-`.
pub(crate) fn container(name: &str, id: &str) -> Result<String, CniError> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let shown = id.escape_debug();
    if id.is_empty() {
        return Err(CniError::invalid_environment(name, "must not be empty"));
    }
    if id.len() > MAX_ID {
        return Err(CniError::invalid_environment(
            name,
            format!("{} bytes long, the limit is {MAX_ID}", id.len()),
        ));
    }
    if let Some(c) = id.chars().find(|c| !is_allowed(*c)) {
        return Err(CniError::invalid_environment(name, format!("`{shown}` must not contain {c:?}")));
    }
    if !id.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(CniError::invalid_environment(
            name,
            format!("`{shown}` must begin with a letter or digit"),
        ));
    }
    Ok(id.to_owned())
}

/// A valid interface name.
pub(crate) fn interface(variable: &str, name: &str) -> Result<String, CniError> {
    IfName::new(name).map_err(|error| CniError::invalid_environment(variable, error))?;
    Ok(name.to_owned())
}

fn netns(path: &str, required: bool) -> Result<String, CniError> {
    if path.is_empty() && !required {
        return Ok(String::new());
    }
    let absolute = path.starts_with('/') && !path.split('/').any(|part| part == "..");
    if !absolute || path.contains('\0') {
        let reason = format!("expected an absolute path without `..`, not `{}`", path.escape_debug());
        return Err(CniError::invalid_environment("CNI_NETNS", reason));
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::INVALID_ENVIRONMENT;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, CniError> {
        Environment::read(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(*value))
        })
    }

    #[test]
    fn invalid_variables_are_rejected_with_their_name() {
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
                let error = with(name, value).unwrap_err();
                assert_eq!(error.code, INVALID_ENVIRONMENT, "{name}={value}");
                assert!(error.message.contains(name), "{name}={value}: {}", error.message);
            }
        }
    }

    #[test]
    fn only_the_variables_of_the_command_are_required() {
        assert!(read(&[("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0")]).is_ok());
        for command in ["GC", "STATUS", "VERSION"] {
            assert!(read(&[("CNI_COMMAND", command), ("CNI_IFNAME", "a/b")]).is_ok(), "{command}");
        }
        for command in ["", "add", "ADD "] {
            assert_eq!(read(&[("CNI_COMMAND", command)]).unwrap_err().code, INVALID_ENVIRONMENT, "{command}");
        }
    }
}
