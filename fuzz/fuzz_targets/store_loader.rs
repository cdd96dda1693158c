#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| batzen_store::embedded::fuzz_entry::load(data));
