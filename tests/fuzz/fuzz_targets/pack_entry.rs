//! cargo-fuzz target `pack_entry`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stoker_tests::fuzz::pack_entry(bytes));
