//! Counterparts for measuring the shim: an empty program, and an agent that replies immediately.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use knit_kni::{frame, v1};
use serde_json::json;

use knit_dev::process;

/// A configuration with an agent's socket.
pub fn config(socket: &Path) -> String {
    json!({ "cniVersion": "1.0.0", "name": "bench", "type": "knit-cni", "socket": socket }).to_string()
}

/// Builds an empty program with the same flags as the shim.
pub fn empty_program(folder: &Path) -> Result<PathBuf> {
    let (source, program) = (folder.join("empty.rs"), folder.join("empty"));
    std::fs::write(&source, "fn main() {}\n")?;
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut build = Command::new(rustc);
    build.args(["-O", "-Ctarget-feature=+crt-static", "-Cstrip=symbols", "-o"]).arg(&program).arg(&source);
    process::output(&mut build)?;
    Ok(program)
}

/// An agent that replies to every ADD immediately, with the same result.
pub struct ImmediateAgent {
    socket: PathBuf,
}

impl ImmediateAgent {
    /// Listens until this process ends.
    pub fn start(socket: &Path) -> Result<Self> {
        let listener =
            UnixListener::bind(socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
        let reply = frame::encode(&v1::FramedReply {
            response: prost::Message::encode_to_vec(&attached()),
            ..Default::default()
        });
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut header = [0; frame::HEADER_LEN];
                let mut respond = || {
                    stream.read_exact(&mut header)?;
                    let length = frame::payload_len(header, 1 << 20).unwrap_or_default();
                    let mut call = vec![0; length];
                    stream.read_exact(&mut call)?;
                    stream.write_all(&reply)
                };
                // A shim that closes the connection fails on its own side.
                let _: std::io::Result<()> = respond();
            }
        });
        Ok(Self { socket: socket.to_owned() })
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

/// The reply for a pod with one interface.
fn attached() -> v1::AttachResponse {
    let address = |address: &str, prefix_length, gateway: &str| v1::Address {
        address: address.to_owned(),
        prefix_length,
        gateway: gateway.to_owned(),
        ..Default::default()
    };
    let route = |destination: &str, gateway: &str| v1::Route {
        destination: destination.to_owned(),
        gateway: gateway.to_owned(),
        ..Default::default()
    };
    let interface = v1::Interface {
        name: "eth0".to_owned(),
        mac: "02:00:00:00:00:02".to_owned(),
        mtu: 1500,
        host_link: "knit12345678".to_owned(),
        addresses: vec![address("10.75.0.2", 16, "10.75.0.1"), address("fd75::2", 64, "fd75::1")],
        routes: vec![route("0.0.0.0/0", "10.75.0.1"), route("::/0", "fd75::1")],
        ..Default::default()
    };
    v1::AttachResponse {
        pod: Some(v1::Pod { id: "bench".to_owned(), interfaces: vec![interface], ..Default::default() }),
        ..Default::default()
    }
}
