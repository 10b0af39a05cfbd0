//! The few messages of DHCP (RFC 2131) that a lease needs.

use std::net::Ipv4Addr;

/// Where the options begin: after the fixed fields and the cookie.
const OPTIONS: usize = 240;
const COOKIE: [u8; 4] = [0x63, 0x82, 0x53, 0x63];
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;
/// The option that says which message it is.
const KIND: u8 = 53;
const END: u8 = 255;

/// The answer to a question: an offer, or the lease itself. `None` if it is no question.
pub fn answer(question: &[u8], server: Ipv4Addr, lease: Ipv4Addr) -> Option<Vec<u8>> {
    let is_question = question.first() == Some(&1) && question.get(OPTIONS - 4..OPTIONS) == Some(&COOKIE);
    let kind = match option(question.get(OPTIONS..).filter(|_| is_question)?, KIND)? {
        [DISCOVER] => OFFER,
        [REQUEST] => ACK,
        _ => return None,
    };
    let mut answer = vec![0; OPTIONS];
    answer[..3].copy_from_slice(&[2, 1, 6]);
    // Its number, its flags, and who asked.
    for field in [4..8, 10..12, 28..44] {
        answer[field.clone()].copy_from_slice(&question[field]);
    }
    answer[16..20].copy_from_slice(&lease.octets());
    answer[20..24].copy_from_slice(&server.octets());
    answer[OPTIONS - 4..].copy_from_slice(&COOKIE);
    answer.extend([KIND, 1, kind, 54, 4]);
    answer.extend(server.octets());
    // An hour, in a network of 256 addresses.
    answer.extend([51, 4, 0, 0, 14, 16, 1, 4, 255, 255, 255, 0, END]);
    Some(answer)
}

/// The value of an option.
fn option(mut options: &[u8], wanted: u8) -> Option<&[u8]> {
    loop {
        match options {
            [0, rest @ ..] => options = rest,
            [END, ..] => return None,
            [code, length, rest @ ..] => {
                let value = rest.get(..usize::from(*length))?;
                if *code == wanted {
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

    fn question(options: &[u8]) -> Vec<u8> {
        let mut question = vec![0; OPTIONS];
        question[0] = 1;
        question[4..8].copy_from_slice(&[9, 8, 7, 6]);
        question[OPTIONS - 4..].copy_from_slice(&COOKIE);
        question.extend(options);
        question
    }

    fn ask(options: &[u8]) -> Option<Vec<u8>> {
        answer(&question(options), Ipv4Addr::new(10, 67, 0, 2), Ipv4Addr::new(10, 67, 0, 9))
    }

    #[test]
    fn a_discover_is_offered_a_lease_and_a_request_gets_it() {
        let offer = ask(&[0, 55, 1, 3, KIND, 1, DISCOVER, END]).unwrap();
        assert_eq!((&offer[4..8], &offer[16..20]), (&[9, 8, 7, 6][..], &[10, 67, 0, 9][..]));
        assert_eq!(option(&offer[OPTIONS..], KIND), Some(&[OFFER][..]));
        let ack = ask(&[KIND, 1, REQUEST, END]).unwrap();
        assert_eq!(option(&ack[OPTIONS..], KIND), Some(&[ACK][..]));
    }

    #[test]
    fn whatever_else_comes_is_no_question() {
        for options in [&[][..], &[END], &[KIND], &[KIND, 9, 1], &[KIND, 1, OFFER, END]] {
            assert_eq!(ask(options), None, "{options:?}");
        }
        assert_eq!(answer(&[1; 200], Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST), None);
    }
}
