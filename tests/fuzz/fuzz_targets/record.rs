//! cargo-fuzz target `record`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stoker_tests::fuzz::record(bytes));
