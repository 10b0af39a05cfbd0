//! The isolation of a sandbox: a network namespace by path or pid, or a virtual machine with taps.

use knit_kni::{kni, v1};
use knit_model::link::{TAP_NO_OWNER, Tap};

use super::{Checked, invalid, path};

/// The maximum number of queues of a tap.
const MAX_QUEUES: u32 = 256;

/// The path of the namespace, or the tap settings of a virtual machine.
type Isolation = (String, Option<Tap>);

/// Translates knit.v1.
pub(super) fn of_sandbox(isolation: Option<v1::Isolation>) -> Checked<Isolation> {
    use v1::isolation::Domain;
    match isolation.and_then(|isolation| isolation.domain) {
        None | Some(Domain::Made(_)) => Ok((String::new(), None)),
        Some(Domain::NetnsPath(netns)) => Ok((path("sandbox.isolation.netns_path", &netns)?, None)),
        Some(Domain::Pid(pid)) => Ok((process("sandbox.isolation.pid", pid)?, None)),
        Some(Domain::Tap(tap)) => {
            if tap.queues > MAX_QUEUES {
                let message = format!("a tap has at most {MAX_QUEUES} queues, this one has {}", tap.queues);
                return Err(invalid("sandbox.isolation.tap.queues", message));
            }
            Ok((String::new(), Some(tap_settings(&tap))))
        }
    }
}

/// Translates package kni: `type` is `pid`, with the number in `path`, or `tap`. Any other type is a namespace, because existing clients
/// use their own values.
pub(super) fn of_kni(isolation: &kni::Isolation, netns: &str) -> Checked<Isolation> {
    let given = isolation.path.as_str();
    match isolation.r#type.to_ascii_lowercase().as_str() {
        "pid" => {
            let number =
                given.parse().map_err(|_| invalid("isolation.path", format!("`{given}` is not a pid")))?;
            Ok((process("isolation.path", number)?, None))
        }
        "tap" if !given.is_empty() => {
            let message = "must be empty: the taps of a virtual machine are on the host";
            Err(invalid("isolation.path", message))
        }
        "tap" => Ok((String::new(), Some(tap_settings(&described(isolation)?)))),
        _ if given.is_empty() => Ok((path("extradata.netns", netns)?, None)),
        _ => Ok((path("isolation.path", given)?, None)),
    }
}

fn process(field: &str, pid: u32) -> Checked<String> {
    if pid == 0 {
        return Err(invalid(field, "0 is not a pid"));
    }
    Ok(crate::sandboxes::netns_of(pid))
}

/// The tap settings in the extra data of package kni.
fn described(isolation: &kni::Isolation) -> Checked<v1::Tap> {
    let number = |key: &str| {
        let text = isolation.extradata.get(key).filter(|text| !text.is_empty());
        let invalid_value = |text: &String| {
            invalid(&format!("isolation.extradata.{key}"), format!("`{text}` is not a number"))
        };
        text.map(|text| text.parse::<u32>().map_err(|_| invalid_value(text))).transpose()
    };
    Ok(v1::Tap {
        owner_uid: number("owner_uid")?,
        owner_gid: number("owner_gid")?,
        queues: number("queues")?.unwrap_or_default().min(MAX_QUEUES),
        vnet_header: false,
    })
}

/// The virtio header is set only on request: otherwise the process that opens the tap decides.
fn tap_settings(tap: &v1::Tap) -> Tap {
    Tap {
        user: Some(tap.owner_uid.unwrap_or(TAP_NO_OWNER)),
        user_group: Some(tap.owner_gid.unwrap_or(TAP_NO_OWNER)),
        multi_queue: Some(tap.queues > 1),
        vnet_hdr: tap.vnet_header.then_some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kni(kind: &str, path: &str) -> kni::Isolation {
        kni::Isolation { path: path.to_owned(), r#type: kind.to_owned(), ..Default::default() }
    }

    #[test]
    fn the_type_selects_the_isolation_and_defaults_to_a_namespace() {
        assert_eq!(of_kni(&kni("pid", "12"), "").unwrap().0, "/proc/12/ns/net");
        assert_eq!(of_kni(&kni("namespace", "/run/netns/x"), "").unwrap().0, "/run/netns/x");
        assert_eq!(of_kni(&kni("", ""), "/run/netns/y").unwrap().0, "/run/netns/y");
        let (path, tap) = of_kni(&kni("tap", ""), "/run/netns/y").unwrap();
        assert_eq!((path.as_str(), tap.unwrap().user), ("", Some(TAP_NO_OWNER)));
        for (kind, path) in [("pid", "x"), ("pid", "0"), ("pid", ""), ("tap", "/run/netns/x")] {
            let refusal = of_kni(&kni(kind, path), "").unwrap_err();
            assert!(refusal.message().contains("isolation.path"), "{}", refusal.message());
        }
        let mut invalid_value = kni("tap", "");
        invalid_value.extradata = [("owner_uid".to_owned(), "me".to_owned())].into();
        assert!(of_kni(&invalid_value, "").unwrap_err().message().contains("isolation.extradata.owner_uid"));
    }
}
