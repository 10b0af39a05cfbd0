//! The mark of a lent NIC. All that it gets back is written in it, so that it can go back whatever is lost: the journal,
//! or the sandbox. A NIC keeps its alternative names when the kernel takes it out of a namespace that ends.

use knit_model::link::{Attrs, Lent, OwnerId};
use knit_model::{Mac, marks};

/// After the owner's id: what follows is about a lent NIC.
const WORD: &str = "nic";

/// The flags that are told, in the order of their bits.
fn flags(attrs: &mut Attrs) -> [&mut Option<bool>; 5] {
    [&mut attrs.up, &mut attrs.promisc, &mut attrs.allmulticast, &mut attrs.multicast, &mut attrs.arp]
}

/// The mark of a lent NIC: `knit-<owner>.nic.<mtu>.<mac>.<queue>.<group>.<flags>.<name>`. `None` if it is not known what
/// the NIC was.
pub(crate) fn mark(owner: &OwnerId, lent: &Lent) -> Option<String> {
    let (Some(device), Some(was)) = (&lent.device, &lent.was) else { return None };
    let mut was = (**was).clone();
    let bits = flags(&mut was)
        .iter()
        .enumerate()
        .fold(0u8, |bits, (bit, flag)| if **flag == Some(true) { bits | 1 << bit } else { bits });
    let mac = was.mac.map(|mac| mac.bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    Some(format!(
        "{}{}.{WORD}.{}.{}.{}.{}.{bits:x}.{device}",
        marks::ALTNAME_PREFIX,
        owner.0,
        was.mtu.unwrap_or_default(),
        mac.unwrap_or_default(),
        was.txqueuelen.unwrap_or_default(),
        was.group.unwrap_or_default(),
    ))
}

/// What a mark says of a lent NIC; `None` if it is the mark of something else. `rest` is what follows the owner's id.
pub(crate) fn of_mark(rest: &str) -> Option<Lent> {
    // The name comes last: it may have dots.
    let mut words = rest.splitn(7, '.');
    if words.next()? != WORD {
        return None;
    }
    let mtu = words.next()?.parse().ok()?;
    let mac = words.next()?;
    let mut was = Attrs {
        mtu: Some(mtu),
        mac: if mac.is_empty() { None } else { Some(read_mac(mac)?) },
        txqueuelen: Some(words.next()?.parse().ok()?),
        group: Some(words.next()?.parse().ok()?),
        ..Attrs::default()
    };
    let bits = u8::from_str_radix(words.next()?, 16).ok()?;
    for (bit, flag) in flags(&mut was).into_iter().enumerate() {
        *flag = Some(bits & 1 << bit != 0);
    }
    Some(Lent { device: Some(words.next()?.parse().ok()?), was: Some(Box::new(was)) })
}

fn read_mac(text: &str) -> Option<Mac> {
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
    fn a_mark_says_all_that_a_nic_gets_back() {
        let owner = OwnerId("0123456789".to_owned());
        let mut lent = Lent::full_for_tests();
        for device in ["nic0", "eth0.100", "fifteen-bytes-x"] {
            lent.device = Some(device.parse().unwrap());
            let text = mark(&owner, &lent).unwrap();
            // The kernel holds 127 bytes.
            assert!(text.len() < 128, "{text}");
            let rest = text.strip_prefix("knit-0123456789.").unwrap();
            assert_eq!(of_mark(rest), Some(lent.clone()), "{text}");
        }
        if let Some(was) = &mut lent.was {
            (was.mac, was.up) = (None, Some(false));
        }
        let text = mark(&owner, &lent).unwrap();
        assert_eq!(of_mark(text.split_once('.').unwrap().1), Some(lent));
        for other in ["far", "nic", "nic.x.y", "nic.1500.0200000000é1.1.1.1.a", "nic.1..1.1.zz.a"] {
            assert_eq!(of_mark(other), None, "{other}");
        }
        assert_eq!(mark(&owner, &Lent::default()), None);
    }
}
