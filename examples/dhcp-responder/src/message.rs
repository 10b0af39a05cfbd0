//! The DHCP messages (RFC 2131) of a lease.

use std::net::Ipv4Addr;

/// The offset of the options, after the fixed fields and the magic cookie.
const OPTIONS_OFFSET: usize = 240;
const MAGIC_COOKIE: [u8; 4] = [0x63, 0x82, 0x53, 0x63];
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;
/// The option with the message type.
const MESSAGE_TYPE: u8 = 53;
const END: u8 = 255;

/// The reply to a client: an offer or an acknowledgement. `None` if the message is not a request of a client.
pub fn reply(request: &[u8], server: Ipv4Addr, lease: Ipv4Addr) -> Option<Vec<u8>> {
    let is_request =
        request.first() == Some(&1) && request.get(OPTIONS_OFFSET - 4..OPTIONS_OFFSET) == Some(&MAGIC_COOKIE);
    let message_type = match option(request.get(OPTIONS_OFFSET..).filter(|_| is_request)?, MESSAGE_TYPE)? {
        [DISCOVER] => OFFER,
        [REQUEST] => ACK,
        _ => return None,
    };
    let mut reply = vec![0; OPTIONS_OFFSET];
    reply[..3].copy_from_slice(&[2, 1, 6]);
    // The transaction id, the flags and the hardware address of the client.
    for field in [4..8, 10..12, 28..44] {
        reply[field.clone()].copy_from_slice(&request[field]);
    }
    reply[16..20].copy_from_slice(&lease.octets());
    reply[20..24].copy_from_slice(&server.octets());
    reply[OPTIONS_OFFSET - 4..].copy_from_slice(&MAGIC_COOKIE);
    reply.extend([MESSAGE_TYPE, 1, message_type, 54, 4]);
    reply.extend(server.octets());
    // A lease time of one hour, and a subnet mask of 24 bits.
    reply.extend([51, 4, 0, 0, 14, 16, 1, 4, 255, 255, 255, 0, END]);
    Some(reply)
}

/// The value of an option.
fn option(mut options: &[u8], expected: u8) -> Option<&[u8]> {
    loop {
        match options {
            [0, rest @ ..] => options = rest,
            [END, ..] => return None,
            [code, length, rest @ ..] => {
                let value = rest.get(..usize::from(*length))?;
                if *code == expected {
                    return Some(value);
                }
                options = &rest[value.len()..];
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(options: &[u8]) -> Vec<u8> {
        let mut request = vec![0; OPTIONS_OFFSET];
        request[0] = 1;
        request[4..8].copy_from_slice(&[9, 8, 7, 6]);
        request[OPTIONS_OFFSET - 4..].copy_from_slice(&MAGIC_COOKIE);
        request.extend(options);
        request
    }

    fn reply_to(options: &[u8]) -> Option<Vec<u8>> {
        reply(&request(options), Ipv4Addr::new(10, 67, 0, 2), Ipv4Addr::new(10, 67, 0, 9))
    }

    #[test]
    fn a_discover_is_offered_a_lease_and_a_request_gets_it() {
        let offer = reply_to(&[0, 55, 1, 3, MESSAGE_TYPE, 1, DISCOVER, END]).unwrap();
        assert_eq!((&offer[4..8], &offer[16..20]), (&[9, 8, 7, 6][..], &[10, 67, 0, 9][..]));
        assert_eq!(option(&offer[OPTIONS_OFFSET..], MESSAGE_TYPE), Some(&[OFFER][..]));
        let ack = reply_to(&[MESSAGE_TYPE, 1, REQUEST, END]).unwrap();
        assert_eq!(option(&ack[OPTIONS_OFFSET..], MESSAGE_TYPE), Some(&[ACK][..]));
    }

    #[test]
    fn other_messages_are_ignored() {
        for options in
            [&[][..], &[END], &[MESSAGE_TYPE], &[MESSAGE_TYPE, 9, 1], &[MESSAGE_TYPE, 1, OFFER, END]]
        {
            assert_eq!(reply_to(options), None, "{options:?}");
        }
        assert_eq!(reply(&[1; 200], Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST), None);
    }
}
