#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| batzen_feed::fuzz_entry::messages(data));
