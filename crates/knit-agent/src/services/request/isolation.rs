//! What isolates a sandbox: a network namespace by path or by process, or a virtual machine on taps.

use knit_kni::{kni, v1};
use knit_model::link::{TAP_NOBODY, Tap};

use super::{Checked, invalid, path};

/// A tap has at most so many queues.
const MOST_QUEUES: u32 = 256;

/// Where the namespace is, and how taps are made if it is a virtual machine instead.
type Isolation = (String, Option<Tap>);

/// As knit.v1 says it.
pub(super) fn of_sandbox(isolation: Option<v1::Isolation>) -> Checked<Isolation> {
    use v1::isolation::Domain;
    match isolation.and_then(|isolation| isolation.domain) {
        None | Some(Domain::Made(_)) => Ok((String::new(), None)),
        Some(Domain::NetnsPath(netns)) => Ok((path("sandbox.isolation.netns_path", &netns)?, None)),
        Some(Domain::Pid(pid)) => Ok((process("sandbox.isolation.pid", pid)?, None)),
        Some(Domain::Tap(tap)) => {
            if tap.queues > MOST_QUEUES {
                let message = format!("a tap has at most {MOST_QUEUES} queues, and this one {}", tap.queues);
                return Err(invalid("sandbox.isolation.tap.queues", message));
            }
            Ok((String::new(), Some(made(&tap))))
        }
    }
}

/// As package kni says it: `type` is `pid`, whose number is the path then, or `tap`. Anything else is a namespace, because
/// existing clients put words of their own there.
pub(super) fn of_kni(isolation: &kni::Isolation, netns: &str) -> Checked<Isolation> {
    let given = isolation.path.as_str();
    match isolation.r#type.to_ascii_lowercase().as_str() {
        "pid" => {
            let number =
                given.parse().map_err(|_| invalid("isolation.path", format!("`{given}` is no pid")))?;
            Ok((process("isolation.path", number)?, None))
        }
        "tap" if !given.is_empty() => {
            let message = "a virtual machine's taps are on the node, and in no namespace: leave it out";
            Err(invalid("isolation.path", message))
        }
        "tap" => Ok((String::new(), Some(made(&described(isolation)?)))),
        _ if given.is_empty() => Ok((path("extradata.netns", netns)?, None)),
        _ => Ok((path("isolation.path", given)?, None)),
    }
}

fn process(field: &str, pid: u32) -> Checked<String> {
    if pid == 0 {
        return Err(invalid(field, "there is no process 0"));
    }
    Ok(crate::sandboxes::netns_of(pid))
}

/// How package kni says who may open a tap: by the extra data of the isolation.
fn described(isolation: &kni::Isolation) -> Checked<v1::Tap> {
    let number = |key: &str| {
        let text = isolation.extradata.get(key).filter(|text| !text.is_empty());
        let wrong =
            |text: &String| invalid(&format!("isolation.extradata.{key}"), format!("`{text}` is no number"));
        text.map(|text| text.parse::<u32>().map_err(|_| wrong(text))).transpose()
    };
    Ok(v1::Tap {
        owner_uid: number("owner_uid")?,
        owner_gid: number("owner_gid")?,
        queues: number("queues")?.unwrap_or_default().min(MOST_QUEUES),
        vnet_header: false,
    })
}

/// Whether packets carry virtio's header whoever opens the tap says: it is stated only where it is asked for.
fn made(tap: &v1::Tap) -> Tap {
    Tap {
        user: Some(tap.owner_uid.unwrap_or(TAP_NOBODY)),
        user_group: Some(tap.owner_gid.unwrap_or(TAP_NOBODY)),
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
    fn a_type_says_what_isolates_and_unknown_words_mean_a_namespace() {
        assert_eq!(of_kni(&kni("pid", "12"), "").unwrap().0, "/proc/12/ns/net");
        assert_eq!(of_kni(&kni("namespace", "/run/netns/x"), "").unwrap().0, "/run/netns/x");
        assert_eq!(of_kni(&kni("", ""), "/run/netns/y").unwrap().0, "/run/netns/y");
        let (path, tap) = of_kni(&kni("tap", ""), "/run/netns/y").unwrap();
        assert_eq!((path.as_str(), tap.unwrap().user), ("", Some(TAP_NOBODY)));
        for (kind, path) in [("pid", "x"), ("pid", "0"), ("pid", ""), ("tap", "/run/netns/x")] {
            let refusal = of_kni(&kni(kind, path), "").unwrap_err();
            assert!(refusal.message().contains("isolation.path"), "{}", refusal.message());
        }
        let mut wrong = kni("tap", "");
        wrong.extradata = [("owner_uid".to_owned(), "me".to_owned())].into();
        assert!(of_kni(&wrong, "").unwrap_err().message().contains("isolation.extradata.owner_uid"));
    }
}
