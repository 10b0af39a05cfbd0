//! The ownership mark of a NIC that was moved into a sandbox. It records the settings to restore, so that the NIC can
//! be moved back even if the journal or the sandbox is lost. A NIC keeps its alternative names when the kernel moves
//! it out of a namespace that ends.

use knit_model::link::{Attrs, MovedDevice, OwnerId};
use knit_model::{Mac, kernel_ids};

/// Follows the owner id in the mark of a moved device.
const TAG: &str = "nic";

/// The recorded flags, in the order of their bits.
fn flags(attrs: &mut Attrs) -> [&mut Option<bool>; 5] {
    [&mut attrs.up, &mut attrs.promisc, &mut attrs.allmulticast, &mut attrs.multicast, &mut attrs.arp]
}

/// The mark of a moved device: `knit-<owner>.nic.<mtu>.<mac>.<queue>.<group>.<flags>.<name>`. `None` if its original
/// settings are not known.
pub(crate) fn mark(owner: &OwnerId, moved: &MovedDevice) -> Option<String> {
    let (Some(device), Some(was)) = (&moved.device, &moved.original) else { return None };
    let mut was = (**was).clone();
    let bits = flags(&mut was)
        .iter()
        .enumerate()
        .fold(0u8, |bits, (bit, flag)| if **flag == Some(true) { bits | 1 << bit } else { bits });
    let mac = was.mac.map(|mac| mac.bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    Some(format!(
        "{}{}.{TAG}.{}.{}.{}.{}.{bits:x}.{device}",
        kernel_ids::ALTNAME_PREFIX,
        owner.0,
        was.mtu.unwrap_or_default(),
        mac.unwrap_or_default(),
        was.txqueuelen.unwrap_or_default(),
        was.group.unwrap_or_default(),
    ))
}

/// Parses the mark of a moved device; `None` for any other mark. `rest` is what follows the owner id.
pub(crate) fn parse_mark(rest: &str) -> Option<MovedDevice> {
    // The name comes last because it may contain dots.
    let mut fields = rest.splitn(7, '.');
    if fields.next()? != TAG {
        return None;
    }
    let mtu = fields.next()?.parse().ok()?;
    let mac = fields.next()?;
    let mut was = Attrs {
        mtu: Some(mtu),
        mac: if mac.is_empty() { None } else { Some(parse_mac(mac)?) },
        txqueuelen: Some(fields.next()?.parse().ok()?),
        group: Some(fields.next()?.parse().ok()?),
        ..Attrs::default()
    };
    let bits = u8::from_str_radix(fields.next()?, 16).ok()?;
    for (bit, flag) in flags(&mut was).into_iter().enumerate() {
        *flag = Some(bits & 1 << bit != 0);
    }
    Some(MovedDevice { device: Some(fields.next()?.parse().ok()?), original: Some(Box::new(was)) })
}

fn parse_mac(text: &str) -> Option<Mac> {
    let mut bytes = [0; 6];
    if !text.is_ascii() || text.len() != 12 {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..12).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(Mac::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_round_trips_all_settings_to_restore() {
        let owner = OwnerId("0123456789".to_owned());
        let mut moved = MovedDevice::full_for_tests();
        for device in ["nic0", "eth0.100", "fifteen-bytes-x"] {
            moved.device = Some(device.parse().unwrap());
            let text = mark(&owner, &moved).unwrap();
            // An alternative name has at most 127 bytes.
            assert!(text.len() < 128, "{text}");
            let rest = text.strip_prefix("knit-0123456789.").unwrap();
            assert_eq!(parse_mark(rest), Some(moved.clone()), "{text}");
        }
        if let Some(was) = &mut moved.original {
            (was.mac, was.up) = (None, Some(false));
        }
        let text = mark(&owner, &moved).unwrap();
        assert_eq!(parse_mark(text.split_once('.').unwrap().1), Some(moved));
        for other in ["far", "nic", "nic.x.y", "nic.1500.0200000000é1.1.1.1.a", "nic.1..1.1.zz.a"] {
            assert_eq!(parse_mark(other), None, "{other}");
        }
        assert_eq!(mark(&owner, &MovedDevice::default()), None);
    }
}
