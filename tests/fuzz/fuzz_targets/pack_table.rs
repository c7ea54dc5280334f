//! cargo-fuzz target `pack_table`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // Panics of the Parquet decoder are caught; cargo-fuzz's own hook would end the run before. What is not caught still does.
    drop(std::panic::take_hook());
    stoker_tests::fuzz::pack_table(bytes);
});
