//! The process's own memory.

use crate::sys;

/// Gives memory that nothing is in any more back to the machine.
///
/// The allocator keeps what was freed, for the next one who asks. After something large and rare (a journal that was
/// read, a snapshot that was written) there is no next one: without this the process stays as large as it ever was.
pub fn give_back() {
    sys::trim_heap();
}

/// To be called before there are threads. The allocator gives each thread an arena of its own, up to eight for each CPU, and
/// what is free in one is of no use in another. And when a large piece is freed (the types of the whole kernel, which are read
/// once, are 15 MiB), it takes that for the size of things from then on.
pub fn share() {
    sys::tune_heap(2, 128 << 10);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What this process has of its own, in KiB.
    fn anonymous() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn what_was_freed_is_given_back_though_something_behind_it_lives() {
        // Small enough to come from the heap, with one in use behind them, so that the allocator keeps all of them.
        let many: Vec<Vec<u8>> = (0..8_000).map(|_| vec![1; 4_000]).collect();
        let behind = vec![1; 4_000];
        drop(many);
        let before = anonymous();
        give_back();
        let after = anonymous();
        assert!(before > after + 16 * 1024, "{before} KiB before, {after} KiB after");
        drop(behind);
    }
}
