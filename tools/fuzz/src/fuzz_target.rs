//! The program that libFuzzer runs: the target that the environment names.

#![no_main]

use std::sync::OnceLock;

use knit_fuzz::fuzzer::TARGET;
use knit_fuzz::targets;

static FUNCTION: OnceLock<fn(&[u8])> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let function = FUNCTION.get_or_init(|| {
        let name = std::env::var(TARGET).unwrap_or_default();
        targets::function(&name).unwrap_or_else(|| panic!("{TARGET} names no target: `{name}`"))
    });
    function(data);
});
