//! Frames on the cluster network: sent by pods of the attacker, watched in pods of the other tenant.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::frames::{self, Mac, UDP, encode, udp};
use super::stage::{FRAMES, Host, MARK, Stage};
use crate::support::operator::eventually;
use crate::support::programs::script;

/// A port on which nothing listens.
pub const PORT: u16 = 4000;

impl Stage {
    /// What marks the frames of one attack, or the packets after it.
    pub fn note(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("{MARK}{};", NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The pod's frames go to pods of its node directly, and to others through the bridge.
    pub fn next_hop(&self, to: &Host) -> Mac {
        if to.node == "node1" { to.mac } else { self.gateway }
    }

    /// A datagram of a pod with its own addresses.
    pub fn honest(&self, from: &Host, to: &Host, note: &str) -> Vec<u8> {
        let macs = (from.mac, self.next_hop(to));
        frames::packet(macs, (from.ipv4, to.ipv4), UDP, &udp(PORT, PORT, note.as_bytes()))
    }

    /// A datagram with this source address.
    pub fn spoofed(&self, from: &Host, source: IpAddr, to: &Host, note: &str) -> Vec<u8> {
        let destination = if source.is_ipv4() { to.ipv4 } else { to.ipv6 };
        let macs = (from.mac, self.next_hop(to));
        frames::packet(macs, (source, destination), UDP, &udp(PORT, PORT, note.as_bytes()))
    }

    /// Sends frames from a pod of the attacker.
    pub fn send(&self, from: &Host, frames: &[Vec<u8>]) {
        self.send_on(from, "eth0", frames);
    }

    pub fn send_on(&self, from: &Host, link: &str, frames: &[Vec<u8>]) {
        let frames: Vec<String> = frames.iter().map(|frame| encode(frame)).collect();
        let output = script(&self.attacker, from.pod, &format!("{FRAMES} send {link} {}", frames.join(" ")));
        assert!(output.contains("sent "), "{output}");
    }

    /// The frames with this note that a pod has received.
    pub fn received(&self, by: &Host, note: &str) -> Vec<String> {
        let seen = script(&self.victim, by.pod, "cat /tmp/seen-*");
        let note = encode(note.as_bytes());
        seen.lines().filter(|line| line.contains(&note)).map(str::to_owned).collect()
    }

    /// Asserts that none of these frames reaches a pod of the other tenant, and that an honest datagram after them does.
    #[track_caller]
    pub fn assert_dropped(&self, from: &Host, build: impl Fn(&Host, &str) -> Vec<Vec<u8>>) {
        self.assert_dropped_for(from, &[&self.near, &self.far], build);
    }

    /// The same for frames that do not leave the node's bridge.
    #[track_caller]
    pub fn assert_dropped_on_the_bridge(&self, from: &Host, build: impl Fn(&Host, &str) -> Vec<Vec<u8>>) {
        self.assert_dropped_for(from, &[&self.near], build);
    }

    #[track_caller]
    fn assert_dropped_for(&self, from: &Host, to: &[&Host], build: impl Fn(&Host, &str) -> Vec<Vec<u8>>) {
        for to in to {
            let (attack, control) = (self.note(), self.note());
            self.send(from, &build(to, &attack));
            self.assert_arrives(from, to, &control);
            let received = self.received(to, &attack);
            assert!(received.is_empty(), "{} received {received:#?}", to.pod);
        }
    }

    /// Asserts that a datagram with the pod's own addresses arrives.
    #[track_caller]
    pub fn assert_arrives(&self, from: &Host, to: &Host, note: &str) {
        let attempt = || {
            self.send(from, &[self.honest(from, to, note)]);
            self.received(to, note)
        };
        eventually("an honest datagram arrives", attempt, |received| !received.is_empty());
    }
}
