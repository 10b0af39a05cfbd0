//! Names and protocols of sockets.

use knit_model::Problems;
use knit_model::intent::Socket;

use super::{text, values};

/// The smallest Ethernet type; smaller values are frame lengths.
const MIN_ETHERTYPE: u16 = 0x0600;
const NAME: &str = "must be 1 to 63 lower case letters, digits and `-`";

values! {
    /// The name of a socket.
    SocketName(String) = text(63, &[("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')", NAME)]);
    /// A protocol by name or number.
    ProtocolText(String) = text(10, &[(
        "self.matches('^(icmp|icmp6|all|ip|ip6|arp|[0-9]{1,5}|0x[0-9A-Fa-f]{1,4})$')",
        "must be icmp, icmp6 or a number for a raw socket, and all, ip, ip6, arp or a number such as 0x88cc for a packet socket",
    )]);
}

impl SocketName {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<String> {
        let name = &self.0;
        let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let fits = (1..=63).contains(&name.len())
            && name.bytes().all(|byte| letter(byte) || byte == b'-')
            && !name.starts_with('-')
            && !name.ends_with('-');
        if !fits {
            problems.invalid(field, NAME);
        }
        fits.then(|| name.clone())
    }
}

impl ProtocolText {
    /// An IP protocol.
    pub(crate) fn read_ip(&self, field: impl Into<String>, problems: &mut Problems) -> Option<u8> {
        let number = match self.0.as_str() {
            "icmp" => Some(1),
            "icmp6" => Some(58),
            _ => self.number().and_then(|number| u8::try_from(number).ok()).filter(|number| *number > 0),
        };
        if number.is_none() {
            let text = self.0.escape_debug();
            let message = format!("must be icmp, icmp6 or a number from 1 to 255, got `{text}`");
            problems.invalid(field, message);
        }
        number
    }

    /// An Ethernet type.
    pub(crate) fn read_ethernet(&self, field: impl Into<String>, problems: &mut Problems) -> Option<u16> {
        let number = match self.0.as_str() {
            "all" => Some(Socket::ALL_FRAMES),
            "ip" => Some(0x0800),
            "ip6" => Some(0x86dd),
            "arp" => Some(0x0806),
            _ => self.number().filter(|number| *number >= MIN_ETHERTYPE),
        };
        if number.is_none() {
            let text = self.0.escape_debug();
            let message =
                format!("must be all, ip, ip6, arp or an Ethernet type such as 0x88cc, got `{text}`");
            problems.invalid(field, message);
        }
        number
    }

    fn number(&self) -> Option<u16> {
        match self.0.strip_prefix("0x") {
            Some(digits) => u16::from_str_radix(digits, 16).ok(),
            None => self.0.parse().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_parsed_by_name_and_number_or_rejected() {
        let mut problems = Problems::default();
        let text = |text: &str| ProtocolText(text.to_owned());
        let ip = |name: &str, problems: &mut Problems| text(name).read_ip("", problems);
        assert_eq!(
            ["icmp", "icmp6", "89", "0x59"].map(|name| ip(name, &mut problems)),
            [1, 58, 89, 89].map(Some)
        );
        let frames = ["all", "arp", "0x88cc", "2048"].map(|name| text(name).read_ethernet("", &mut problems));
        assert_eq!(frames, [3, 0x0806, 0x88cc, 0x0800].map(Some));
        assert!(problems.is_empty());
        for name in ["0", "256", "arp", "", "-1"] {
            assert_eq!(ip(name, &mut problems), None, "{name}");
        }
        for name in ["icmp", "80", "0x10000", ""] {
            assert_eq!(text(name).read_ethernet("", &mut problems), None, "{name}");
        }
        assert_eq!(problems.0.len(), 9);
        assert!(problems.0[1].message.ends_with("got `256`"), "{problems}");
    }
}
