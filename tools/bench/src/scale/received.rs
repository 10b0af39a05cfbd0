//! The bytes that a process receives over TCP from one address, counted by the kernel for each of its connections.

use std::collections::BTreeMap;

/// The counters of a process's connections. A connection that is closed keeps its last value.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// The last value of each connection, by its local address.
    connections: BTreeMap<String, u64>,
    /// Of connections whose local address was used again.
    earlier: u64,
}

impl Received {
    /// Takes the output of `ss --tcp --info --processes --oneline`.
    pub fn update(&mut self, output: &str, pid: i32) {
        for (address, bytes) in output.lines().filter_map(|line| parse(line, pid)) {
            let last = self.connections.entry(address.to_owned()).or_default();
            if bytes < *last {
                self.earlier += *last;
            }
            *last = bytes;
        }
    }

    /// All bytes so far.
    pub fn total(&self) -> u64 {
        self.earlier + self.connections.values().sum::<u64>()
    }
}

/// Local address and received bytes of a connection of the process. Columns: queues, local address, remote address, processes,
/// counters.
fn parse(line: &str, pid: i32) -> Option<(&str, u64)> {
    line.contains(&format!("pid={pid},")).then_some(())?;
    let address = line.split_whitespace().nth(2)?;
    let counter = line.split_whitespace().find_map(|word| word.strip_prefix("bytes_received:"));
    // The counter is omitted while it is zero.
    Some((address, counter.map_or(Some(0), |bytes| bytes.parse().ok())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(port: u16, pid: i32, counter: &str) -> String {
        format!(
            "0 0 172.30.0.11:{port} 172.30.0.1:6443 users:((\"knit\",pid={pid},fd=9)) cubic bytes_acked:7 {counter} segs_in:3\n"
        )
    }

    #[test]
    fn only_connections_of_the_process_count() {
        let mut received = Received::default();
        let output = [line(1, 42, "bytes_received:100"), line(2, 421, "bytes_received:900"), line(3, 42, "")];
        received.update(&output.concat(), 42);
        assert_eq!(received.total(), 100);
    }

    #[test]
    fn closed_connections_and_reused_ports_keep_their_bytes() {
        let mut received = Received::default();
        received.update(&[line(1, 42, "bytes_received:100"), line(2, 42, "bytes_received:10")].concat(), 42);
        received.update(&line(2, 42, "bytes_received:15"), 42);
        assert_eq!(received.total(), 115);
        received.update(&line(1, 42, "bytes_received:30"), 42);
        assert_eq!(received.total(), 145);
    }
}
