//! The functions that are fuzzed. They panic if an invariant does not hold.

mod cni;
pub mod engine;
mod journal;
mod kernel;
mod kubernetes;
mod policies;
mod recordings;
mod requests;

/// The function of a target; `None` if there is no such target.
pub fn function(name: &str) -> Option<fn(&[u8])> {
    Some(match name {
        "requests" => requests::requests,
        "cni-shim" => cni::shim,
        "cni-results" => cni::results,
        "network-attachments" => kubernetes::attachments,
        "objects" => kubernetes::objects,
        "network-policies" => policies::policies,
        "nri" => requests::nri,
        "netlink" => kernel::netlink,
        "nftables" => kernel::nftables,
        "journal" => journal::journal,
        "records" => journal::records,
        "recordings" => recordings::recordings,
        _ => return None,
    })
}

/// The parts of an input that consists of several, separated by lines with three dashes.
fn parts<const N: usize>(data: &[u8]) -> [&[u8]; N] {
    const SEPARATOR: &[u8] = b"\n---\n";
    let mut rest = Some(data);
    std::array::from_fn(|_| {
        let part = rest.take().unwrap_or_default();
        let end = part.windows(SEPARATOR.len()).position(|window| window == SEPARATOR);
        rest = end.map(|end| &part[end + SEPARATOR.len()..]);
        &part[..end.unwrap_or(part.len())]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TARGETS;

    #[test]
    fn every_target_has_a_function() {
        assert!(TARGETS.iter().all(|target| function(target.name).is_some()));
        assert!(function("other").is_none());
    }

    #[test]
    fn inputs_are_split_into_parts() {
        assert_eq!(parts::<3>(b"a\n---\nb"), [&b"a"[..], b"b", b""]);
        assert_eq!(parts::<2>(b"a\n---\n\n---\nc"), [&b"a"[..], b""]);
        assert_eq!(parts::<1>(b""), [b""]);
    }
}
