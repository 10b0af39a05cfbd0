//! What a hostile program in a pod does on its network, for the tests of the cluster: it sends frames as given, prints the
//! frames that a link receives, and connects to abstract sockets. It needs the capability NET_RAW, and nothing else.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send, socket};

/// How often a frame is sent: a busy machine may drop one.
const REPEAT: u32 = 3;
/// The interval between frames.
const INTERVAL: Duration = Duration::from_millis(10);

/// Send and receive frames, for tests
#[derive(Parser)]
enum Command {
    /// Send frames, each several times
    Send {
        /// The link
        link: String,
        /// Frames in hexadecimal digits, beginning with the destination's MAC address
        frames: Vec<String>,
    },
    /// Print every received frame that contains a text, in hexadecimal digits, until killed
    Watch {
        /// The link
        link: String,
        /// The text
        text: String,
    },
    /// Connect to an abstract unix socket
    Connect {
        /// Its name, without the leading `@`
        name: String,
    },
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Send { link, frames } => send_frames(&link, &frames),
        Command::Watch { link, text } => watch(&link, text.as_bytes()),
        Command::Connect { name } => connect(&name),
    }
}

/// A packet socket on a link.
fn open(link: &str) -> Result<OwnedFd> {
    let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
        .context("cannot open a packet socket")?;
    let mut addresses = getifaddrs()?.filter(|one| one.interface_name == link);
    let address = addresses.find_map(|one| one.address?.as_link_addr().copied());
    let address = address.with_context(|| format!("there is no link {link}"))?;
    bind(fd.as_raw_fd(), &address).with_context(|| format!("cannot bind to {link}"))?;
    Ok(fd)
}

fn send_frames(link: &str, frames: &[String]) -> Result<()> {
    let fd = open(link)?;
    let frames: Vec<Vec<u8>> = frames.iter().map(|frame| decode(frame)).collect::<Result<_>>()?;
    for _ in 0..REPEAT {
        for frame in &frames {
            send(fd.as_raw_fd(), frame, MsgFlags::empty()).context("cannot send")?;
            sleep(INTERVAL);
        }
    }
    println!("sent {}", frames.len());
    Ok(())
}

fn watch(link: &str, text: &[u8]) -> Result<()> {
    let fd = open(link)?;
    let mut output = std::io::stdout().lock();
    writeln!(output, "watching")?;
    output.flush()?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty()).context("cannot receive")?;
        let frame = &buffer[..length];
        if frame.windows(text.len()).any(|part| part == text) {
            writeln!(output, "{}", encode(frame))?;
            output.flush()?;
        }
    }
}

fn connect(name: &str) -> Result<()> {
    let address = SocketAddr::from_abstract_name(name)?;
    let _stream = UnixStream::connect_addr(&address).with_context(|| format!("cannot connect to @{name}"))?;
    println!("connected to @{name}");
    Ok(())
}

fn encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn decode(text: &str) -> Result<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        bail!("`{text}` is not a frame in hexadecimal digits");
    }
    let digits = (0..text.len()).step_by(2).map(|at| &text[at..at + 2]);
    digits.map(|pair| u8::from_str_radix(pair, 16).with_context(|| format!("`{pair}` in `{text}`"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_hexadecimal_digits() {
        assert_eq!(decode("00ff7f").unwrap(), [0, 255, 127]);
        assert_eq!(encode(&[0, 255, 127]), "00ff7f");
        for invalid in ["0", "zz", "ä0"] {
            assert!(decode(invalid).is_err(), "{invalid}");
        }
    }
}
