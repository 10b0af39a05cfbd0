//! Memory of this process: tuning of the allocator.

use crate::sys;

/// Returns free heap memory to the operating system.
///
/// The allocator keeps freed memory for reuse. After a large, rare allocation (reading the journal, writing a
/// snapshot) it is not reused, and without this call the process keeps its peak size.
pub fn trim() {
    sys::trim_heap();
}

/// Limits the allocator's arenas. Call it before threads are started.
///
/// By default the allocator creates up to eight arenas for each CPU, and memory that is free in one arena is not used
/// by another. It also raises its thresholds when a large block is freed (the kernel's BTF, read once, is 15 MiB),
/// and from then on keeps blocks of that size.
pub fn limit_arenas() {
    sys::tune_heap(2, 128 << 10);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Anonymous memory of this process in KiB.
    fn anonymous() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn freed_memory_is_returned_below_a_block_in_use() {
        // Small blocks come from the heap. The last one stays in use, so that the allocator cannot shrink the heap.
        let many: Vec<Vec<u8>> = (0..8_000).map(|_| vec![1; 4_000]).collect();
        let behind = vec![1; 4_000];
        drop(many);
        let before = anonymous();
        trim();
        let after = anonymous();
        assert!(before > after + 16 * 1024, "{before} KiB before, {after} KiB after");
        drop(behind);
    }
}
