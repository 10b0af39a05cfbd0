//! The bytes that a process receives from one address, or sends there, counted by the kernel for each of its TCP connections.

use std::collections::BTreeMap;

/// The kernel's counters of received and of sent bytes.
const RECEIVED: &str = "bytes_received:";
const SENT: &str = "bytes_sent:";

/// A counter of a process's connections. A connection that is closed keeps its last value.
#[derive(Clone, Debug)]
pub struct ByteCounter {
    /// The name of the kernel's counter.
    counter: &'static str,
    /// The last value of each connection, by its local address.
    connections: BTreeMap<String, u64>,
    /// Of connections whose local address was used again.
    earlier: u64,
}

impl ByteCounter {
    /// Counts received bytes.
    pub fn received() -> Self {
        Self { counter: RECEIVED, connections: BTreeMap::new(), earlier: 0 }
    }

    /// Counts sent bytes.
    pub fn sent() -> Self {
        Self { counter: SENT, ..Self::received() }
    }

    /// Takes the output of `ss --tcp --info --processes --oneline`.
    pub fn update(&mut self, output: &str, pid: i32) {
        let counter = self.counter;
        for (address, bytes) in output.lines().filter_map(|line| parse(line, pid, counter)) {
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

/// Local address and counted bytes of a connection of the process. Columns: queues, local address, remote address, processes,
/// counters.
fn parse<'a>(line: &'a str, pid: i32, counter: &str) -> Option<(&'a str, u64)> {
    line.contains(&format!("pid={pid},")).then_some(())?;
    let address = line.split_whitespace().nth(2)?;
    let counter = line.split_whitespace().find_map(|word| word.strip_prefix(counter));
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
        let mut received = ByteCounter::received();
        let output = [line(1, 42, "bytes_received:100"), line(2, 421, "bytes_received:900"), line(3, 42, "")];
        received.update(&output.concat(), 42);
        assert_eq!(received.total(), 100);
    }

    #[test]
    fn sent_bytes_are_counted_apart() {
        let output = line(1, 42, "bytes_sent:70 bytes_received:100");
        let (mut received, mut sent) = (ByteCounter::received(), ByteCounter::sent());
        received.update(&output, 42);
        sent.update(&output, 42);
        assert_eq!((received.total(), sent.total()), (100, 70));
    }

    #[test]
    fn closed_connections_and_reused_ports_keep_their_bytes() {
        let mut received = ByteCounter::received();
        received.update(&[line(1, 42, "bytes_received:100"), line(2, 42, "bytes_received:10")].concat(), 42);
        received.update(&line(2, 42, "bytes_received:15"), 42);
        assert_eq!(received.total(), 115);
        received.update(&line(1, 42, "bytes_received:30"), 42);
        assert_eq!(received.total(), 145);
    }
}
